"""An actor whose rollouts come from agents, with tickets and weights over TCP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from echo_core import EchoTimeoutError, Queue, Server, Table
from echo_rl.engine import Model
from echo_rl.rollouts import RolloutSchema
from echo_rl.rollouts.actor import run_actor
from echo_rl.rollouts.records import result_example, rows
from echo_rl.rollouts.ticket_table import TicketTable
from echo_rl.rollouts.tickets import Ticket, Tickets
from echo_rl.serving import ApiError, Endpoint, Session, SessionCollector

from .sessions_kit import CONFIG, chat, engine, say

SCHEMA = RolloutSchema(group=2, most=1024)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(engine()) as running:
        yield running


def attempt(session: Session) -> float:
    said: list[dict[str, Any]] = []
    for turn in range(2):
        say(session, said, f"turn {turn}", max_tokens=6)
    return float(session.attempt)


def given(version: int) -> Any:
    return SimpleNamespace(version=version, params={name: tensor.numpy() for name, tensor in Model.random(CONFIG, seed=version, scale=0.3).weights.items()})


@pytest.mark.needs("echo-tcp")
def test_tickets_become_groups_of_the_version_that_they_ask_for(endpoint: Endpoint) -> None:
    """The whole way: a ticket, its weights, the sessions of its agents, the record, the batch of the learner."""
    results = Table("rollouts", result_example(SCHEMA.example()), capacity=16, sampler="fifo", rate_limiter=Queue(16))
    with Server(tables=[results, TicketTable(4, lease=60.0).table()], batch_size=1, transport="tcp://127.0.0.1:0") as server:
        worked: list[Any] = []
        collector = SessionCollector(endpoint, SCHEMA, attempt, seed=1)
        actor = threading.Thread(target=lambda: worked.append(run_actor(server.address, SCHEMA.example(), collector, timeout=60)))
        actor.start()
        tickets, table = Tickets(batch=2, eta=0), server.table("rollouts")
        for version in (1, 2):
            server.publish(given(version).params, version=version)
            TicketTable.offer(server, tickets.issue(lambda number: number + 100))
            while (groups := tickets.take()) is None:
                (record,) = rows(table.sample(1, 120), SCHEMA.example())
                assert tickets.arrive(int(record["ticket"]), record) and int(record["version"]) == version
                assert int(record["task"]) == int(record["ticket"]) + 100
                assert record["rewards"].tolist() == [0, 1] and record["turn_counts"].tolist() == [2, 2]
                assert set(record["versions"][record["mask"]].tolist()) == {version} and int(record["mask"].sum()) == 2 * 2 * 6
            assert len(groups) == 2
            tickets.updated()
    actor.join(60)
    assert worked[0].tickets >= 3 and worked[0].version == 2  # the job may end before the last ticket is done
    assert endpoint.sessions.all() == []


def test_the_same_seed_gives_the_same_rollouts(endpoint: Endpoint) -> None:
    first, second = (SessionCollector(endpoint, SCHEMA, attempt, seed=5).collect([Ticket(n, 7, 1)], given(1))[0] for n in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first if name != "logprobs")
    np.testing.assert_allclose(first["logprobs"], second["logprobs"], atol=1e-4)
    assert not np.array_equal(first["tokens"], SessionCollector(endpoint, SCHEMA, attempt, seed=6).collect([Ticket(2, 7, 1)], given(1))[0]["tokens"])


@pytest.mark.parametrize("reward", [float("nan"), None, "high", RuntimeError("the environment has failed")])
def test_an_attempt_that_fails_leaves_no_group(endpoint: Endpoint, reward: Any) -> None:
    """An environment that raises, and a reward that is no number."""

    def fails(session: Session) -> float:
        attempt(session)
        if session.attempt == 1 and isinstance(reward, Exception):
            raise reward
        return 1.0 if session.attempt == 0 else reward

    with pytest.raises((ApiError, RuntimeError), match="reward must be a finite number|has no reward|the environment has failed"):
        SessionCollector(endpoint, SCHEMA, fails).collect([Ticket(0, 7, 1)], given(1))[0]
    assert endpoint.sessions.all() == []


def test_an_attempt_that_hangs_is_named(endpoint: Endpoint) -> None:
    """Its session has ended, so its agent can do nothing more."""
    hangs, seen = threading.Event(), []

    def hang(session: Session) -> float:
        if session.attempt == 1:
            hangs.wait(60)
            seen.append(chat(session, [{"role": "user", "content": "late"}])[0])
        return attempt(session)

    with pytest.raises(EchoTimeoutError, match=r"the attempts \[(0, )?1\] at task 7 did not end within 2"):
        SessionCollector(endpoint, SCHEMA, hang, timeout=2.0).collect([Ticket(0, 7, 1)], given(1))[0]
    assert endpoint.sessions.all() == []
    hangs.set()
    for thread in threading.enumerate():
        if thread.name == "echo-rl-attempt-1":
            thread.join(60)
    assert seen == [403]
