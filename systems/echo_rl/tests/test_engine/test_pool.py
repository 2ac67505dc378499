"""Blocks of keys and values, and the tree that holds them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.engine.pool import BlockPool, token_bytes
from echo_rl.engine.radix import Node, RadixIndex

TINY = ModelConfig("gpt2", vocab=8, layers=1, heads=1, width=1, inner=1)
SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)


def mark(prefix: tuple[int, ...]) -> float:
    """Return the number that stands for the key of a prefix's last token."""
    return float(hash(prefix) % (1 << 24))


class TreeAndPool(RuleBasedStateMachine):
    """The tree beside a set of prefixes. The key of each token is a number that its prefix gives, so that a block with two owners shows."""

    @initialize(blocks=st.integers(5, 20), size=st.sampled_from([1, 3, 4]))
    def begin(self, blocks: int, size: int) -> None:
        self.pool = BlockPool(TINY, blocks * size * token_bytes(TINY), torch.device("cpu"), size)
        self.tree = RadixIndex(self.pool)
        self.prefixes: set[tuple[int, ...]] = set()
        self.locked: list[tuple[Node, tuple[int, ...]]] = []
        # A request: its leaf, what the leaf ends, its blocks, and what it has made.
        self.running: list[tuple[Node, tuple[int, ...], list[int], tuple[int, ...]]] = []

    def write(self, blocks: list[int], first: int, tokens: tuple[int, ...], begin: int) -> None:
        for place, position in zip(self.pool.places(blocks, first, len(tokens))[begin - first :], range(begin, len(tokens)), strict=True):
            self.pool.k[0, 0, place, 0] = mark(tokens[: position + 1])

    def known(self, tokens: tuple[int, ...]) -> int:
        return max((n for n in range(1, len(tokens) + 1) if tokens[:n] in self.prefixes), default=0)

    @rule(tokens=SEQUENCES, lock=st.booleans())
    def insert(self, tokens: tuple[int, ...], lock: bool) -> None:
        if self.pool.span(self.tree.match(tokens), len(tokens)) > self.pool.free:
            return
        found = self.known(tokens)
        node, told = self.tree.insert(tokens)
        assert told == found and node.end == len(tokens)
        self.prefixes |= {tokens[: n + 1] for n in range(len(tokens))}
        if found < len(tokens):
            self.write(node.blocks, node.start, tokens, node.start)
            node.filled = len(node.tokens)
        if lock:
            self.tree.lock(node, 1)
            self.locked.append((node, tokens))

    @precondition(lambda self: self.locked)
    @rule(data=st.data(), room=st.integers(1, 6), new=SEQUENCES)
    def start(self, data: st.DataObject, room: int, new: tuple[int, ...]) -> None:
        """A request goes on from a locked prefix, as ``Engine._reserve`` does, and writes some of its tokens."""
        leaf, tokens = data.draw(st.sampled_from(self.locked))
        begin, pool = len(tokens), self.pool
        shared = leaf.blocks[-1:] if pool.may_extend(leaf.blocks[-1], begin) else []
        if pool.span(begin, begin + room) - len(shared) > pool.free:
            return
        blocks = shared + pool.take(pool.span(begin, begin + room) - len(shared), leaf.blocks[-1])
        pool.use(blocks)
        for block in blocks:
            pool.frontier[block] = pool.size
        self.tree.lock(leaf, 1)
        whole = tokens + new[:room]
        self.write(blocks, begin, whole, begin)
        self.running.append((leaf, tokens, blocks, whole))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), kept=st.booleans())
    def end(self, data: st.DataObject, kept: bool) -> None:
        """The tree takes over what the request made, or nothing of it."""
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        leaf, tokens, blocks, whole = request
        adopted = False
        if kept:
            found, begin, size = self.known(whole), len(tokens), self.pool.size
            assert self.tree.insert(whole, blocks, begin)[1] == found
            self.prefixes |= {whole[: n + 1] for n in range(len(whole))}
            adopted = found < len(whole) and found // size == begin // size
        if not adopted:
            self.pool.frontier[blocks[0]] = len(tokens) % self.pool.size
        self.pool.unuse(blocks)
        self.tree.lock(leaf, -1)

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.locked))
        self.locked.remove(pair)
        self.tree.lock(pair[0], -1)

    @rule(wanted=st.integers(1, 8))
    def evict(self, wanted: int) -> None:
        before, evictable, free = set(self.prefixes), self.pool.evictable, self.pool.free
        freed = self.tree.evict(wanted)
        assert freed == self.pool.free - free >= min(wanted, evictable)
        self.prefixes = {tokens[: n + 1] for node in self.tree.nodes() for tokens in [sum((p.tokens for p in node.path()), ())] for n in range(len(tokens))}
        assert self.prefixes <= before
        for _, tokens in [*self.locked, *((r[0], r[1]) for r in self.running)]:
            assert tokens in self.prefixes

    @precondition(lambda self: not self.locked and not self.running)
    @rule()
    def clear(self) -> None:
        self.tree.clear(self.tree.version + 1)
        self.prefixes = set()
        assert self.pool.free == self.pool.count

    @invariant()
    def nothing_is_lost_or_mixed_up(self) -> None:
        if not hasattr(self, "tree"):
            return
        nodes, pool = list(self.tree.nodes()), self.pool
        held = {b for n in nodes for b in n.blocks}
        used = {b for n in nodes if n.locks for b in n.blocks} | {b for r in self.running for b in r[2]}
        assert (pool.held, pool.used, pool.free) == (len(held), len(used), pool.count - len(held | used))
        free = [b for first, length in pool._runs.items() for b in range(first, first + length)]
        assert sorted([*free, *(held | used)]) == list(range(pool.count))
        assert not any(first in pool._ends for first in pool._runs)  # neighbours are one run
        assert self.tree.tokens == len(self.prefixes) and self.tree.count == len(nodes)
        for node in nodes:
            tokens = sum((p.tokens for p in node.path()), ())
            places = pool.places(node.blocks, node.start, node.end)
            assert [pool.k[0, 0, p, 0].item() for p in places] == [mark(tokens[: n + 1]) for n in range(node.start, node.end)]
            assert places == [p for place, _, length in node.extents for p in range(place, place + length)]
        for _, tokens, blocks, whole in self.running:
            places = pool.places(blocks, len(tokens), len(whole))
            assert [pool.k[0, 0, p, 0].item() for p in places] == [mark(whole[: n + 1]) for n in range(len(tokens), len(whole))]


