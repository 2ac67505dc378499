"""Tables of items over steps in one process: how they wait, what they refuse, and that no batch is ever torn."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import (
    CheckpointError,
    Client,
    ConfigError,
    FrameStack,
    MinSize,
    NStep,
    Queue,
    SampleToInsertRatio,
    Sequences,
    Server,
    Slices,
    Steps,
    Table,
)
from echo_core.errors import EchoError, EchoTimeoutError, SpecError
from echo_core.sampler import Keys, Priorities, Sampler

pytestmark = pytest.mark.needs("echo-samplers")

STEP = {"obs": np.zeros(2, np.float32), "reward": np.float32(0)}


def step(shows: float) -> dict[str, Any]:
    return {"obs": np.full(2, shows, np.float32), "reward": np.float32(0.5 * shows)}


def serve(items: Any, capacity: int = 1000, batch_size: int = 4, **more: Any) -> Server:
    options = {"sampler": "uniform", "seed": 3, **more}
    return Server(tables=[Table("steps", STEP, capacity=capacity, items=items, **options)], batch_size=batch_size)


def episode(writer: Any, start: int, length: int, end: str = "terminated", stream: int = 0) -> None:
    for i in range(length):
        writer.send(step(start + i), end=end if i == length - 1 else None, stream=stream)


def test_windows_in_a_batch() -> None:
    server = serve(Sequences(length=4, period=2, burn_in=2))
    episode(server.table().writer(), 1, 7)
    sample = server.sample(timeout=5, n=200)
    batch, info = sample
    assert batch["obs"].shape == (200, 6, 2) and batch["reward"].shape == sample.mask.shape == sample.ends.shape == (200, 6)
    assert sample.mask.dtype == np.bool_ and info.store_size == 3
    windows = {tuple(row) for row in batch["obs"][..., 0].astype(int).tolist()}
    # The burn-in of the first lies before the episode, the last one is cut short by its end.
    assert windows == {(0, 0, 1, 2, 3, 4), (1, 2, 3, 4, 5, 6), (3, 4, 5, 6, 7, 0)}
    np.testing.assert_array_equal(sample.mask, batch["obs"][..., 0] > 0)
    np.testing.assert_array_equal(sample.ends == 1, batch["obs"][..., 0] == 7)
    batch["obs"][:] = -1  # it is ours
    assert server.sample(timeout=5).batch["obs"].min() >= 0
    server.close()
    assert server.sample(timeout=5) is None


def test_one_step_of_each_environment_and_many_of_one() -> None:
    server = serve(NStep(2, gamma=0.5))
    writer = server.table().writer()
    for i in range(5):
        shows = np.arange(3, dtype=np.float32) * 100 + i
        ends = None if i < 4 else ["terminated", "truncated", None]
        writer.send_batch({"obs": np.repeat(shows, 2).reshape(3, 2), "reward": shows}, ends=ends)
    assert len(server.table()) == 5 + 4 + 3
    many = np.arange(4, dtype=np.float32) + 300
    writer.send_batch({"obs": np.repeat(many, 2).reshape(4, 2), "reward": many}, stream=3, ends=[None, None, None, "boundary"])
    sample, _ = server.table().peek(server.table().keys()[-3:])
    assert sample.batch["obs"][:, 0].tolist() == [300, 301, 302] and sample.next["obs"][:, 0].tolist() == [302, 303, 303]
    np.testing.assert_allclose(sample.returns, [300 + 150.5, 301 + 151, 302])
    wrong = {"2 ends": {"ends": [None]}, "none twice": {"streams": [1, 1]}, "65535": {"stream": -1}}
    wrong["either"] = {"stream": 0, "streams": [1, 2]}
    for why, arguments in wrong.items():
        with pytest.raises(ValueError, match=why):
            writer.send_batch({"obs": np.zeros((2, 2), np.float32), "reward": np.zeros(2, np.float32)}, **arguments)
    with pytest.raises(ValueError, match="'boundary'"):
        writer.send(step(1), end="done")
    with pytest.raises(ValueError, match="step of its own"):
        writer.end_episode("boundary")
    with pytest.raises(SpecError, match="obs"):
        writer.send({"obs": np.zeros(3, np.float32), "reward": np.float32(0)}, stream=2)
    assert server.stats()["table/steps/steps"] == 19  # nothing of these was taken, and stream 2 goes on
    writer.send(step(205), stream=2)
    assert len(server.table()) == 16 and server.stats()["table/steps/episodes"] == 3


def test_gaps_in_a_stream_end_its_episode() -> None:
    server = serve(NStep(1))
    table = server.table()
    for number in (0, 1, 2, 5, 6):
        table.submit({"echo": np.array([1 << 16, number << 8], np.uint64), "step": step(number)})
    sample, _ = table.peek(table.keys())
    assert sample.batch["obs"][:, 0].tolist() == [0, 1, 5] and sample.next["obs"][:, 0].tolist() == [1, 2, 6]
    assert table.stats()["truncated"] == 1


@pytest.mark.parametrize("items", [NStep(1), Sequences(4), Slices(3)])
def test_an_open_episode_that_was_overwritten_is_counted(items: Any) -> None:
    table = serve(items, capacity=50).table()
    slow, quick = table.writer(), table.writer()
    for i in range(10):
        slow.send(step(i))
    assert (table.stats()["streams"], table.stats()["truncated"]) == (1, 0)
    for i in range(60):
        quick.send(step(i))
    assert (table.stats()["streams"], table.stats()["episodes"], table.stats()["truncated"]) == (1, 1, 1)
    slow.send(step(10))
    assert (table.stats()["streams"], table.stats()["truncated"]) == (2, 1)


def test_items_have_keys_and_priorities() -> None:
    server = serve(NStep(1), sampler="prioritized")
    table = server.table()
    episode(table.writer(), 1, 10)
    keys = table.keys()
    assert len(keys) == 10 and table.top(1)[1] == pytest.approx(1)
    assert table.update_priorities(keys, np.where(keys == keys[6], 1e6, 1e-6)) == 0
    sample = server.sample(timeout=5)
    assert (sample.keys == keys[6]).all() and (sample.batch["obs"] == 7).all() and sample.weights.max() == 1
    assert table.delete(keys[5:]) == 5 and len(table) == 5
    assert table.update_priorities(keys, np.ones(10)) == 5
    _, here = table.peek(keys)
    assert here.tolist() == [True] * 5 + [False] * 5
    episode(table.writer(), 1, 1200)  # over all of them
    assert len(table) == 1000 and not table.peek(keys)[1].any()


def test_a_full_table_of_items_gives_some_up_before_their_steps() -> None:
    server = serve(Sequences(1, max_items=8), sampler="prioritized", remover="min_heap")
    table = server.table()
    episode(table.writer(), 1, 8)
    keys = table.keys()
    table.update_priorities(keys, np.arange(8.0) + 1)
    episode(table.writer(), 9, 3)
    left = table.keys()
    assert len(left) == 8 and set(keys[3:].tolist()) <= set(left.tolist()) and table.steps_held == 11
    assert table.stats()["evicted"] == 3


class Newest(Sampler):
    """The items that came last."""

    storage = "replay"

    @dataclass(frozen=True)
    class Options:
        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: list[int] = []

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        self.held += keys.tolist()

    def delete(self, keys: Keys) -> None:
        gone = set(keys.tolist())
        self.held = [key for key in self.held if key not in gone]

    def update(self, keys: Keys, priorities: Priorities) -> None:
        pass

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        return np.array((self.held * n)[-n:], np.uint64), np.ones(n)

    def __len__(self) -> int:
        return len(self.held)

    def state(self) -> dict[str, Any]:
        return {"held": np.array(self.held, np.uint64)}

    def restore(self, state: Any) -> None:
        self.held = state["held"].tolist()


def test_a_sampler_written_in_python() -> None:
    server = serve(NStep(1), capacity=16, sampler=Newest(capacity=16))
    writer = server.table().writer()
    for start in range(1, 100, 5):
        episode(writer, start, 5)
        assert server.sample(timeout=5).batch["obs"][-1, 0] == start + 4


# ---- who waits for whom ---------------------------------------------------------------------------------------------------------


def test_a_learner_waits_for_items_not_for_steps() -> None:
    server = serve(Sequences(5), rate_limiter=MinSize(2), batch_size=2)
    writer = server.table().writer()
    for i in range(6):
        writer.send(step(i))
    with pytest.raises(EchoTimeoutError, match="1 items"):
        server.sample(timeout=0.05)
    got: list[Any] = []
    learner = threading.Thread(target=lambda: got.append(server.sample(timeout=30)))
    learner.start()
    time.sleep(0.05)
    writer.end_episode()  # the second window is cut short, and complete by that
    learner.join(30)
    assert got[0].mask.shape == (2, 5)


def test_workers_wait_for_the_limiter_of_the_items() -> None:
    server = serve(NStep(1), sampler="fifo", rate_limiter=SampleToInsertRatio(1.0, 4, 4.0), batch_size=4, capacity=64)
    writer = server.table().writer()
    with pytest.raises(EchoTimeoutError, match="samples slower") as caught:
        for i in range(64):
            writer.send(step(i), timeout=0.05)
    assert len(server.table()) <= 9 and "steps" in str(caught.value)
    before = server.stats()["table/steps/steps"]
    waiting = threading.Thread(target=writer.send, args=(step(before),))
    waiting.start()
    assert server.sample(timeout=5) is not None
    waiting.join(30)
    assert not waiting.is_alive() and server.stats()["table/steps/steps"] == before + 1
    for i in range(3):  # what timed out was not taken, and did not tear the episode
        writer.send(step(before + 1 + i), timeout=5)
    assert server.stats()["table/steps/episodes"] == 0


def test_every_item_of_a_queue_exactly_once() -> None:
    total, seen = 200, []
    # Room for all steps: those of an open episode are no item yet, and go when others overwrite them while its worker sleeps.
    server = serve(Sequences(3), sampler="fifo", rate_limiter=Queue(16), batch_size=4, capacity=2 * total * 3)

    def work(stream: int) -> None:
        writer = server.table().writer()
        for i in range(total):
            episode(writer, (stream * total + i) * 3 + 1, 3)

    workers = [threading.Thread(target=work, args=(stream,)) for stream in range(2)]
    for worker in workers:
        worker.start()
    while len(seen) < 2 * total:
        sample = server.sample(timeout=30)
        assert (np.diff(sample.batch["obs"][..., 0], axis=1) == 1).all()
        seen += sample.batch["obs"][:, 0, 0].tolist()
    for worker in workers:
        worker.join(30)
    assert sorted(seen) == [1 + 3 * i for i in range(2 * total)]


def test_no_batch_is_torn_while_writers_overwrite(soak_seconds: float) -> None:
    """Steps that check themselves, in a table that is overwritten again and again."""
    size = 3000
    example = {"number": np.int64(0), "frame": np.zeros(size, np.int64)}
    items = Sequences(6, period=2, burn_in=1)
    made = Table("steps", example, capacity=150, items=items, stack=FrameStack(2, leaf="number"), sampler="uniform")
    server = Server(tables=[made], batch_size=16)
    stop = threading.Event()

    def work(stream: int) -> None:
        writer, number = server.table().writer(), stream << 32
        frames = np.zeros((7, size), np.int64)
        while not stop.is_set():
            numbers = np.arange(number, number + 7)
            frames[:] = numbers[:, None]
            writer.send_batch({"number": numbers, "frame": frames}, stream=0, ends=[None] * 6 + ["terminated" if number % 5 == 0 else None])
            number += 7

    workers = [threading.Thread(target=work, args=(stream,)) for stream in (1, 2)]
    for worker in workers:
        worker.start()
    try:
        until = time.monotonic() + soak_seconds
        while time.monotonic() < until:
            sample = server.sample(timeout=30)
            frame, number, mask = sample.batch["frame"], sample.batch["number"], sample.mask
            assert (frame == frame[..., :1]).all()
            np.testing.assert_array_equal(frame[..., 0], number[..., -1])
            follows = mask[:, 1:] & mask[:, :-1]
            assert (np.diff(number[..., -1], axis=1)[follows] == 1).all()
            assert ((number[..., 1] - number[..., 0])[mask] <= 1).all()
            assert mask.any(axis=1).all()
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)
        server.close()


# ---- checkpoints ----------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_large_table_beside_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are overwritten before their turn are left out, with the items that have them."""
    server = serve(Sequences(4, period=2), capacity=400)
    table = server.table()
    writer = table.writer()
    for i in range(400):
        writer.send(step(i))
    real = type(table).step_rows
    late: list[int] = []

    def read(leaf: int, number: int, n: int) -> Any:
        if not late:
            late.append(number)
            for i in range(100):
                writer.send(step(400 + i))
        return real(table, leaf, number, n)

    from echo_core import step_checkpoint

    class Slow:
        """The table, whose writers go on while its steps are read."""

        step = table.step
        step_rows = staticmethod(read)

    save = step_checkpoint.save_steps
    monkeypatch.setattr("echo_core.checkpoint.save_steps", lambda folder, index, _, *rest: save(folder, index, Slow, *rest))
    keys = table.keys()
    server.checkpoint(tmp_path)
    again = serve(Sequences(4, period=2), capacity=400).restore(tmp_path)
    restored = again.table()
    left = restored.keys()
    assert 0 < len(left) < len(keys) and set(left.tolist()) < set(keys.tolist())
    sample, here = restored.peek(left)
    assert here.all() and (np.diff(sample.batch["obs"][..., 0], axis=1) == 1).all() and sample.batch["obs"].min() == 100
    again.sample(timeout=5)
    server.close()


