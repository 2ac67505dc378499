"""What ended sessions become: records whose every token, log-probability, version and mask is that of what the policy has sampled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from echo_core import Client, Queue, Server, SpecError, Table
from echo_rl.models import TrainableTransformer
from echo_rl.rollouts import FINISH_REASONS, RolloutSchema
from echo_rl.serving import EndedSession, Endpoint, SessionGroups, group_record, oldest_version, session_records
from echo_rl.training.token_learner import TokenLearner

from .sessions_kit import CONFIG, chat, engine, operate, say, template, tokenizer_of


@pytest.fixture
def ended() -> list[EndedSession]:
    """Return what ended sessions leave behind."""
    return []


@pytest.fixture
def endpoint(tmp_path: Path, ended: list[EndedSession]) -> Iterator[Endpoint]:
    with Endpoint(engine(), tokenizer_of(tmp_path), template=template(), on_end=ended.append) as running:
        yield running


def attempt(endpoint: Endpoint, task: int, attempt: int, turns: int = 3, beginning: str = "Solve it.") -> EndedSession:
    """One session whose agent talks for some turns."""
    session, said = endpoint.open_session(task=task, attempt=attempt), []
    for turn in range(turns):
        say(session, said, beginning if turn == 0 else f"result {attempt} {turn}")
    found = session.end(float(attempt))
    assert found is not None
    return found


def rows(record: dict[str, Any]) -> list[tuple[np.ndarray, ...]]:
    """Tokens with the prompt before them, and log-probabilities, versions and mask of the tokens behind it, for each rollout."""
    ends = np.cumsum(record["lengths"])
    found = []
    for end, length in zip(ends, record["lengths"], strict=True):
        part = slice(end - length, end)
        found.append((np.concatenate([record["prompt"], record["tokens"][part]]), record["logprobs"][part], record["versions"][part], record["mask"][part]))
    return found


def test_a_record_holds_what_was_sampled(endpoint: Endpoint) -> None:
    """Its tokens are those that the agent's answers and the template had, and its log-probabilities those of the model for exactly these tokens."""
    session, said, choices = endpoint.open_session(task=9, attempt=2), [], []
    for turn in range(3):
        choices.append(say(session, said, f"turn {turn}")[0])
    ended = session.end(0.75)
    assert ended is not None
    (record,) = session_records(ended, RolloutSchema())
    (tokens, logprobs, versions, mask) = rows(record)[0]
    assert tokens.tolist() == choices[-1]["prompt_token_ids"] + choices[-1]["token_ids"]
    assert record["prompt"].tolist() == choices[0]["prompt_token_ids"]
    assert (record["task"], record["attempts"].tolist(), record["rewards"].tolist()) == (9, [2], [0.75])
    assert FINISH_REASONS[record["finish"][0]] == "length"

    # The mask is as long as the tokens, and has each answer from its first token to its last one.
    sampled = [token for choice in choices for token in choice["token_ids"]]
    assert len(mask) == len(logprobs) == len(versions) == len(tokens) - len(record["prompt"])
    assert mask[0] and record["tokens"][mask].tolist() == sampled
    assert set(versions[mask]) == {0} and set(versions[~mask]) == {-1} and not logprobs[~mask].any()
    assert record["turns"].tolist() == [0, *(len(c["prompt_token_ids"]) + len(c["token_ids"]) - len(record["prompt"]) for c in choices[:-1])]

    model = TrainableTransformer.random(CONFIG, scale=0.3)
    own = model.score(torch.from_numpy(tokens), torch.tensor([0, len(tokens)])).log_probs.detach().numpy()[len(record["prompt"]) :]
    np.testing.assert_allclose(logprobs[mask], own[mask], atol=1e-4)
    assert oldest_version(record) == 0


def test_answers_do_not_leak_into_the_prompt(endpoint: Endpoint) -> None:
    """Neither what the policy has said, nor what the operator knows of the task."""
    session, said = endpoint.open_session(metadata={"answer": "xyzzy"}), []
    first, _ = say(session, said, "What is it?", user="xyzzy", metadata={"answer": "xyzzy"})
    say(session, said, "And?")
    ended = session.end(1.0)
    assert ended is not None
    (record,) = session_records(ended, RolloutSchema())
    assert record["prompt"].tolist() == endpoint.tokenizer.encode("<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n")
    seen = endpoint.tokenizer.decode([*record["prompt"].tolist(), *record["tokens"][~record["mask"]].tolist()])
    assert "xyzzy" not in seen and first["message"]["content"][:5] not in seen
    status, answer, _ = chat(session := endpoint.open_session(), [{"role": "user", "content": "hi", "answer": "xyzzy"}])
    assert status == 400 and "'answer', which no chat template" in answer["error"]["message"]


