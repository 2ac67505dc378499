"""Continuous batching by token over a radix tree of shared prefixes.

The tree holds every prompt but its last token; that token is fed by the request's first decode, which makes the first new one.
A prompt that another request is already computing is shared too: both wait for the same nodes.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine.forward import decode_and_prefill
from echo_rl.engine.model import Model
from echo_rl.engine.radix import Node, RadixIndex
from echo_rl.engine.request import Request
from echo_rl.engine.sampling import draw
from echo_rl.engine.scheduler import Scheduler
from echo_rl.engine.slab import Slab

TAIL = 64
"""A prompt's last tokens, if nobody shares them and they are at most this many, are copied to the slab: one product then serves every request's."""


class Engine:
    """Continue token sequences with one model.

    ``slots`` requests run at once, each of at most ``room`` new tokens. ``kv_tokens`` bounds the tree and the running requests' reservations together.
    ``chunk`` prompt tokens at most are computed beside the decodes of a step. ``clock`` answers seconds.
    """

    def __init__(
        self,
        model: Model,
        slots: int = 64,
        room: int = 1024,
        kv_tokens: int = 1 << 18,
        scheduler: str = "value",
        seed: int | None = None,
        *,
        version: int = 0,
        chunk: int = 512,
        cost: CalibratedCost | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if min(slots, room, kv_tokens, chunk) < 1:
            raise ValueError(f"slots={slots}, room={room}, kv_tokens={kv_tokens} and chunk={chunk} must all be at least 1")
        self.model, self.slots, self.room, self.kv_tokens, self.chunk, self.clock = model, slots, room, kv_tokens, chunk, clock
        self.scheduler = Scheduler(scheduler, cost, slots)
        self.tree = RadixIndex(model.config, version, model.device)
        self.slab = Slab(model.config, slots, room + TAIL, model.device)
        self.waiting: list[Request] = []
        self.filling: list[Request] = []
        self.decoding: list[Request] = []
        self.paused = False
        self._random = random.Random(seed)
        self._count = self._asked = self._hit = self._computed = self._made = self._evicted = self._flushed = 0

    @property
    def version(self) -> int:
        """The version of the weights in use."""
        return self.tree.version

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
    ) -> Request:
        """Queue a prompt.

        Args:
            tokens: The prompt, at least one token.
            max_new: At most so many tokens are made.
            temperature: Divides the scores before the draw; 0 takes the likeliest token.
            top_p: Draw among the likeliest tokens whose probabilities reach this sum.
            stop: Tokens, or sequences of tokens, that end the request. A sequence counts if all of it was made, and not where the prompt began it.
            value: What the scheduler weighs against cost and waiting time.
            seed: Of the request's own random numbers; its draws then depend on nothing else.
            watch: Called with each new token, in the thread that steps; the request ends with ``"stop"`` when it returns True.
            top: How many of the likeliest tokens ``likeliest`` keeps for each draw.

        Returns:
            The request. Its output grows with each step.

        Raises:
            ValueError: If the prompt is empty, holds a token that the model lacks, or could never fit, or if an option is out of range.
        """
        prompt, config = tuple(int(t) for t in tokens), self.model.config
        if not prompt:
            raise ValueError("the prompt is empty; give at least one token")
        if not 0 <= min(prompt) <= max(prompt) < config.vocab:
            raise ValueError(f"the prompt has tokens in {min(prompt)} .. {max(prompt)}; the model knows 0 .. {config.vocab - 1}")
        if not 1 <= max_new <= self.room:
            raise ValueError(f"max_new={max_new} is not in 1 .. room={self.room}")
        if len(prompt) + max_new > min(config.context, self.kv_tokens):
            raise ValueError(f"{len(prompt)} prompt and {max_new} new tokens exceed context={config.context} or kv_tokens={self.kv_tokens}")
        if temperature < 0 or not 0 < top_p <= 1:
            raise ValueError(f"temperature={temperature} must not be negative and top_p={top_p} must be in (0, 1]")
        stops = frozenset((int(s),) if isinstance(s, int) else tuple(int(t) for t in s) for s in stop)
        if () in stops:
            raise ValueError("a stop sequence is empty; give at least one token")
        if not 0 <= top <= config.vocab:
            raise ValueError(f"top={top} is not in 0 .. {config.vocab}, the model's number of tokens")
        own = random.Random(self._random.getrandbits(64) if seed is None else seed)
        request = Request(self._count, prompt, max_new, temperature, top_p, stops, value, self.clock(), own, watch, top)
        self._count += 1
        self.waiting.append(request)
        return request

    def fork(
        self, request: Request, branches: int, max_new: int, *, temperature: float = 1.0, top_p: float = 1.0, seeds: Sequence[int] | None = None
    ) -> list[Request]:
        """Continue what a request has so far in ``branches`` further ways. They share its keys and values; the request itself goes on."""
        if seeds is not None and len(seeds) != branches:
            raise ValueError(f"{len(seeds)} seeds were given for {branches} branches; give one for each")
        if request in self.decoding:
            self._freeze(request)
        return [
            self.submit(request.tokens, max_new, temperature=temperature, top_p=top_p, value=request.value, seed=seeds[i] if seeds else None)
            for i in range(branches)
        ]

    def step(self) -> list[Request]:
        """Admit what fits, compute at most ``chunk`` prompt tokens and one new token for each running request. Return the requests that ended."""
        if self.paused:
            return []
        self._admit()
        self._start_decoding()
        chunks = self._chunks()
        running = list(self.decoding)
        if not running and not chunks:
            return []
        hidden = decode_and_prefill(self.model, self.slab, running, chunks)
        for node, first, last in chunks:
            node.filled = last
            self._computed += last - first
        self._computed += len(running)
        if not running:
            return []
        tokens, logprobs, likeliest = draw(self.model.logits(hidden), running)
        self._made += len(running)
        ended = []
        for request, token, logprob, best in zip(running, tokens, logprobs, likeliest, strict=True):
            request.length += 1
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
        while self.waiting or self.filling or self.decoding:
            ended += self.step()
        return ended

    def abort(self, request: Request) -> bool:
        """End a request between tokens; it keeps what it has. Return False if it had ended already."""
        if request.finish is not None:
            return False
        request.finish = "abort"
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.filling:
            self.filling.remove(request)
            self._unlock(request)
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
            params: A model, or tensors under the names of ``Model.weights``, on any device; they are copied.
            version: The label of the next tokens; it must be greater than the present one.

        Raises:
            ValueError: If the version is not newer, or if the weights don't fit this engine's model. The engine then goes on as before.
        """
        if version <= self.version:
            raise ValueError(f"version {version} is not newer than {self.version}")
        model = params.to(self.model.device) if isinstance(params, Model) else Model(self.model.config, params, str(self.model.device))
        if model.config != self.model.config:
            raise ValueError("the new model's config differs from the old one's; start another engine for it")
        self._flushed += self.tree.tokens + sum(r.length for r in self.decoding)
        self._evicted += self.tree.evicted
        self.model = model
        self.tree = RadixIndex(model.config, version, model.device)
        for request in self.decoding:
            request.slot, request.length = -1, 0
        self.filling = self.filling + self.decoding
        self.decoding = []
        for request in self.filling:
            self._attach(request)

    def stats(self) -> dict[str, float]:
        """Return counters of tokens since the start, the token hit rate of admitted prompts, and bytes of keys and values in the tree."""
        c = self.model.config
        return {
            "asked_tokens": self._asked,
            "hit_tokens": self._hit,
            "hit_rate": self._hit / self._asked if self._asked else 0.0,
            "computed_tokens": self._computed,
            "made_tokens": self._made,
            "evicted_tokens": self._evicted + self.tree.evicted,
            "flushed_tokens": self._flushed,
            "tree_tokens": self.tree.tokens,
            "tree_bytes": self.tree.tokens * c.layers * c.kv_heads * c.head_dim * 8,
            "waiting": len(self.waiting),
            "running": len(self.filling) + len(self.decoding),
            "version": self.version,
            "mean_wait": self.scheduler.mean_wait,
        }

    def _admit(self) -> None:
        while self.waiting and len(self.filling) + len(self.decoding) < self.slots:
            now = self.clock()
            request = self.scheduler.choose(self.waiting, now, lambda r: self.tree.match(r.prompt[:-1]))
            if not self._make_room(request):
                return
            self.waiting.remove(request)
            request.waited = now - request.arrived
            self.scheduler.record(request.waited)
            request.cached = self._attach(request)
            self._asked += len(request.prompt) - 1
            self._hit += request.cached
            self.filling.append(request)

    def _make_room(self, request: Request) -> bool:
        # The prefix is locked first, so that room for a request is not made by evicting what it would reuse.
        found = self.tree.match(request.prompt[:-1])
        prefix, _ = self.tree.insert(request.prompt[:found])
        self.tree.lock(prefix, 1)
        short = self.tree.tokens + len(request.prompt) - 1 - found + self._reserved() + request.room - self.kv_tokens
        # Nothing is evicted for a request that would not fit even then.
        fits = short <= 0 or (short <= self.tree.free() and self.tree.evict(short) >= short)
        self.tree.lock(prefix, -1)
        return fits

    def _attach(self, request: Request) -> int:
        request.leaf, found = self.tree.insert(request.tokens[:-1])
        self.tree.lock(request.leaf, 1)
        return found

    def _unlock(self, request: Request) -> None:
        assert request.leaf is not None
        self.tree.lock(request.leaf, -1)
        self.tree.drop_unfilled(request.leaf)
        request.leaf = None

    def _start_decoding(self) -> None:
        still = []
        for request in self.filling:
            assert request.leaf is not None
            if all(n.filled == len(n.tokens) for n in request.leaf.path()):
                request.slot = len(self.decoding)
                self.decoding.append(request)
                self._copy_tail(request)
            else:
                still.append(request)
        self.filling = still

    def _copy_tail(self, request: Request) -> None:
        assert request.leaf is not None
        tail: list[Node] = []
        for node in reversed(request.leaf.path()):
            if node.locks > 1 or sum(len(n.tokens) for n in tail) + len(node.tokens) > TAIL:
                break
            tail.insert(0, node)
        total = sum(len(n.tokens) for n in tail)
        if self.tree.tokens + self._reserved() + total > self.kv_tokens:
            return
        for node in tail:
            end = request.length + len(node.tokens)
            self.slab.k[:, request.slot, :, request.length : end] = node.k
            self.slab.v[:, request.slot, :, request.length : end] = node.v
            request.length = end

    def _reserved(self) -> int:
        return sum(r.length + r.room for r in self.filling + self.decoding)

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
        self._freeze(request)
        self._unlock(request)
        self.decoding.remove(request)
        if request.slot < len(self.decoding):
            last = max(self.decoding, key=lambda r: r.slot)
            self.slab.move(last.slot, request.slot, last.length)
            last.slot = request.slot
        self.decoding.sort(key=lambda r: r.slot)
        request.slot = -1

    def _freeze(self, request: Request) -> None:
        # The tree keeps what another request computed meanwhile; only the rest is copied out of the slab.
        assert request.leaf is not None
        begin = len(request.tokens) - 1 - request.length
        leaf, _ = self.tree.insert(request.tokens[:-1])
        for node in leaf.path():
            first = max(begin, node.start + node.filled)
            if first == node.start + node.filled and first < node.start + len(node.tokens):
                a, b = first - begin, node.start + len(node.tokens) - begin
                node.k[:, :, first - node.start :] = self.slab.k[:, request.slot, :, a:b]
                node.v[:, :, first - node.start :] = self.slab.v[:, request.slot, :, a:b]
                node.filled = len(node.tokens)
        self.tree.lock(leaf, 1)
        self.tree.lock(request.leaf, -1)
        request.leaf, request.length = leaf, 0
