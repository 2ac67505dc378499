"""The loop over a transport with actor processes: they are killed, and the server is restarted, and still each batch is complete and no group too old."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import EchoError, EchoTimeoutError, Server, SpecError
from echo_rl.rollouts import records
from echo_rl.rollouts.actor import run_actor
from echo_rl.rollouts.ticket_table import TicketTable
from echo_rl.rollouts.tickets import Tickets
from echo_rl.training.fleet import Fleet, start_actors
from echo_rl.training.rollout_loop import RolloutLoop
from echo_testing.processes import until

sys.path.insert(0, str(Path(__file__).parent))

from actor_program import ROLLOUTS, Collector

pytestmark = pytest.mark.needs("echo-tcp")
PROGRAM = str(Path(__file__).with_name("actor_program.py"))
BATCH = 4


def server(address: str = "tcp://127.0.0.1:0", eta: int = 1) -> Server:
    return Server(tables=[RolloutLoop.results(ROLLOUTS, 64), TicketTable(BATCH * (1 + eta), lease=20.0, at_once=2).table()], batch_size=1, transport=address)


def fleet(address: Any, n: int = 3, seconds: float = 0.01) -> Fleet:
    return Fleet([sys.executable, PROGRAM, str(address), str(seconds)], n, restarts=50)


def weights(version: int) -> dict[str, Any]:
    return {"weight": np.full(3, version, np.float32)}


def train(loop: RolloutLoop, updates: int, tasks: list[int], each: Any = lambda: None) -> None:
    """Check each batch: its groups are new, complete, and made by weights that are recent enough."""
    for _ in range(updates):
        groups = loop.batch(timeout=120)
        version = loop.tickets.version
        assert len(groups) == BATCH
        for group in groups:
            made, rows = int(group.rollouts["version"]), group.rollouts["weight"]
            assert rows.shape == (group.ticket.number % 8, 3) and (rows == made).all() and group.ticket.version <= made <= version
            assert int(group.rollouts["task"]) == group.ticket.task == group.ticket.number + 500
            tasks.append(group.ticket.number)
        packed = loop.packed(groups)
        assert packed.batch["task"].tolist() == [group.ticket.task for group in groups]
        assert (
            np.diff(packed.offsets["row"]).tolist() == [group.ticket.number % 8 for group in groups]
            and len(packed.batch["weight"]) == packed.offsets["row"][-1]
        )
        loop.publish(weights(version + 1))
        each()
    assert len(set(tasks)) == len(tasks)


@pytest.mark.parametrize("eta", [0, 2])
def test_actors_are_killed_and_every_group_is_trained_once(eta: int) -> None:
    generator, tasks = random.Random(eta), []
    with server(eta=eta) as learner, fleet(learner.address) as actors:
        loop = RolloutLoop(learner, ROLLOUTS, Tickets(BATCH, eta), lambda number: number + 500, at_once=2)

        def kill() -> None:
            if generator.random() < 0.3 and (running := actors.pids):
                os.kill(generator.choice(running), signal.SIGKILL)

        loop.publish(weights(1))
        train(loop, 25, tasks, kill)
        actors.check()
        assert sum(loop.ages.values()) == 25 * BATCH and max(loop.ages) <= eta
        records, draws = loop.drawn
        assert records >= 25 * BATCH and draws < records, "several records come in one draw"


def test_the_server_is_restarted_and_the_loop_goes_on() -> None:
    tasks: list[int] = []
    first = server().start()
    address = str(first.address)
    with fleet(address) as actors:
        loop = RolloutLoop(first, ROLLOUTS, Tickets(BATCH, 1), lambda number: number + 500, at_once=2)
        loop.publish(weights(1))
        train(loop, 5, tasks)
        state = loop.state()
        first.close(restarting=True)
        with server(address) as second:
            again = RolloutLoop(second, ROLLOUTS, Tickets(BATCH, 1), lambda number: number + 500, at_once=2)
            again.restore(state)
            again.publish(weights(again.tickets.version))
            train(again, 10, tasks)
            assert sorted(tasks)[: 12 * BATCH] == list(range(12 * BATCH))  # none was left out; the last ones may still be on their way
            assert sum(again.ages.values()) == 15 * BATCH and max(again.ages) <= 1
        until(lambda: not actors.pids, "the actors end by themselves, because the job is over", 60)
        actors.check()
        assert actors.restarted == 0


def test_a_batch_that_is_late_says_what_is_missing() -> None:
    with server() as learner:
        loop = RolloutLoop(learner, ROLLOUTS, Tickets(BATCH, 1), at_once=2)
        loop.publish(weights(1))
        with pytest.raises(EchoTimeoutError, match=r"0 of 4 groups are there, and the results of tickets 0, 1, .* are missing .*; 0 actors are connected"):
            loop.batch(timeout=0.1)


def test_an_actor_of_another_version_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with server() as learner:
        loop = RolloutLoop(learner, ROLLOUTS, Tickets(BATCH, 1), at_once=2)
        loop.publish(weights(1))
        monkeypatch.setattr(records, "PROTOCOL", records.PROTOCOL + 1)
        words = r"this actor does not fit .* has echo-rl \d.*, protocol 2\..*'echo_rl_protocol_2'.*learner.*'echo_rl_protocol_1'.*Install the same echo-rl"
        with pytest.raises(SpecError, match=words):
            run_actor(learner.address, ROLLOUTS, Collector(), timeout=60)
        until(lambda: "echo_rl_protocol_" in caplog.text, "the learner says that it has refused the actor", 60)
        with pytest.raises(EchoTimeoutError, match="0 of 4 groups are there"):
            loop.batch(timeout=0.1)


def test_a_fleet_whose_actors_all_die_gives_up(capfd: pytest.CaptureFixture[str]) -> None:
    with Fleet([sys.executable, "-c", "raise SystemExit(3)"], 2, restarts=3) as actors:
        until(lambda: not actors.pids, "the fleet gives up", 60)
        with pytest.raises(EchoError, match=r"4 actors have died .* with exit code 3"):
            actors.check()


@pytest.mark.needs("echo-cluster")
def test_actors_run_where_the_configuration_says() -> None:
    tasks: list[int] = []
    config = {"cluster": {"via": "local", "workers": {"min": 2}}}
    with server() as learner, start_actors(["{python}", PROGRAM, str(learner.address), "0.01"], config=config) as actors:
        loop = RolloutLoop(learner, ROLLOUTS, Tickets(BATCH, 1), lambda number: number + 500, at_once=2)
        loop.publish(weights(1))
        train(loop, 5, tasks)
        actors.check()
