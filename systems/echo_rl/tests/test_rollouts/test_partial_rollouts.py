"""Rollouts that are interrupted between two tokens, and finished by another collector, which goes on exactly where they were."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1]))

import odd_environments  # noqa: E402  (it registers environments)

from echo_rl.models import TrainableTransformer  # noqa: E402
from echo_rl.rollouts.actor import Leave, Partial  # noqa: E402
from echo_rl.rollouts.partial_rollouts import episodes_of, read_prefix, write_prefix  # noqa: E402
from echo_rl.rollouts.text_policy import SmallModel, TextRules  # noqa: E402
from echo_rl.rollouts.tickets import Ticket  # noqa: E402
from echo_rl.rollouts.token_collector import TokenCollector  # noqa: E402

LETTERS, DIGITS = "abc:", "0123456789>"
EXACT = ("task", "prompt", "tokens", "mask", "lengths", "turns", "turn_counts", "rewards", "attempts", "finish", "success", "steps")


def rules(name: str, alphabet: str = LETTERS, **options: Any) -> TextRules:
    small = SmallModel(layers=1, heads=2, width=16, inner=16, context=48, alphabet=alphabet)
    return TextRules(**({"environment": name, "group": 4, "seed": 3, "small": small, "max_new": 6, "slots": 16, "timeout": 20.0, "resume": True} | options))


def policy(alphabet: str = LETTERS, version: int = 1, seed: int = 0) -> Any:
    model = TrainableTransformer.random(rules("digits", alphabet).shape(), seed, scale=0.3)
    return SimpleNamespace(params={name: tensor.numpy() for name, tensor in model.weights().items()}, version=version)


class After(Leave):
    """It lets a collector stop after so many steps of its engine."""

    left = -1

    @property
    def asked(self) -> bool:
        self.left -= 1
        return self.left == -1

    @asked.setter
    def asked(self, value: bool) -> None: ...


def none(version: int) -> None:
    return None


def collect(collector: TokenCollector, tickets: list[Ticket], given: Any, steps: int = -2) -> list[Any]:
    assert isinstance(collector._leave, After)
    collector._leave.left = steps
    return collector.collect(tickets, given, none)


@pytest.mark.parametrize(("name", "alphabet"), [("digits", DIGITS), ("test-sums", LETTERS), ("test-talk", LETTERS)])
def test_an_interrupted_group_is_finished_as_if_it_had_not_been(name: str, alphabet: str) -> None:
    """At every step of the engine, and several times; with the same weights, the draws are the same."""
    one, other = (TokenCollector(rules(name, alphabet), After()) for _ in range(2))
    given = policy(alphabet)
    tickets = [Ticket(number, 10 + number, 1) for number in range(2)]
    whole = collect(one, tickets, given)
    parts = 0
    for every in (0, 1, 3, 7):
        left, finished, at = list(tickets), {}, 0
        while left:
            # Actors take turns, so that each part is that of another one.
            made = collect((one, other)[at % 2], left, given, every if at < 40 else -2)
            at += 1
            pairs = list(zip(left, made, strict=True))
            finished |= {ticket.number: record for ticket, record in pairs if not isinstance(record, Partial)}
            left = [replace(ticket, part=ticket.part + 1, prefix=record.prefix) for ticket, record in pairs if isinstance(record, Partial)]
            every += every == 0 and at > 1  # one that stops before its first step makes nothing
            parts += len(left)
        for number, record in finished.items():
            for field in EXACT:
                np.testing.assert_array_equal(record[field], whole[number][field], err_msg=f"{field}, stopped after {every} steps")
            np.testing.assert_allclose(record["logprobs"], whole[number]["logprobs"], atol=1e-5)
            assert int(record["version"]) == 1 and int(record["anew"]) == 0
    assert parts > 10
    one.close(), other.close()


def test_each_token_says_which_policy_has_made_it_and_the_record_which_was_the_first() -> None:
    collector = TokenCollector(rules("test-talk"), After())
    ticket = Ticket(0, 4, 2)
    (first,) = collect(collector, [ticket], policy(version=2), 3)
    (second,) = collect(collector, [replace(ticket, part=1, prefix=first.prefix)], policy(version=4, seed=1), 4)
    (record,) = collect(collector, [replace(ticket, part=2, prefix=second.prefix)], policy(version=5, seed=2))
    assert int(record["version"]) == 2 and set(record["versions"][record["mask"]]) == {2, 4, 5}
    begun = [read_prefix(part.prefix) for part in (first, second)]
    for i in range(4):
        at = np.concatenate([[0], np.cumsum(record["lengths"])])[i]
        for part in begun:
            own = slice(np.cumsum([0, *part["lengths"]])[i], np.cumsum(part["lengths"])[i])
            for field in ("tokens", "logprobs", "versions", "mask"):
                np.testing.assert_array_equal(part[field][own], record[field][at : at + own.stop - own.start])
    collector.close()


def test_a_newer_policy_interrupts_groups_that_the_learner_does_not_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_rl.rollouts.token_collector._LOOK", 0.0)
    newest, asked = [policy(version=3, seed=1)], [0]

    def newer(version: int) -> Any:
        asked[0] += 1
        return newest[0] if newest[0].version > version and asked[0] % 8 == 0 else None

    collector = TokenCollector(rules("test-talk", eta=3, max_new=30), Leave())
    tickets = [Ticket(0, 4, 1), Ticket(1, 5, 2)]
    made = collector.collect(tickets, policy(version=2), newer)
    assert all(isinstance(part, Partial) and set(read_prefix(part.prefix)["versions"]) == {2} for part in made)
    newest[0] = policy(version=4, seed=2)  # the first ticket is as old as the learner takes it
    waited = collector.collect([replace(t, part=1, prefix=part.prefix) for t, part in zip(tickets, made, strict=True)], policy(version=3, seed=1), newer)
    assert [int(record["version"]) for record in waited] == [2, 2]
    assert {4} < set(np.concatenate([record["versions"][record["mask"]] for record in waited])) <= {2, 3, 4}
    collector.close()


def test_a_prefix_that_cannot_be_used_is_begun_anew_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    given, ticket = policy(), Ticket(0, 4, 1)
    collector, changed = TokenCollector(rules("test-talk"), After()), TokenCollector(rules("test-talk", options={"word": "c:a"}), After())
    whole = collect(collector, [ticket], given)[0]
    (part,) = collect(collector, [ticket], given, 14)
    assert not read_prefix(part.prefix)["mask"].all(), "the environment has said something"
    ticket = replace(ticket, part=1, prefix=part.prefix)
    (record,) = collect(changed, [ticket], given)
    assert int(record["anew"]) == 1 and (record["finish"] == whole["finish"]).all() and record["tokens"].tobytes() != whole["tokens"].tobytes()
    assert "ticket 0 is begun anew: environment test-talk: the same actions after reset(4) are followed by something else" in caplog.text
    begun = read_prefix(part.prefix)
    for prefix, words in (
        (b"no prefix", "cannot be read"),
        (write_prefix({name: leaf for name, leaf in begun.items() if name != "turns"}), "has no leaf 'turns'"),
        (write_prefix({**begun, "task": np.int64(9)}), "that of another task"),
        (write_prefix({**begun, "lengths": begun["lengths"] + 1}), "lengths is"),
        (write_prefix({**begun, "versions": begun["versions"] + 7}), "its tokens are of version 8, and the policy has version 1"),
        (write_prefix({**begun, "rewards": begun["rewards"] + 1}), "are followed by something else"),
    ):
        (record,) = collect(collector, [replace(ticket, prefix=prefix)], given)
        assert words in caplog.text.splitlines()[-1]
        assert int(record["anew"]) == 1 and record["tokens"].tobytes() == whole["tokens"].tobytes() and int(record["version"]) == 1
    collector.close(), changed.close()


def test_rollouts_that_have_failed_or_are_over_stay_so() -> None:
    odd_environments.OddEnvironment.made = 0
    collector, given = TokenCollector(rules("test-odd"), After()), policy()
    ticket = Ticket(0, 0, 1)  # the fourth environment raises at its first action
    for steps in range(3, 12):
        (part,) = collect(collector, [ticket], given, steps)
        if isinstance(part, Partial) and "error" in [episode.finish for episode in episodes_of(read_prefix(part.prefix), collector.schema)]:
            break
    assert isinstance(part, Partial)
    (record,) = collect(collector, [replace(ticket, part=1, prefix=part.prefix)], given)
    failed = [i for i, finish in enumerate(record["finish"]) if finish == 3]
    assert len(failed) == 1 and record["rewards"][failed[0]] == 0 and "no such action" in bytes(record["fault"]).decode() and int(record["anew"]) == 0
    own = slice(np.cumsum([0, *record["lengths"]])[failed[0]], np.cumsum(record["lengths"])[failed[0]])
    assert not record["mask"][own].any()
    collector.close()
