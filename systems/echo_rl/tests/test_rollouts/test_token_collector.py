"""Groups of text episodes: what the policy reads, what is paid, and what happens where an environment fails."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1]))

import odd_environments  # noqa: E402  (it registers environments)

from echo_core import EchoError  # noqa: E402
from echo_rl.models import TrainableTransformer  # noqa: E402
from echo_rl.rollouts import FINISH_REASONS  # noqa: E402
from echo_rl.rollouts.records import pack  # noqa: E402
from echo_rl.rollouts.text_policy import CharacterTokenizer, SmallModel, TextRules  # noqa: E402
from echo_rl.rollouts.tickets import Ticket  # noqa: E402
from echo_rl.rollouts.timed_calls import TimedCalls, TimeoutFailure  # noqa: E402
from echo_rl.rollouts.token_collector import TokenCollector  # noqa: E402

SMALL = SmallModel(layers=1, heads=2, width=16, inner=16, context=32, alphabet="abc:")
TOKENIZER = CharacterTokenizer("abc:")


def rules(name: str, **options: Any) -> TextRules:
    return TextRules(**({"environment": name, "group": 4, "seed": 3, "small": SMALL, "max_new": 2, "slots": 16, "timeout": 2.0} | options))


def policy(version: int = 1, seed: int = 0) -> Any:
    model = TrainableTransformer.random(SMALL.shape("abc:"), seed, scale=0.3)
    return SimpleNamespace(params={name: tensor.numpy() for name, tensor in model.weights().items()}, version=version)


def collect(collector: TokenCollector, *tasks: int, version: int = 1) -> Any:
    """Return the batch of these tasks as the learner reads it, and its columns."""
    records = collector.collect([Ticket(i, task, version) for i, task in enumerate(tasks)], policy(version), lambda _: None)
    packed = pack(records, collector.leaves)
    return collector.schema.unpack(packed), packed.batch


def test_the_policy_reads_every_observation_and_every_reward_arrives() -> None:
    """Neither the observation of reset nor one between two actions is dropped, and the reward is the sum over actions."""
    collector = TokenCollector(rules("test-sums"))
    batch, columns = collect(collector, 0, 1, 5)
    prompts = [TOKENIZER.decode(batch.prompts[a:b].tolist()) for a, b in zip(batch.prompt_cu_seqlens, batch.prompt_cu_seqlens[1:], strict=False)]
    assert prompts == ["a:", "bb:", "cc:"]
    for i in range(len(batch)):
        own = slice(*batch.cu_seqlens[i : i + 2])
        tokens, mask = batch.tokens[own], batch.mask[own]
        turns = batch.turns[slice(*batch.turn_cu_seqlens[i : i + 2])].tolist()
        first, rest = tokens[: turns[1]], tokens[turns[1] :]
        assert len(turns) == 2 and TOKENIZER.decode(first[-3:].tolist()) == "cc:" and not mask[turns[1] - 3 : turns[1]].any()
        assert mask[: turns[1] - 3].all() and mask[turns[1] :].all() and 1 <= len(rest) <= 2
        assert batch.rewards[i] == 0.25 + TOKENIZER.decode(rest.tolist()).count("a") / 2
        assert (batch.logprobs[own][mask] < 0).all() and (batch.logprobs[own][~mask] == 0).all() and (batch.versions[own] == 1).all()
        assert FINISH_REASONS[batch.finish[i]] == "stop" and columns["success"].reshape(-1)[i] == (batch.rewards[i] == 1.25)
    assert columns["steps"].tolist() == [[2] * 4] * 3 and columns["hit"].sum() > 0
    collector.close()


def test_an_episode_ends_at_its_most_steps_and_at_the_context() -> None:
    collector = TokenCollector(rules("test-sums", max_steps=1))
    batch, _ = collect(collector, 0)
    assert {FINISH_REASONS[x] for x in batch.finish} == {"length"} and (batch.rewards == 0.25).all()
    collector.close()
    tight = TokenCollector(rules("test-sums", small=SmallModel(layers=1, heads=2, width=16, inner=16, context=5, alphabet="abc:")))
    batch, _ = collect(tight, 1)  # the prompt has three tokens
    assert (np.diff(batch.cu_seqlens) <= 2).all() and {FINISH_REASONS[x] for x in batch.finish} == {"length"}
    tight.close()


def test_a_first_observation_that_the_context_cannot_hold_is_a_fault_that_the_schema_can_hold() -> None:
    collector = TokenCollector(rules("test-sums", small=SmallModel(layers=1, heads=2, width=16, inner=16, context=2, alphabet="abc:")))
    batch, columns = collect(collector, 1)  # the prompt has three tokens
    assert len(batch.prompts) == len(batch.tokens) == 0 and (batch.finish == FINISH_REASONS.index("error")).all()
    assert "the first observation has 3 tokens, and the model's context is 2; raise model.context" in bytes(columns["fault"]).decode()
    collector.close()


def test_draws_depend_on_the_task_and_the_attempt_only() -> None:
    """Alone, a ticket's log-probabilities are the same bit by bit, whatever the actor did before."""
    fresh, used = (TokenCollector(rules("test-sums", alone=True)) for _ in range(2))
    collect(used, 3)
    collect(used, 9, version=2)
    one, other = collect(fresh, 4)[0], collect(used, 4)[0]
    assert one.tokens.tobytes() == other.tokens.tobytes() and one.logprobs.tobytes() == other.logprobs.tobytes()
    together = TokenCollector(rules("test-sums"))
    batch, _ = collect(together, 3, 4)
    assert batch.tokens[batch.cu_seqlens[4] :].tobytes() == one.tokens.tobytes()
    assert TokenCollector(rules("test-sums", alone=True)).at_once == 1 < together.at_once == 4
    for collector in (fresh, used, together):
        collector.close()


