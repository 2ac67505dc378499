"""Continuous batching by token over a radix tree of shared prefixes.

The tree holds every prompt but its last token; that token is fed by the request's first decode, which makes the first new one.
A prompt that another request is already computing is shared too: both wait for the same nodes.
"""

from __future__ import annotations

import random
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from echo_rl.checks import check, whole
from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine.checks import check_options, checked_stops, checked_tokens
from echo_rl.engine.forward import decode_and_prefill
from echo_rl.engine.model import Model
from echo_rl.engine.pool import BlockPool
from echo_rl.engine.radix import Node, RadixIndex
from echo_rl.engine.request import Request
from echo_rl.engine.sampling import draw
from echo_rl.engine.scheduler import Scheduler
from echo_rl.engine.waiting import Waiting

TAIL = 64
"""A prompt's last tokens, if nobody shares them and they are at most this many, are read with the request's own: one product serves every request's."""


class Engine:
    """Continue token sequences with one model.

    A request is admitted when blocks for its whole prompt and for all of its new tokens are free, or become free by evicting prefixes that no running
    request needs. It therefore never stops for want of memory; those that don't fit yet wait.

    Args:
        model: The model.
        slots: How many requests run at once.
        room: The most new tokens of a request. The model's context, if it is not given.
        kv_bytes: The most bytes of keys and values, of the tree and the running requests together (default: 1 GiB).
        scheduler: The policy of admission: fcfs, lpm, hrrn, bandwidth or value.
        seed: The seed of the random numbers of requests that have no seed of their own.
        version: The label of the weights.
        chunk: How many prompt tokens at most are computed beside the decodes of a step.
        block: Tokens of a block.
        cost: The measured cost of the model, for the scheduler.
        clock: It answers seconds.

    Attributes:
        kv_tokens: How many tokens' keys and values the budget holds.

    Raises:
        ValueError: If an option is out of range, or if ``kv_bytes`` does not hold one block.
        MemoryError: If the machine has less memory than ``kv_bytes``. Nothing is allocated then.
    """

    def __init__(
        self,
        model: Model,
        slots: int = 64,
        room: int | None = None,
        kv_bytes: int = 1 << 30,
        scheduler: str = "value",
        seed: int | None = None,
        *,
        version: int = 0,
        chunk: int = 512,
        block: int = 16,
        cost: CalibratedCost | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        room = model.config.context if room is None else room
        if min(slots, room, kv_bytes, chunk, block) < 1:
            raise ValueError(f"slots={slots}, room={room}, kv_bytes={kv_bytes}, chunk={chunk} and block={block} must all be at least 1")
        self.model, self.slots, self.room, self.kv_bytes, self.chunk, self.clock = model, slots, room, kv_bytes, chunk, clock
        self.scheduler = Scheduler(scheduler, cost, slots)
        self.pool = BlockPool(model.config, kv_bytes, model.device, block)
        self.kv_tokens = self.pool.count * block
        self.tree = RadixIndex(self.pool, version)
        self.waiting = Waiting(self.tree)
        self.filling: list[Request] = []
        self.decoding: list[Request] = []
        """In the order of their prompts, so that those with the same prefix stand side by side."""
        self.paused = False
        self._changes = model.changes()
        self._again: deque[Request] = deque()  # They ran when the weights changed; they are admitted before all others.
        self._random = random.Random(seed)
        self._count = self._asked = self._hit = self._computed = self._made = self._flushed = self._splits = 0

    @property
    def version(self) -> int:
        """The version of the weights in use."""
        return self.tree.version

    @property
    def live(self) -> int:
        """How many requests wait or run."""
        return len(self.waiting) + len(self._again) + len(self.filling) + len(self.decoding)

    def requests(self) -> list[Request]:
        """Return the requests that wait or run."""
        return [*self.waiting, *self._again, *self.filling, *self.decoding]

    def submit(
        self,
        tokens: Sequence[int],
        max_new: int,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        stop: Iterable[int | Sequence[int]] = (),
        value: float = 1.0,
        seed: int | None = None,
        watch: Callable[[int], bool] | None = None,
        top: int = 0,
        arrived: float | None = None,
    ) -> Request:
        """Queue a prompt.

        Args:
            tokens: The prompt, at least one token.
            max_new: The largest number of new tokens.
            temperature: The scores are divided by it before the draw. 0 takes the likeliest token.
            top_p: Draw among the likeliest tokens whose probabilities reach this sum.
            stop: Tokens, or sequences of tokens, that end the request. A sequence counts only if all of its tokens are new, so
                not if it begins in the prompt.
            value: The value of the request, which the scheduler compares with its cost and its waiting time.
            seed: The seed of the request's own random numbers. Its draws then depend on nothing else.
            watch: Called with each new token, in the thread that steps; the request ends with ``"stop"`` when it returns True.
            top: How many of the likeliest tokens ``likeliest`` keeps for each draw.
            arrived: Since when the request waits, in seconds of the engine's clock. Now, if it is not given.

        Returns:
            The request. Its output grows with each step.

        Raises:
            ValueError: If a token or a count is not a whole number, if the prompt is empty, holds a token that the model lacks, or could never fit, or if an
                option is out of range.
        """
        config = self.model.config
        check_options(max_new, temperature, top_p, value, seed, top)
        prompt, stops = checked_tokens(tokens, config.vocab, "the prompt"), checked_stops(stop, config.vocab)
        if not prompt:
            raise ValueError("the prompt is empty; give at least one token")
        if not 1 <= max_new <= self.room:
            raise ValueError(f"max_new={max_new} is not in 1 .. room={self.room}")
        if len(prompt) + max_new > config.context or self.pool.span(0, len(prompt) - 1 + max_new) > self.pool.count:
            raise ValueError(
                f"{len(prompt)} prompt and {max_new} new tokens exceed context={config.context} or the {self.kv_tokens} tokens "
                f"that kv_bytes={self.kv_bytes} holds"
            )
        if not 0 <= top <= config.vocab:
            raise ValueError(f"top={top} is not in 0 .. {config.vocab}, the model's number of tokens")
        own = random.Random(self._random.getrandbits(64) if seed is None else seed)
        since = self.clock() if arrived is None else arrived
        request = Request(self._count, prompt, max_new, temperature, top_p, stops, value, since, own, watch, top)
        self._count += 1
        self.waiting.add(request)
        return request

    def fork(
        self,
        request: Request,
        branches: int,
        max_new: int,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[Request]:
        """Continue what a request has so far in ``branches`` further ways. They share its keys and values; the request itself goes on.

        The branches take over its temperature, top_p, stop, watch, top and value, except for what is given.
        """
        check("branches", branches, whole(0))
        if seeds is not None and len(seeds) != branches:
            raise ValueError(f"{len(seeds)} seeds were given for {branches} branches; give one for each")
        if request in self.decoding:
            self._freeze(request)
            self._reserve(request)
            self._take_tail(request)
        return [
            self.submit(
                request.tokens,
                max_new,
                temperature=request.temperature if temperature is None else temperature,
                top_p=request.top_p if top_p is None else top_p,
                stop=request.stop,
                watch=request.watch,
                top=request.top,
                value=request.value,
                seed=seeds[i] if seeds else None,
            )
            for i in range(branches)
        ]

    def step(self) -> list[Request]:
        """Admit what fits, compute at most ``chunk`` prompt tokens and one new token for each running request. Return the requests that ended.

        If the weights of a ``SharedModel`` have changed since the last step, the next version begins first, as with ``update_weights``.

        Raises:
            ValueError: If a shared weight has become unusable, for instance not finite. Nothing was computed.
            RuntimeError: If a shared weight changes while this step computes. The step made no token, and the next one goes on with the new weights.
        """
        if self.paused:
            return []
        if self.model.changes() != self._changes:
            self._renew(self.model, self.version + 1)
        self._admit()
        self._start_decoding()
        chunks = self._chunks()
        running = list(self.decoding)
        if self.tree.splits != self._splits:
            # The tokens lie where they were, but rows share what they read only if all of them have the same segments.
            self._splits = self.tree.splits
            for request in running:
                request.segments = None
        if not running and not chunks:
            return []
        hidden = decode_and_prefill(self.model, self.pool, running, chunks)
        with torch.inference_mode():
            logits = self.model.logits(hidden) if running else hidden
        if self.model.changes() != self._changes:
            raise RuntimeError("a shared weight changed while the engine computed with it; let no training step run beside a step of the engine")
        for node, first, last in chunks:
            node.filled = last
            self._computed += last - first
        self._computed += len(running)
        if not running:
            return []
        tokens, logprobs, likeliest = draw(logits, running)
        self._made += len(running)
        ended = []
        for request, token, logprob, best in zip(running, tokens, logprobs, likeliest, strict=True):
            request.output.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            if request.top:
                request.likeliest.append(best)
            stopped = request.stopped()
            if stopped or len(request.output) == request.max_new:
                request.finish = "stop" if stopped else "length"
                ended.append(request)
        for request in ended:
            self._retire(request)
        return ended

    def run(self) -> list[Request]:
        """Step until no request is left, and return them in the order in which they ended. Raise RuntimeError while paused."""
        if self.paused:
            raise RuntimeError("the engine is paused; call resume() first")
        ended: list[Request] = []
        while self.live:
            ended += self.step()
        return ended

    def abort(self, request: Request) -> bool:
        """End a request between tokens; it keeps what it has. Return False if it had ended already."""
        if request.finish is not None:
            return False
        request.finish = "abort"
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self._again:
            self._again.remove(request)
        elif request in self.filling:
            self.filling.remove(request)
            self._let_go(request)
        else:
            self._retire(request)
        return True

    def pause(self) -> None:
        """Let ``step`` do nothing until ``resume``. Requests keep their state."""
        self.paused = True

    def resume(self) -> None:
        """Undo ``pause``."""
        self.paused = False

    def update_weights(self, params: Model | Mapping[str, Tensor], version: int) -> None:
        """Go on with other weights. Every key and value of the old ones is dropped; running requests compute their prefix again.

        Args:
            params: A model, or tensors under the names of ``Model.weights``, on any device; they are copied. A ``SharedModel`` of this device is not.
            version: The label of the next tokens; it must be greater than the present one.

        Raises:
            ValueError: If the version is not newer, or if the weights don't fit this engine's model. The engine then goes on as before.
        """
        if version <= self.version:
            raise ValueError(f"version {version} is not newer than {self.version}")
        model = params.to(self.model.device) if isinstance(params, Model) else Model(self.model.config, params, str(self.model.device))
        if model.config != self.model.config:
            raise ValueError("the new model's config differs from the old one's; start another engine for it")
        self._renew(model, version)

    def _renew(self, model: Model, version: int) -> None:
        self._flushed += self.tree.tokens + sum(r.position - r.after for r in self.decoding)
        running = sorted(self.filling + self.decoding, key=lambda r: r.number)
        for request in running:
            self._let_go(request)
        self._again.extend(running)
        self.filling, self.decoding = [], []
        self.model, self._changes = model, model.changes()
        self.tree.clear(version)

    def stats(self) -> dict[str, float]:
        """Return counters of tokens since the start, the token hit rate of admitted prompts, and bytes of keys and values.

        ``tree_bytes`` are those of the blocks that the tree holds, and ``used_bytes`` those of all blocks that are not free.
        """
        pool = self.pool
        return {
            "asked_tokens": self._asked,
            "hit_tokens": self._hit,
            "hit_rate": self._hit / self._asked if self._asked else 0.0,
            "computed_tokens": self._computed,
            "made_tokens": self._made,
            "evicted_tokens": self.tree.evicted,
            "flushed_tokens": self._flushed,
            "tree_tokens": self.tree.tokens,
            "tree_bytes": pool.held * pool.block_bytes,
            "used_bytes": (pool.count - pool.free) * pool.block_bytes,
            "kv_bytes": pool.bytes,
            "waiting": len(self.waiting) + len(self._again),
            "running": len(self.filling) + len(self.decoding),
            "version": self.version,
            "mean_wait": self.scheduler.mean_wait,
        }

    def _admit(self) -> None:
        while (self.waiting or self._again) and len(self.filling) + len(self.decoding) < self.slots:
            now = self.clock()
            request = self._again[0] if self._again else self.scheduler.choose(self.waiting, now)
            if not self._make_room(request):
                return
            if self._again:
                self._again.popleft()
            else:
                self.waiting.remove(request)
                request.waited = now - request.arrived
                self.scheduler.record(request.waited)
                request.cached = self.tree.match(request.prompt[:-1])
                self._asked += len(request.prompt) - 1
                self._hit += request.cached
            request.leaf, _ = self.tree.insert(request.tokens[:-1])
            self.tree.lock(request.leaf, 1)
            self._reserve(request)
            self.filling.append(request)

    def _make_room(self, request: Request) -> bool:
        # The prefix is locked first, so that room for a request is not made by evicting what it would reuse.
        tokens, pool = request.tokens[:-1], self.pool
        found = self.tree.match(tokens)
        prefix, _ = self.tree.insert(tokens[:found])
        shared = bool(prefix.blocks) and pool.may_extend(prefix.blocks[-1], found)
        short = pool.span(found, len(tokens) + request.room) - shared - pool.free
        if short <= 0:
            return True
        self.tree.lock(prefix, 1)
        # Nothing is evicted for a request that would not fit even then.
        fits = short <= pool.evictable and self.tree.evict(short) >= short
        self.tree.lock(prefix, -1)
        if not fits and not self.filling and not self.decoding:
            # Blocks of the prefix that are filled in part may be what is missing. Alone, without them, every request fits.
            self.tree.evict(pool.count)
            return True
        return fits

    def _reserve(self, request: Request) -> None:
        assert request.leaf is not None
        pool, blocks, begin = self.pool, request.leaf.blocks, request.position
        shared = blocks[-1:] if blocks and pool.may_extend(blocks[-1], begin) else []
        taken = pool.take(pool.span(begin, begin + request.room) - len(shared), blocks[-1] if blocks else -1)
        request.reserved, request.after = shared + taken, begin
        pool.use(request.reserved)
        for block in request.reserved:
            pool.frontier[block] = pool.size

    def _let_go(self, request: Request) -> None:
        if request.reserved:
            self._release(request, adopted=False)
        assert request.leaf is not None
        self.tree.lock(request.leaf, -1)
        self.tree.drop_unfilled(request.leaf)
        request.leaf = None

    def _freeze(self, request: Request) -> None:
        # The tree takes the request's blocks over, except for tokens that another request has brought into it meanwhile.
        assert request.leaf is not None
        tokens, pool, after = request.tokens[:-1], self.pool, request.after
        leaf, found = self.tree.insert(tokens, request.reserved, after)
        for node in leaf.path():
            first = node.start + node.filled
            if first >= after and first < node.end:
                pool.copy(pool.places(request.reserved, after, node.end)[first - after :], pool.places(node.blocks, node.start, node.end)[node.filled :])
                node.filled = len(node.tokens)
        self.tree.lock(leaf, 1)
        self.tree.lock(request.leaf, -1)
        request.leaf = leaf
        self._release(request, adopted=found < len(tokens) and found // pool.size == after // pool.size)

    def _release(self, request: Request, adopted: bool) -> None:
        # ``adopted`` says whether a node took the first block over. If not, a request that goes on after the leaf may have the rest of it.
        if not adopted:
            self.pool.frontier[request.reserved[0]] = request.after % self.pool.size
        self.pool.unuse(request.reserved)
        request.reserved, request.own = [], []

    def _start_decoding(self) -> None:
        still = []
        for request in self.filling:
            assert request.leaf is not None
            if all(n.filled == len(n.tokens) for n in request.leaf.path()):
                self._take_tail(request)
                insort(self.decoding, request, key=lambda r: (r.prompt, r.number))
            else:
                still.append(request)
        self.filling = still

    def _take_tail(self, request: Request) -> None:
        assert request.leaf is not None
        own, begin = request.reserved, request.after
        for node in reversed(request.leaf.path()):
            inside = begin % self.pool.size > 0
            if node.locks > 1 or request.after - node.start > TAIL or (inside and node.blocks[-1] != own[0]):
                break
            own, begin = node.blocks + (own[1:] if inside else own), node.start
        request.own, request.begin, request.segments = own, begin, None

    def _chunks(self) -> list[tuple[Node, int, int]]:
        chunks, left, seen = [], self.chunk, set()
        for request in self.filling:
            assert request.leaf is not None
            node = next(n for n in request.leaf.path() if n.filled < len(n.tokens))
            if left and node not in seen:
                seen.add(node)
                last = min(len(node.tokens), node.filled + left)
                left -= last - node.filled
                chunks.append((node, node.filled, last))
        return chunks

    def _retire(self, request: Request) -> None:
        self.decoding.remove(request)
        self._freeze(request)
        self._let_go(request)