def test_a_token_of_several_branches_counts_once(endpoint: Endpoint) -> None:
    session, said = endpoint.open_session(), []
    say(session, said, "one")
    other = list(said)
    say(session, said, "two")
    say(session, other, "edited")
    ended = session.end(1.0)
    assert ended is not None
    first, second = session_records(ended, RolloutSchema())
    path, fork = ended.branches[0].path(), ended.branches[1].path()
    assert path[0] is fork[0]
    assert int(first["mask"].sum()) == sum(len(turn.tokens) for turn in path)
    assert int(second["mask"].sum()) == len(fork[1].tokens)
    shared = len(fork[0].tokens)
    assert second["tokens"][:shared].tolist() == first["tokens"][:shared].tolist() and not second["mask"][:shared].any()


def test_a_group_is_one_record(endpoint: Endpoint) -> None:
    """Attempts of different lengths, with the prompt that all begin with carried once."""
    group = [attempt(endpoint, 5, i, turns=1 + i) for i in range(3)]
    record = group_record(group, RolloutSchema(group=3))
    assert record["attempts"].tolist() == [0, 1, 2] and record["rewards"].tolist() == [0.0, 1.0, 2.0] and record["turn_counts"].tolist() == [1, 2, 3]
    for one, (tokens, _, _, mask) in zip(group, rows(record), strict=True):
        path = one.branches[0].path()
        assert tokens.tolist() == [int(t) for turn in path for part in (turn.given, turn.tokens) for t in part]
        assert int(mask.sum()) == sum(len(turn.tokens) for turn in path)
    assert record["prompt"].tolist() == group[0].branches[0].path()[0].given.tolist()


def test_a_group_whose_prompts_differ_shares_what_they_begin_with(endpoint: Endpoint) -> None:
    group = [attempt(endpoint, 5, i, beginning=f"Solve it, number {i}.") for i in range(2)]
    record = group_record(group, RolloutSchema(group=2))
    prompts = [one.branches[0].path()[0].given.tolist() for one in group]
    shared = record["prompt"].tolist()
    assert all(prompt[: len(shared)] == shared for prompt in prompts) and prompts[0][len(shared)] != prompts[1][len(shared)]
    for (tokens, _, _, mask), prompt in zip(rows(record), prompts, strict=True):
        assert tokens[: len(prompt)].tolist() == prompt
        rest = len(prompt) - len(shared)
        assert not mask[:rest].any() and mask[rest]


def test_a_group_is_complete_or_not_there(endpoint: Endpoint) -> None:
    sent: list[dict[str, Any]] = []
    groups = SessionGroups(RolloutSchema(group=2), sent.append, most=2)
    first, second = attempt(endpoint, 1, 0, 1), attempt(endpoint, 1, 1, 1)
    groups(first)
    groups(attempt(endpoint, 1, 0, 1))  # a second attempt with the same number
    assert (sent, groups.dropped, groups.incomplete()) == ([], 1, {1: [1]})
    groups(second)
    assert len(sent) == groups.sent == 1 and groups.incomplete() == {}
    groups(attempt(endpoint, 2, 1, 1))
    groups(attempt(endpoint, 3, 1, 1))
    with pytest.raises(SpecError, match=r"2 groups are incomplete; the oldest, task 2, has \[1\] of 2 attempts: drop it"):
        groups(attempt(endpoint, 4, 0, 1))
    assert groups.drop(2) and not groups.drop(2)
    groups(attempt(endpoint, 4, 0, 1))
    assert groups.incomplete() == {3: [0], 4: [1]}


def test_a_group_that_could_not_be_sent_waits_for_its_last_member(endpoint: Endpoint) -> None:
    sent: list[dict[str, Any]] = []

    def send(record: dict[str, Any]) -> None:
        if len(tries := [*sent, record]) and not failed:
            failed.append(True)
            raise ConnectionError("the learner is away")
        sent[:] = tries

    failed: list[bool] = []
    groups = SessionGroups(RolloutSchema(group=2), send)
    first, second = attempt(endpoint, 1, 0, 1), attempt(endpoint, 1, 1, 1)
    groups(first)
    with pytest.raises(ConnectionError):
        groups(second)
    assert groups.incomplete() == {1: [1]}
    groups(second)
    assert len(sent) == 1


