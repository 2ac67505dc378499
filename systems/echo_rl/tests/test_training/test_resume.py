"""Partial rollouts over a transport: an actor gets SIGTERM in the middle, and another one goes on with what it has made."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from echo_core import Client, EchoError, Server  # noqa: E402
from echo_rl import EchoRLTrainer, TrainingConfig  # noqa: E402
from echo_rl.core import ExecutionConfig  # noqa: E402
from echo_rl.models import TrainableTransformer  # noqa: E402
from echo_rl.rollouts import RolloutSchema  # noqa: E402
from echo_rl.rollouts.actor import HAND_BACK, PREFIX, Leave, run_actor  # noqa: E402
from echo_rl.rollouts.actor_process import ActorJob  # noqa: E402
from echo_rl.rollouts.partial_rollouts import episodes_of, read_prefix  # noqa: E402
from echo_rl.rollouts.records import result_example  # noqa: E402
from echo_rl.rollouts.text_policy import SmallModel, TextRules  # noqa: E402
from echo_rl.rollouts.ticket_table import NAME, TicketTable, example  # noqa: E402
from echo_rl.rollouts.tickets import Ticket, Tickets  # noqa: E402
from echo_rl.rollouts.token_collector import schema_of  # noqa: E402
from echo_rl.training.rollout_loop import RolloutLoop  # noqa: E402
from echo_rl.training.token_learner import TokenLearnerConfig  # noqa: E402
from echo_testing.processes import until  # noqa: E402

pytestmark = pytest.mark.needs("echo-tcp")
SMALL = SmallModel(layers=2, heads=2, width=32, inner=32, context=256, alphabet="abc:")


@pytest.fixture(autouse=True)
def _actors_find_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


def model(version: int) -> TrainableTransformer:
    return TrainableTransformer.random(SMALL.shape("abc:"), version, scale=0.3)


def weights(version: int) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in model(version).weights().items()}


def server(leaves: dict[str, Any], at_once: int = 1) -> Server:
    tables = [RolloutLoop.results(leaves, 64), TicketTable(8, lease=60.0, at_once=at_once).table()]
    return Server(tables=tables, batch_size=1, transport="tcp://127.0.0.1:0")


def actor(address: Any, rules: TextRules, index: int) -> subprocess.Popen[bytes]:
    job = ActorJob(str(address), "tokens", asdict(rules), ["odd_environments"])
    return subprocess.Popen([sys.executable, "-m", "echo_rl.rollouts.actor_process", job.to_json(), str(index)], stdin=subprocess.PIPE)


def check_logprobs(schema: RolloutSchema, packed: Any) -> set[int]:
    """Compute every token's log-probability again under the weights of its version. Return the versions."""
    full = schema.unpack(packed).with_prompts()
    found = set(full.versions[full.mask].tolist())
    for version in found:
        with torch.no_grad():
            scores = model(version).score(torch.from_numpy(full.tokens), torch.from_numpy(full.cu_seqlens), 1.0)
        own = full.mask & (full.versions == version)
        np.testing.assert_allclose(full.logprobs[own], scores.log_probs.numpy()[own], atol=1e-4)
    return found


def test_an_actor_that_gets_sigterm_hands_back_its_tokens_and_another_one_goes_on(tmp_path: Path) -> None:
    """Some rollouts are in the middle of an action then, and the environment of another one is."""
    gate = tmp_path / "gate"
    rules = TextRules("test-talk", 4, 3, options={"gate": str(gate)}, small=SMALL, max_new=20, slots=4, timeout=60.0, resume=True, eta=1)
    schema = schema_of(rules)
    with server(schema.example()) as learner:
        loop = RolloutLoop(learner, schema.example(), Tickets(1, 1), lambda number: number + 4)
        loop.publish(weights(1))
        with Client(learner.address, result_example(schema.example()), tables={NAME: example()}) as other:
            done = TicketTable.take(other, 60)
            leaving = actor(learner.address, rules, 0)
            until(Path(f"{gate}.waits").exists, "the actor is in the middle of its first group", 120)
            assert loop.tickets.arrive(done.tickets[0].number, {"version": np.int64(1)}) and TicketTable.done(other, done)
        assert len(loop.batch(60)) == 1
        loop.publish(weights(2))  # the actor has a ticket of version 1, whose group is trained by version 2
        leaving.send_signal(signal.SIGTERM)
        gate.touch()
        assert leaving.wait(120) == 0
        back = loop.tickets.outstanding[0]
        assert (back.number, back.part, back.version) == (1, 1, 1) and loop.tickets.handed_back == 1
        begun = episodes_of(read_prefix(back.prefix), schema)
        assert any(episode.open for episode in begun) and {version for episode in begun for version in episode.versions} == {1}
        with actor(learner.address, rules, 1) as staying:
            (group,) = loop.batch(120)
            record = group.rollouts
            assert group.ticket.number == 1 and record["version"] == 1 and record["anew"] == 0 and set(record["finish"]) == {0} and loop.ages == {0: 1, 1: 1}
            assert check_logprobs(schema, loop.packed([group])) == {1, 2}
            tokens = np.split(record["tokens"], np.cumsum(record["lengths"])[:-1])
            assert all(found[: len(episode.tokens)].tolist() == episode.tokens for found, episode in zip(tokens, begun, strict=True))
            learner.close()
            assert staying.wait(120) == 0
        assert loop.tickets.duplicates == 0
        for process in (leaving, staying):
            assert process.stdin is not None
            process.stdin.close()