TestTreeAndPool = TreeAndPool.TestCase
TestTreeAndPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_budget_is_refused_before_anything_is_allocated(configs: dict[str, ModelConfig]) -> None:
    """The errors say what fits."""
    model = Model.random(configs["llama"])
    with pytest.raises(ValueError, match="kv_bytes=100 is too small: one block of 16 tokens of this model takes 4096 bytes"):
        Engine(model, kv_bytes=100)
    with pytest.raises(MemoryError, match=rf"kv_bytes={1 << 50} exceeds the \d+ bytes of memory that are available on cpu; they hold \d+ tokens"):
        Engine(model, kv_bytes=1 << 50)


def test_a_request_that_never_fits_is_refused(configs: dict[str, ModelConfig]) -> None:
    engine = Engine(Model.random(configs["gpt2"]), kv_bytes=48 * token_bytes(configs["gpt2"]))
    with pytest.raises(ValueError, match="40 prompt and 10 new tokens exceed context=256 or the 48 tokens that kv_bytes=24576 holds"):
        engine.submit([1] * 40, 10)
    request = engine.submit([1] * 40, 9)  # The last new token needs no key.
    assert engine.run() == [request] and engine.live == 0


def test_every_way_to_end_frees_everything(configs: dict[str, ModelConfig]) -> None:
    """After an abort while waiting, filling or decoding, a stop, a swap of weights and an eviction, every block is free."""
    engine = Engine(Model.random(configs["llama"], scale=0.3), 2, 64, 200 * token_bytes(configs["llama"]), seed=1, chunk=8)
    requests = [engine.submit([i, *range(30)], 20, stop=[i + 3]) for i in range(6)]
    while requests[0] not in engine.decoding:
        engine.step()
    assert requests[1] in engine.filling and requests[5] in engine.waiting
    for i in (0, 1, 5):
        assert engine.abort(requests[i]) and not engine.abort(requests[i])
    engine.step(), engine.step()
    engine.update_weights(Model.random(configs["llama"], 1, scale=0.3), 1)
    assert engine.pool.free == engine.pool.count and engine.stats()["used_bytes"] == 0
    engine.run()
    assert engine.pool.used == 0 and engine.stats()["tree_bytes"] == engine.stats()["used_bytes"]
    engine.tree.evict(engine.pool.count)
    assert engine.pool.free == engine.pool.count and engine.tree.tokens == 0


MEASURED = """
import resource
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.engine.pool import token_bytes

config = ModelConfig("llama", vocab=64, layers=8, heads=8, width=256, inner=64, context=512)
engine = Engine(Model.random(config), 8, 64, 64 << 20, seed=0)
engine.submit([1] * 300, 2)
engine.run()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
for i in range(40):
    engine.submit([i % 64, i // 8, *range(60)] * 5, 30)
engine.run()
stats = engine.stats()
assert stats["evicted_tokens"] > 0, stats
print(peak() - before, stats["used_bytes"])
"""


def test_memory_stays_within_the_budget() -> None:
    """The resident memory grows by the budget at most, and 48 MiB for everything else, though the prompts need 3 times the budget."""
    found = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    grown, used = map(int, found.stdout.split())
    assert used <= 64 << 20
    assert grown <= (64 + 48) << 20