def test_what_does_not_fit_is_named(endpoint: Endpoint) -> None:
    one, other = attempt(endpoint, 1, 0, 2), attempt(endpoint, 2, 0, 1)
    with pytest.raises(SpecError, match="a record of this schema has 2 rollouts"):
        session_records(one, RolloutSchema(group=2))
    with pytest.raises(SpecError, match="a record has 2 rollouts, not 1"):
        group_record([one], RolloutSchema(group=2))
    with pytest.raises(SpecError, match=r"must have one task, not \[1, 2\]"):
        group_record([one, other], RolloutSchema(group=2))
    with pytest.raises(SpecError, match=r"different attempts, not \[0, 0\]"):
        group_record([one, one], RolloutSchema(group=2))
    with pytest.raises(SpecError, match="most is 5"):
        session_records(one, RolloutSchema(most=5, most_prompt=100))
    with pytest.raises(SpecError, match="has 2 turns, and most_turns is 1"):
        session_records(one, RolloutSchema(most_turns=1))
    with pytest.raises(SpecError, match="attempt 1 of task 1 does not belong to a group of 1"):
        SessionGroups(RolloutSchema(group=1), print)(attempt(endpoint, 1, 1, 1))

    session, said = endpoint.open_session(attempt=1, task=1), [{"role": "user", "content": "hi"}]
    chat(session, said)
    last = chat(session, said)[1]["choices"][0]["token_ids"]
    forked = session.end(1.0)
    assert forked is not None
    with pytest.raises(SpecError, match=r"has 2 branches \(resampled\); .* take branch='last', or discard the session"):
        group_record([one, forked], RolloutSchema(group=2))
    record = group_record([one, forked], RolloutSchema(group=2), branch="last")
    assert rows(record)[1][0][-len(last) :].tolist() == last and rows(record)[1][3].sum() == len(last)


@pytest.mark.needs("echo-tcp")
def test_from_an_agent_to_an_update_of_the_learner(tmp_path: Path) -> None:
    """Sessions over HTTP, their groups over TCP, and one update of the model that made them."""
    schema = RolloutSchema(group=2, most=1024)
    table = Table("rollouts", schema.example(), capacity=16, sampler="fifo", rate_limiter=Queue(16), policy_versions=True)
    with Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0") as server, Client(server.address, schema.example(), table="rollouts") as client:

        def send(record: dict[str, Any]) -> None:
            client.send(record, policy_version=oldest_version(record))
            client.wait(30)

        groups = SessionGroups(schema, send)
        with Endpoint(engine(version=1), tokenizer_of(tmp_path), template=template(), on_end=groups) as endpoint:
            for task in range(2):
                for number in range(2):
                    opened = operate(endpoint, "/sessions", {"task": task, "attempt": number})[1]
                    session, said = endpoint.sessions.get(opened["id"]), []
                    for turn in range(2 + number):
                        say(session, said, f"task {task}, turn {turn}")
                    assert operate(endpoint, f"/sessions/{session.id}/end", {"reward": float(number)})[0] == 200
            assert groups.sent == 2
        batch = schema.unpack(server.table("rollouts").sample(2, 30))
    assert batch.tasks.tolist() == [0, 1] and batch.rewards.tolist() == [0, 1, 0, 1] and set(batch.versions[batch.mask].tolist()) == {1}

    model = TrainableTransformer.random(CONFIG, scale=0.3)
    whole = batch.with_prompts()
    own = model.score(torch.from_numpy(whole.tokens.copy()), torch.from_numpy(whole.cu_seqlens.copy())).log_probs.detach().numpy()
    np.testing.assert_allclose(own[whole.mask], whole.logprobs[whole.mask], atol=1e-4)
    before, learner = model.weights(), TokenLearner(model)
    learner.version = 1
    metrics = learner.update(batch)
    assert metrics.steps == 1 and metrics.tokens == int(batch.mask.sum()) and metrics.lag == 0
    assert any(not torch.equal(before[name], after) for name, after in model.weights().items())