def test_the_policy_of_a_learner_that_goes_on_from_a_checkpoint_is_taken() -> None:
    collector = TokenCollector(rules("test-sums"))
    assert set(collect(collector, 3, version=9)[0].versions) == {9} and set(collect(collector, 3, version=7)[0].versions) == {7}
    collector.close()


def test_an_environment_that_fails_ends_its_rollout_only(caplog: pytest.LogCaptureFixture) -> None:
    odd_environments.OddEnvironment.made = 0
    odd_environments.OddEnvironment.release.clear()
    collector = TokenCollector(rules("test-odd"))
    batch, columns = collect(collector, 0, 1, 2, 3)
    failed = batch.finish == FINISH_REASONS.index("error")
    assert failed.reshape(4, 4).sum(1).tolist() == [1, 1, 1, 1], "the fourth environment of each task fails"
    assert (batch.rewards[failed] == 0).all() and np.isfinite(batch.rewards).all()
    for i in np.flatnonzero(failed):
        assert not batch.mask[slice(*batch.cu_seqlens[i : i + 2])].any()
    ends = np.cumsum([len(text) for text in _faults(columns)])
    assert len(ends) == 4
    faults = "\n".join(_faults(columns))
    for words in ("has raised ValueError: no such action", "the reward is nan", "has not returned for 2 s", "terminated has to be True or False"):
        assert words in faults
    assert "the call is given up" in caplog.text
    odd_environments.OddEnvironment.release.set()
    again, _ = collect(collector, 6, 7)
    assert (again.finish == FINISH_REASONS.index("stop")).all(), "new environments have replaced those that failed"
    collector.close()


def _faults(columns: Any) -> list[str]:
    text = bytes(columns["fault"]).decode()
    return ["environment test-odd:" + part for part in text.split("environment test-odd:")[1:]]


def test_a_group_whose_members_all_fail_has_no_token() -> None:
    collector = TokenCollector(rules("test-odd"))
    batch, columns = collect(collector, 5)
    assert not batch.mask.any() and len(batch.tokens) == 0 and (batch.finish == FINISH_REASONS.index("error")).all()
    assert "task 5 is broken" in bytes(columns["fault"]).decode() and columns["steps"].sum() == 0
    collector.close()


def test_a_call_that_hangs_is_given_up_and_the_next_ones_are_made() -> None:
    calls, release = TimedCalls(1.0, most=1), threading.Event()
    found = calls.each([lambda: 1, lambda: release.wait(60), lambda: 1 / 0, lambda: 4], ["one", "two", "three", "four"])
    assert found[0] == 1 and isinstance(found[1], TimeoutFailure) and "two has not returned" in str(found[1])
    assert isinstance(found[2], ZeroDivisionError) and found[3] == 4
    with pytest.raises(EchoError, match="five has not returned for 1 s, and 2 such calls hang"):
        calls.each([lambda: release.wait(60)], ["five"])
    release.set()
    calls.close()