def test_a_checkpoint_of_other_items_is_refused(tmp_path: Path) -> None:
    server = serve(Sequences(4, period=2))
    episode(server.table().writer(), 1, 9)
    server.checkpoint(tmp_path)
    for other, what in ((serve(Sequences(4, period=1)), "another items"), (serve(Sequences(4, period=2), capacity=999), "another")):
        with pytest.raises(CheckpointError, match=what):
            other.restore(tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    path = folder / "0.step.0"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match=r"0\.step\.0 is corrupted"):
        serve(Sequences(4, period=2)).restore(tmp_path)


# ---- what is refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Sequences(0), "length must be a whole number from 1"),
        (lambda: Sequences(4, period=0), "period"),
        (lambda: Sequences(4, burn_in=-1), "burn_in"),
        (lambda: Sequences(4, pad=1), "pad must be True or False"),
        (lambda: Sequences(4, max_items=0), "max_items"),
        (lambda: NStep(0), "n must be"),
        (lambda: NStep(1, gamma=1.5), "gamma must be from 0 to 1"),
        (lambda: FrameStack(0), "n must be"),
        (lambda: FrameStack(4, fill="ones"), "'first' or 'zeros'"),
        (lambda: serve(NStep(1, reward="rewards")), "'steps': NStep: reward 'rewards' is none of .*did you mean 'reward'"),
        (lambda: serve(NStep(1), stack=FrameStack(2, "reward")), "cannot be stacked"),
        (lambda: serve(NStep(1), stack=FrameStack(2, "pixels")), "leaf 'pixels' is none"),
        (lambda: serve(NStep(1), stack=[FrameStack(2), FrameStack(3)]), "two FrameStacks"),
        (lambda: serve(NStep(1), stack="obs"), "stack must be FrameStack"),
        (lambda: serve("nstep"), "items must be"),
        (lambda: serve(Sequences(80), capacity=79), "fewer than the 80 of one item"),
        (lambda: Table("t", STEP, capacity=4, sampler="uniform", stack=FrameStack(2)), "give the table items="),
        (lambda: Table("t", {"reward": np.int32(0)}, capacity=4, sampler="uniform", items=NStep(1)), "float32 or float64"),
        (lambda: serve(Sequences(4, max_items=2), rate_limiter=MinSize(3)), "never be satisfied"),
    ],
)
def test_what_cannot_work_is_refused_when_made(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_steps_have_no_priorities_and_are_not_changed() -> None:
    table = serve(NStep(1)).table()
    sample = {"echo": np.zeros(2, np.uint64), "step": step(1)}
    with pytest.raises(ValueError, match="no priority"):
        table.submit(sample, priority=1.0)
    with pytest.raises(ValueError, match="no priorities"):
        rows = {"obs": np.zeros((1, 2), np.float32), "reward": np.zeros(1, np.float32)}
        table.submit_batch({"echo": np.zeros((1, 2), np.uint64), "step": rows}, priorities=[1.0])
    with pytest.raises(EchoError, match="share their steps"):
        table.update_items([1], {"obs": np.zeros((1, 2), np.float32)})
    assert table.stats()["steps"] == 0


def test_memory_beside_storing_items_whole() -> None:
    """R2D2's windows: 80 steps that begin every 40. Whole they would be stored twice, with their burn-in two and a half times."""
    step_bytes, capacity = 84 * 84, 2000
    frame = {"frame": np.zeros((84, 84), np.uint8)}
    items = Sequences(80, period=40, burn_in=20, pad=False)
    with Server(tables=[Table("steps", frame, capacity=capacity, items=items, sampler="uniform")], batch_size=2) as server:
        table = server.table()
        table.writer().send_batch({"frame": np.zeros((capacity, 84, 84), np.uint8)}, stream=0)
        shared = capacity * step_bytes + table.overhead_bytes
        assert len(table) == (capacity - 80) // 40 + 1
        assert shared < 0.45 * len(table) * items.window * step_bytes
        assert table.overhead_bytes < 20 * capacity


@pytest.mark.needs("echo-tcp")
def test_clients_of_tables_of_steps() -> None:
    steps = pickle.loads(pickle.dumps(Steps(STEP)))
    plain = Table("plain", STEP, capacity=10, sampler="uniform")
    made = Table("steps", STEP, capacity=100, items=NStep(1), sampler="uniform")
    with Server(tables=[made, plain], batch_size=2, transport="tcp://127.0.0.1:0") as server:
        with Client(server.address, steps, tables={"plain": STEP}) as client:
            client.send(step(1))
            client.send(step(2), table="plain")
            client.send(step(3), end="terminated")
            client.wait()
            assert len(server.table("plain")) == 1 and len(server.table("steps")) == 2
            with pytest.raises(ConfigError, match="only tables of steps"):
                client.end_episode(table="plain")
            with pytest.raises(ConfigError, match="no insert"):
                client.table().insert({"obs": np.zeros((1, 2)), "reward": np.zeros(1)})
            with pytest.raises(ConfigError, match="no order"):
                client.reserve()
            with pytest.raises(EchoError, match="takes steps"):
                client.request("insert", {"n": 1}, bytes(28))
            with pytest.raises(EchoError, match="none of steps"):
                client.request("layout", {"table": "plain"})
            copy = pickle.loads(pickle.dumps(client))
            copy.send(step(4))
            copy.wait()
            assert server.stats()["table/steps/streams"] == 1
            copy.close()
        with pytest.raises(SpecError, match="echo"):
            Client(server.address, STEP)


@pytest.mark.needs("echo-tcp")
@pytest.mark.parametrize("client_id", ["0" * 31 + "1", "f" * 32])
def test_streams_are_numbered_by_any_integer(client_id: str) -> None:
    table = Table("steps", STEP, capacity=100, items=NStep(1), sampler="uniform")
    server = Server(tables=[table], batch_size=2, transport="tcp://127.0.0.1:0").start()
    with server, Client(server.address, Steps(STEP), table="steps", client_id=client_id) as client:
        for kind in (int, np.int64, np.int32, np.uint8, np.uint64):
            client.send(step(1), stream=kind(3))
            client.send(step(2), stream=kind(3))
            client.end_episode(stream=kind(3))
        client.wait()
        assert len(server.table()) == 5  # one a kind: their streams are the same one


@pytest.mark.needs("echo-tcp")
def test_items_larger_than_a_message() -> None:
    example = {"frame": np.zeros((512, 512), np.uint8), "number": np.int64(0)}
    tables = [
        Table("windows", example, capacity=12, items=Sequences(5, period=2), sampler="prioritized", rate_limiter=MinSize(2)),
        Table("slices", example, capacity=8, items=Slices(5), sampler="uniform"),
    ]
    server = Server(tables=tables, batch_size=1, transport="tcp://127.0.0.1:0")
    with server, Client(server.start().address, Steps(example), tables={"slices": Steps(example)}) as client:
        for i in range(12):
            client.send({"frame": np.full((512, 512), i, np.uint8), "number": np.int64(i)}, end="terminated" if i == 11 else None)
        client.wait()
        sample = client.sample(3, timeout=30)
        assert sample.batch["frame"].shape == (3, 5, 512, 512) and sample.weights.max() == 1
        np.testing.assert_array_equal(sample.batch["frame"], np.broadcast_to(sample.batch["number"][..., None, None], (3, 5, 512, 512)))
        assert (np.diff(sample.batch["number"], axis=1)[sample.mask[:, 1:]] == 1).all()
        assert client.update_priorities(sample.keys, np.ones(3)) == 0
        gone = server.table().keys()[0]
        server.table().delete([gone])
        assert client.request("item", {"n": 8, "key": int(gone), "leaf": 1, "start": 0})[0] == {"gone": True}
        for wrong in ({"leaf": 9}, {"start": 33}, {"key": -1}, {"start": "0"}, {"n": 0}):
            with pytest.raises(EchoError):
                client.request("item", {"n": 8, "key": 1, "leaf": 1, "start": 0, **wrong})
        with pytest.raises(ConfigError, match="a message carries"):
            client.sample(1, table="slices")
