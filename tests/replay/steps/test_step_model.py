"""A table of items over steps against a model in plain Python: every item built from whole episodes, nothing shared and nothing clever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_tables import most_claimed

from echo_core import FrameStack, NStep, Sequences, Server, Spec, Table
from echo_core.wire.identity import client_number, new_client_id
from echo_replay.steps.step_layout import Layout
from echo_replay.steps.steps import NOTE

pytestmark = pytest.mark.needs("echo-samplers")

STEP = {"obs": np.zeros(2, np.float32), "reward": np.float32(0)}

@dataclass
class Episode:
    steps: list[tuple[int, int]] = field(default_factory=list)  # (number in the table, what the step shows)
    made: int = 0  # anchors below are done with
    ends: int = 0


@dataclass
class Item:
    episode: Episode
    anchor: int
    length: int
    first: int
    terminated: bool = False


@dataclass
class Model:
    """Steps show a number of their own as `obs` and, times 0.5, as `reward`."""

    capacity: int
    items: Sequences | NStep
    stack: FrameStack
    tail: int = 0  # numbers given out
    at: int = 0  # of them used
    live: list[Item] = field(default_factory=list)
    open: dict[tuple[int, int], Episode] = field(default_factory=dict)  # by client and stream
    ended: int = 0

    @property
    def head(self) -> int:
        return max(0, self.tail - self.capacity)

    def claim(self, wanted: int) -> int:
        """Rows side by side are taken at once, and what was in them goes; how many."""
        layout = Layout(Spec.from_example(STEP), self.items, self.stack)
        n = min(wanted, self.capacity - self.tail % self.capacity, most_claimed(self.capacity, layout.lookback + layout.forward, len(self.open)))
        self.tail += n
        self.live = [item for item in self.live if item.first >= self.head]
        for key, episode in list(self.open.items()):
            if episode.steps[-1][0] < self.head:
                del self.open[key]
                self.ended += 1  # truncated: what comes next begins another
        return n

    def send(self, client: int, stream: int, shows: int, end: int) -> None:
        episode = self.open.setdefault((client, stream), Episode())
        episode.steps.append((self.at, shows))
        self.at += 1
        forward = self.items.n + 1 if isinstance(self.items, NStep) else self.items.length
        if len(episode.steps) == episode.made + forward:
            self.make(episode, forward)
        if end:
            self.finish((client, stream), end)

    def note(self, client: int, stream: int, end: int) -> None:
        self.at += 1
        self.finish((client, stream), end)

    def kill(self, client: int) -> int:
        keys = sorted(key for key in self.open if key[0] == client)
        for key in keys:
            self.finish(key, 2)
        return len(keys)

    def finish(self, key: tuple[int, int], end: int) -> None:
        episode = self.open.pop(key, None)
        if episode is None:
            return
        self.ended += 1
        episode.ends = end
        count = len(episode.steps)
        if isinstance(self.items, NStep):
            while episode.made < (count if end == 1 else count - 1):
                self.make(episode, count - episode.made, end == 1)
        elif self.items.pad:
            period, length = self.items.period, self.items.length
            while episode.made < count and (episode.made == 0 or episode.made - period + length < count):
                self.make(episode, min(length, count - episode.made))

    def make(self, episode: Episode, length: int, terminated: bool = False) -> None:
        lookback = self.stack.n - 1 + getattr(self.items, "burn_in", 0)
        anchor = episode.made
        first = episode.steps[max(0, anchor - lookback)][0]
        if first >= self.head:
            self.live.append(Item(episode, anchor, length, first, terminated))
        episode.made += 1 if isinstance(self.items, NStep) else self.items.period

    # ---- what a batch of one item shows -------------------------------------------------------------------------------------

    def frames(self, episode: Episode, at: int) -> list[int]:
        shown = []
        for i in range(at - self.stack.n + 1, at + 1):
            shown.append(episode.steps[i][1] if i >= 0 else episode.steps[0][1] if self.stack.fill == "first" else 0)
        return shown

    def shows(self, item: Item) -> dict[str, Any]:
        if isinstance(self.items, NStep):
            last = item.anchor + item.length - 1
            k = item.length if item.terminated else item.length - 1
            rewards = [0.5 * item.episode.steps[item.anchor + i][1] for i in range(k)]
            return {
                "obs": self.frames(item.episode, item.anchor), "next": self.frames(item.episode, last),
                "returns": sum(self.items.gamma**i * r for i, r in enumerate(rewards)),
                "discounts": self.items.gamma**k, "terminated": item.terminated,
            }
        obs, mask, ends, reward = [], [], [], []
        count = len(item.episode.steps)
        for at in range(item.anchor - self.items.burn_in, item.anchor + self.items.length):
            here = 0 <= at < item.anchor + item.length
            mask.append(here)
            obs.append(self.frames(item.episode, at) if here else [0] * self.stack.n)
            reward.append(0.5 * item.episode.steps[at][1] if here else 0.0)
            ends.append(item.episode.ends if here and at == count - 1 else 0)
        return {"obs": np.array(obs), "mask": mask, "ends": ends, "reward": reward}


sequences = st.builds(
    Sequences, length=st.integers(1, 6), period=st.integers(1, 7), burn_in=st.integers(0, 3), pad=st.booleans()
)
transitions = st.builds(NStep, n=st.integers(1, 4), gamma=st.sampled_from([0.0, 0.5, 1.0]))
stacks = st.builds(FrameStack, n=st.integers(1, 4), leaf=st.just("obs"), fill=st.sampled_from(["first", "zeros"]))
clients = st.integers(0, 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("send"), clients, st.integers(0, 2), st.sampled_from([0] * 9 + [1, 2, 3])),
        st.tuples(st.just("burst"), clients, st.integers(0, 2), st.integers(1, 12)),
        st.tuples(st.just("note"), clients, st.integers(0, 2), st.sampled_from([1, 2])),
        st.tuples(st.just("kill"), clients, st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.integers(0, 4)),
    ),
    max_size=60,
)


class Workers:
    """Sends the same to a table and to the model."""

    def __init__(self, server: Server, model: Model) -> None:
        self.model, self.shown = model, 0
        self.ids = [new_client_id(), new_client_id()]
        self.sent: dict[tuple[int, int], int] = {}
        self.join(server)

    def join(self, server: Server) -> None:
        self.server, self.table = server, server.table()

    def put(self, client: int, stream: int, flags: list[int]) -> None:
        at = self.sent.get((client, stream), 0)
        self.sent[client, stream] = at + len(flags)
        marks = [[client_number(self.ids[client]) << 16 | stream, at + i << 8 | flag] for i, flag in enumerate(flags)]
        shows = np.arange(self.shown + 1, self.shown + len(flags) + 1, dtype=np.float32)
        self.shown += len(flags)
        steps = {"obs": np.repeat(shows, 2).reshape(-1, 2), "reward": 0.5 * shows}
        assert self.table.submit_batch({"echo": np.array(marks, np.uint64), "step": steps}) == len(flags)
        claimed = 0
        for i, (show, flag) in enumerate(zip(shows, flags)):
            if i == claimed:
                claimed += self.model.claim(len(flags) - i)
            if flag & NOTE:
                self.model.note(client, stream, flag & 3)
            else:
                self.model.send(client, stream, int(show), flag)

    def compare(self) -> None:
        keys = self.table.keys()
        assert len(keys) == len(self.model.live)
        stats = self.table.stats()
        assert (stats["streams"], stats["episodes"]) == (len(self.model.open), self.model.ended)
        assert stats["steps_held"] == self.model.tail - self.model.head
        if not len(keys):
            return
        sample, here = self.table.peek(keys)
        assert here.all()
        for i, item in enumerate(self.model.live):
            shows = self.model.shows(item)
            obs = np.array(shows["obs"], np.float32)
            stacked = self.model.stack.n > 1
            have = sample.batch["obs"][i]
            np.testing.assert_array_equal(have[..., 0], obs if stacked else obs[..., 0])
            np.testing.assert_array_equal(have[..., 0], have[..., 1])
            if "next" in shows:
                np.testing.assert_array_equal(sample.next["obs"][i].reshape(-1, 2)[:, 0], shows["next"])
                np.testing.assert_allclose(sample.returns[i], shows["returns"])
                np.testing.assert_allclose(sample.discounts[i], shows["discounts"])
                assert sample.terminated[i] == shows["terminated"]
            else:
                np.testing.assert_array_equal(sample.mask[i], shows["mask"])
                np.testing.assert_array_equal(sample.ends[i], shows["ends"])
                np.testing.assert_array_equal(sample.batch["reward"][i], shows["reward"])


@settings(max_examples=100, deadline=None)
@given(items=st.one_of(sequences, transitions), stack=stacks, spare=st.integers(0, 25), operations=operations)
def test_every_item_shows_what_the_model_shows(
    items: Any, stack: FrameStack, spare: int, operations: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layout = Layout(Spec.from_example(STEP), items, stack)
    capacity = layout.lookback + layout.forward + spare
    made = Table("steps", STEP, capacity=capacity, items=items, stack=stack, sampler="uniform")
    workers = Workers(Server(tables=[made], batch_size=4), Model(capacity, items, stack))
    for what, client, stream, number in operations:
        if what == "send":
            workers.put(client, stream, [number])
        elif what == "burst":
            workers.put(client, stream, [0] * number)
        elif what == "note":
            workers.put(client, stream, [NOTE | number])
        elif what == "kill":
            assert workers.table.end_streams(workers.ids[client]) == workers.model.kill(client)
        elif number == 0:  # seldom: what is written is forced onto the disk
            folder = tmp_path_factory.mktemp("checkpoint")
            before = workers.table.keys()
            workers.server.checkpoint(folder)
            workers.join(Server(tables=[made], batch_size=4).restore(folder))
            np.testing.assert_array_equal(workers.table.keys(), before)
        workers.compare()