@dataclass
class Seen:
    """A collector that notes its tickets."""

    tickets: list[Ticket] = field(default_factory=list)
    at_once = 2

    def collect(self, tickets: Sequence[Ticket], policy: Any, newer: Any) -> list[dict[str, Any]]:
        self.tickets += tickets
        return [{"x": np.float32(0)} for _ in tickets]


def test_copies_of_tickets_that_are_handed_back_or_done_are_not_worked_on() -> None:
    """An actor dies after it has handed back a ticket, and before it can say that its copy is done."""
    leaves, seen = {"x": np.float32(0)}, Seen()
    with server(leaves, at_once=2) as learner:
        loop = RolloutLoop(learner, leaves, Tickets(3, 0), at_once=2)
        loop.publish({"w": np.zeros(1)})
        with Client(learner.address, result_example(leaves), tables={NAME: example(2)}) as dying:
            assert [ticket.number for ticket in TicketTable.take(dying, 60).tickets] == [0, 1]
            dying.send({"x": np.float32(0), "ticket": np.int64(0), "version": np.int64(1)})
            dying.wait(60)
            dying.request(HAND_BACK, {"parts": [[1, 0, 3]]}, b"abc")
            for body, words in (({"parts": [[2, 0, 1]]}, "not that of the blob, 0 bytes"), ({"parts": [[2, -1, 0]]}, "a whole number, not -1")):
                with pytest.raises(EchoError, match=words):
                    dying.request(HAND_BACK, body)
            assert dying.request(PREFIX, {"tickets": [[0, 0], [1, 0], [1, 1], [2, 0]]})[0] == {"parts": [[0, 0], [None, 0], [1, 3], [0, 0]]}
        working = threading.Thread(target=run_actor, args=(learner.address, leaves, seen), kwargs={"leave": Leave()})
        working.start()
        groups = loop.batch(60)
        assert [group.ticket.number for group in groups] == [0, 1, 2] and loop.tickets.duplicates <= 1
        learner.close()
        working.join(60)
    numbers = sorted((ticket.number, ticket.part, ticket.prefix) for ticket in seen.tickets)
    assert numbers in ([(1, 1, b"abc"), (2, 0, b"")], [(0, 0, b""), (1, 1, b"abc"), (2, 0, b"")])  # the result of ticket 0 may not be drawn yet


def test_rollouts_of_a_policy_that_the_learner_has_lost_are_made_again() -> None:
    leaves, seen = {"x": np.float32(0)}, Seen()
    with server(leaves, at_once=2) as learner:
        loop = RolloutLoop(learner, leaves, Tickets(1, 0), at_once=2)
        loop.publish({"w": np.zeros(1)})
        with Client(learner.address, result_example(leaves), tables={NAME: example(2)}) as other:
            lent = TicketTable.take(other, 60)
            other.send({"x": np.float32(1), "ticket": np.int64(0), "version": np.int64(2)})
            other.wait(60)
            TicketTable.done(other, lent)
        working = threading.Thread(target=run_actor, args=(learner.address, leaves, seen))
        working.start()
        (group,) = loop.batch(60)
        assert group.rollouts["x"] == 0 and group.ticket.attempt == 1
        learner.close()
        working.join(60)


def test_a_run_goes_on_while_actors_leave_and_die() -> None:
    def look(figures: dict[str, Any]) -> None:
        if trainer.pids and figures["update"] in (2, 5, 8):
            os.kill(trainer.pids[0], signal.SIGKILL if figures["update"] == 5 else signal.SIGTERM)

    config = TrainingConfig(
        "test-talk",
        30 * 64,
        learning_starts=0,
        evaluation_frequency=10**9,
        save_frequency=10**9,
        num_actors=16,
        batch_size=16,
        group_size=4,
        algorithm="grpo",
        actor_processes=4,
        seed=5,
        eta=2,
        interrupt="resume",
        evaluation_episodes=4,
        model=SmallModel(layers=1, heads=2, width=16, inner=16, context=128),
        execution=ExecutionConfig(max_new_tokens=12, timeout=20.0),
        token_learner=TokenLearnerConfig(learning_rate=1e-3),
        imports=["odd_environments"],
        patience=120.0,
    )
    trainer = EchoRLTrainer(config, on_update=look)
    metrics = asyncio.run(trainer.train())
    assert metrics.updates >= 9 and sum(metrics.lags.values()) == metrics.updates * 4 and max(metrics.lags) <= 2
    assert metrics.anew == 0 and metrics.failed == 0
    assert metrics.duplicates <= 1, "only a kill between a result and its acknowledgement makes a ticket be done twice"
    assert max(figures.get("most_lag", 0) for figures in metrics.history) <= 2
