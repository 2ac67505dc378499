"""Slices of episodes that are chosen when they are sampled, against every slice there is, written down one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_core import ConfigError, FrameStack, Server, Slices, StepSample, Table
from echo_core.wire.identity import client_number, new_client_id
from echo_replay.steps.steps import NOTE

pytestmark = pytest.mark.needs("echo-samplers")

STEP = {"obs": np.zeros(2, np.float32), "reward": np.float32(0)}


def serve(items: Slices, capacity: int = 500, **more: Any) -> Server:
    options = {"sampler": "uniform", "seed": 5, **more}
    return Server(tables=[Table("steps", STEP, capacity=capacity, items=items, **options)], batch_size=8)


def episode(writer: Any, start: int, length: int, end: str | None = "terminated", stream: int = 0) -> None:
    shows = np.arange(start, start + length, dtype=np.float32)
    writer.send_batch({"obs": np.repeat(shows, 2).reshape(-1, 2), "reward": shows}, stream=stream, ends=[None] * (length - 1) + [end])


@dataclass
class Episode:
    steps: list[tuple[int, int]] = field(default_factory=list)  # (number in the table, what the step shows)
    ends: int = 0


@dataclass
class Model:
    capacity: int
    items: Slices
    stack: int
    tail: int = 0
    at: int = 0
    episodes: list[Episode] = field(default_factory=list)
    open: dict[tuple[int, int], Episode] = field(default_factory=dict)

    @property
    def head(self) -> int:
        return max(0, self.tail - self.capacity)

    def claim(self, wanted: int) -> int:
        needed = (self.stack - 1 + self.items.length) * (len(self.open) + 1)  # these steps, and half of the table, must not be under a claim
        most = self.capacity - min(max(needed, self.capacity // 2), self.capacity - 1)
        n = min(wanted, self.capacity - self.tail % self.capacity, most)
        self.tail += n
        self.open = {key: episode for key, episode in self.open.items() if episode.steps[-1][0] >= self.head}
        return n

    def put(self, key: tuple[int, int], shows: int, flag: int) -> None:
        number, self.at = self.at, self.at + 1
        if not flag & NOTE:
            if key not in self.open:
                self.open[key] = Episode()
                self.episodes.append(self.open[key])
            self.open[key].steps.append((number, shows))
        if flag:
            self.end(key, flag & 3)

    def end(self, key: tuple[int, int], how: int) -> None:
        if key in self.open:
            self.open.pop(key).ends = how

    def slices(self) -> dict[tuple[Any, ...], float]:
        """Every slice as what its batch shows, with the probability with which it is drawn."""
        need = 1 if self.items.pad else self.items.length
        of: list[list[tuple[Any, ...]]] = []
        for episode in self.episodes:
            left = [shows for number, shows in episode.steps if number >= self.head]
            lowest = self.stack - 1 if len(left) < len(episode.steps) else 0
            shown = []
            for start in range(lowest, len(left) - need + 1):
                steps = range(start, min(start + self.items.length, len(left)))
                frames = tuple(tuple(left[max(0, i - k)] for k in reversed(range(self.stack))) for i in steps)
                end = episode.ends if steps[-1] == len(left) - 1 else 0
                shown.append((frames, end))
            if shown:
                of.append(shown)
        total = sum(map(len, of))
        self.listed = len(of)
        if self.items.by == "steps":
            return {one: 1 / total for shown in of for one in shown}
        return {one: 1 / len(of) / len(shown) for shown in of for one in shown}


def shown(sample: StepSample, i: int) -> tuple[Any, ...]:
    obs = sample.batch["obs"][i][sample.mask[i]]
    np.testing.assert_array_equal(obs[..., 0], obs[..., 1])
    np.testing.assert_array_equal(sample.batch["obs"][i][~sample.mask[i]], 0)
    obs = obs[..., 0] if obs.ndim == 3 else obs[..., :1]
    ends = sample.ends[i][sample.mask[i]]
    assert not ends[:-1].any()
    return tuple(tuple(int(frame) for frame in frames) for frames in obs), int(ends[-1])


def compare(server: Server, model: Model) -> None:
    slices = model.slices()
    table = server.table()
    assert len(table) == model.listed and table.stats()["streams"] == len(model.open)
    if not slices:
        return
    sample = table.sample(32, timeout=5)
    for i in range(32):
        assert slices[shown(sample, i)] == pytest.approx(sample.probabilities[i])
    first, here = table.peek(table.keys())
    assert here.all() and all(shown(first, i) in slices for i in range(len(table)))


operations = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 1), st.sampled_from([0] * 6 + [1, 2, 3, NOTE | 2])),
        st.tuples(st.just("burst"), st.integers(0, 1), st.integers(0, 1), st.integers(2, 90)),
        st.tuples(st.just("kill"), st.integers(0, 1), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.integers(0, 4)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(
    items=st.builds(Slices, length=st.integers(1, 5), by=st.sampled_from(["steps", "episodes"]), pad=st.booleans()),
    stack=st.integers(1, 3), capacity=st.integers(8, 200), operations=operations,
)
def test_what_is_drawn_is_a_slice_with_its_probability(
    items: Slices, stack: int, capacity: int, operations: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = Table("steps", STEP, capacity=capacity, items=items, stack=FrameStack(stack), sampler="uniform")
    server, model = Server(tables=[made], batch_size=4), Model(capacity, items, stack)
    ids, sent, show = [new_client_id(), new_client_id()], Counter[tuple[int, int]](), 0
    for what, client, stream, number in operations:
        key = (client, stream)
        if what == "kill":
            server.table().end_streams(ids[client])
            for mine in [one for one in model.open if one[0] == client]:
                model.end(mine, 2)
        elif what == "restart":
            if number:
                continue  # seldom: what is written is forced onto the disk
            folder = tmp_path_factory.mktemp("checkpoint")
            before = server.table().keys()
            server.checkpoint(folder)
            server = Server(tables=[made], batch_size=4).restore(folder)
            np.testing.assert_array_equal(server.table().keys(), before)
        else:
            flags = [0] * number if what == "burst" else [number]
            marks = [[client_number(ids[client]) << 16 | stream, sent[key] + i << 8 | flag] for i, flag in enumerate(flags)]
            sent[key] += len(flags)
            shows = np.arange(show + 1, show + len(flags) + 1, dtype=np.float32)
            show += len(flags)
            steps = {"obs": np.repeat(shows, 2).reshape(-1, 2), "reward": shows}
            server.table().submit_batch({"echo": np.array(marks, np.uint64), "step": steps})
            claimed = 0
            for i, flag in enumerate(flags):
                if i == claimed:
                    claimed += model.claim(len(flags) - i)
                model.put(key, int(shows[i]), flag)
        compare(server, model)


@pytest.mark.parametrize("by", ["steps", "episodes"])
def test_slices_are_drawn_as_often_as_they_should(by: str) -> None:
    server = serve(Slices(4, by=by))
    writer = server.table().writer()
    lengths = [200, 4, 3, 50, 150]
    for i, length in enumerate(lengths):
        episode(writer, 1000 * i, length, stream=i, end="terminated" if i < 4 else None)  # the last one goes on
    n = 40_000
    sample = server.sample(timeout=5, n=n)
    starts = sample.batch["obs"][:, 0, 0].astype(int)
    assert sample.mask.all() and not (starts // 1000 == 2).any()
    held = np.array([max(0, length - 3) for length in lengths])
    per_slice = held / held.sum() if by == "steps" else (held > 0) / (held > 0).sum()
    expected = np.concatenate([np.full(count, n * p / count) for count, p in zip(held, per_slice) if count])
    drawn = Counter(starts.tolist())
    seen = np.array([drawn[1000 * i + j] for i, count in enumerate(held) for j in range(count)])
    chi2 = float(((seen - expected) ** 2 / expected).sum())
    assert chi2 < len(seen) + 5 * np.sqrt(2 * len(seen))
    np.testing.assert_allclose(sample.probabilities, (expected / n)[[_index(held, start) for start in starts]])


def _index(held: np.ndarray, start: int) -> int:
    return int(held[: start // 1000].sum()) + start % 1000


def test_episodes_have_keys_and_priorities() -> None:
    server = serve(Slices(2, by="episodes"), sampler={"type": "prioritized", "alpha": 1.0})
    table = server.table()
    for i in range(3):
        episode(table.writer(), 100 * i, 10)
    keys = table.keys()
    assert len(keys) == 3
    table.update_priorities(keys, [1e-9, 1e6, 1e-9])
    sample = server.sample(timeout=5)
    assert (sample.keys == keys[1]).all() and (sample.batch["obs"][:, 0, 0] // 100 == 1).all()
    assert table.delete(keys[1:2]) == 1
    assert (server.sample(timeout=5).batch["obs"][:, 0, 0] // 100 != 1).all()


def test_a_deleted_episode_is_not_drawn_and_does_not_come_back() -> None:
    server = serve(Slices(2), capacity=60)
    table = server.table()
    writer = table.writer()
    episode(writer, 100, 10, end=None)
    episode(writer, 200, 10, stream=1)
    table.delete(table.keys()[:1])
    episode(writer, 110, 10, end=None)
    for start in (300, 400, 500):  # rows of the table of items are used again, and steps overwritten
        batch = server.sample(timeout=5, n=64).batch["obs"]
        assert set(np.unique(batch // 100).astype(int)) <= {2, 3, 4, 5}
        episode(writer, start, 20, stream=2)
    assert len(table) == len(set((server.sample(timeout=5, n=256).batch["obs"][:, 0, 0] // 100).astype(int).tolist()))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Slices(0), "length"),
        (lambda: Slices(4, by="frames"), "'steps' or 'episodes'"),
        (lambda: Slices(4, pad=None), "pad"),
        (lambda: serve(Slices(4), sampler="prioritized"), "needs sampler='uniform'"),
        (lambda: serve(Slices(4), max_times_sampled=1), "no max_times_sampled"),
    ],
)
def test_what_cannot_work_is_refused_when_made(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()
