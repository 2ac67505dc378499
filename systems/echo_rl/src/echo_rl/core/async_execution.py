"""Rollouts for asyncio: submit state or token sequences, and await or stream what the model makes of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from echo_rl.checks import check_fields, one_of, real, whole
from echo_rl.device import resolve
from echo_rl.engine import Engine, Model, Request
from echo_rl.engine.batches import BatchEngine
from echo_rl.engine.pool import token_bytes
from echo_rl.engine.scheduler import POLICIES
from echo_rl.serving.worker import EngineWorker

LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class ExecutionConfig:
    """``max_concurrent_rollouts`` run at once, ``max_cache_size`` tokens of keys and values are kept, ``timeout`` seconds are waited for a result.

    ``max_new_tokens`` is how far a token model continues a rollout unless it is told; ``epsilon`` is that of the seed's priority.
    """

    max_concurrent_rollouts: int = 128
    max_cache_size: int = 10_000
    timeout: float = 30.0
    max_new_tokens: int = 64
    scheduler: str = "value"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_fields(
            self,
            max_concurrent_rollouts=whole(1),
            max_cache_size=whole(1),
            timeout=real(above=0),
            max_new_tokens=whole(1),
            scheduler=one_of(*POLICIES),
            epsilon=real(above=0),
        )


class KVCacheManager:
    """The seed's priority, and what an engine's counters say about its cache."""

    def __init__(self, config: ExecutionConfig | None = None, engine: Engine | None = None) -> None:
        self.config, self.engine = config or ExecutionConfig(), engine

    def compute_priority(self, reward: float, queue_time: float) -> float:
        """Return r / (q + epsilon), with the time in the queue in seconds."""
        return reward / (queue_time + self.config.epsilon)

    def stats(self) -> dict[str, float]:
        """Return the tokens asked for, found in the cache and evicted, the hit rate, and the tokens and bytes held now. Without an engine all are 0."""
        names = ("asked_tokens", "hit_tokens", "hit_rate", "evicted_tokens", "tree_tokens", "tree_bytes")
        found = self.engine.stats() if self.engine else dict.fromkeys(names, 0)
        return {name: found[name] for name in names}


@dataclass(frozen=True)
class RolloutResult:
    """What a rollout gave.

    A token model fills ``tokens``, ``logprobs`` and ``versions``, one entry per new token; any other model's answer is ``value``.
    ``versions`` of such an answer has one entry, the version that gave it.
    ``finish`` is ``"length"``, ``"stop"`` or ``"abort"``; ``queue_time`` is in seconds; ``reused`` counts the tokens of the prompt found in the cache.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str
    queue_time: float
    reused: int
    value: Any = None


class AsyncExecutionEngine:
    """Run rollouts of one model beside the event loop, in the thread of an ``EngineWorker``.

    ``model`` is a token model (``echo_rl.engine.Model``), whose rollouts share cached prefixes, or a callable from a batch of states to a batch of answers.
    A callable gets states of one shape stacked along a new first axis, and nothing of it is cached.

    A token model's keys and values take at most ``max_cache_size`` tokens, so 10 000 by default; one line of the log says how many bytes these are.
    The thread ends when it has nothing to do; ``close``, or the end of ``async with``, aborts what is left. Use one event loop at a time.

    Raises:
        ValueError: If there is no model, or if a field of the config is of no use to it.
        MemoryError: If the machine has too little memory for ``max_cache_size`` tokens. Nothing is allocated then.
    """

    def __init__(self, config: ExecutionConfig | None = None, model: Model | Callable[[Tensor], Any] | None = None, device: str = "cpu") -> None:
        if model is None:
            raise ValueError("model is missing; give a Model or a callable")
        self.config = config or ExecutionConfig()
        self.device = resolve(device)
        slots, tokens = self.config.max_concurrent_rollouts, self.config.max_cache_size
        engine: Engine | BatchEngine
        if isinstance(model, Model):
            size = token_bytes(model.config)
            engine = Engine(model.to(self.device), slots, None, tokens * size, self.config.scheduler, block=min(16, tokens))
            LOG.info("keys and values of %d tokens take at most %.0f MiB (%d bytes each)", tokens, engine.pool.bytes / 2**20, size)
        else:
            engine = BatchEngine(model, slots, self.config.scheduler, self.device)
        self._engine = engine
        self.cache = KVCacheManager(self.config, engine if isinstance(engine, Engine) else None)
        self._rollouts: dict[int, Request] = {}
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stepped = asyncio.Event()
        self._worker = EngineWorker(engine, 1 << 31, after_step=self._wake)

    async def __aenter__(self) -> AsyncExecutionEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort every rollout and end the thread. Raise TimeoutError if a step lasts longer than 30 seconds."""
        await asyncio.to_thread(self._worker.close)

    async def submit_rollout(
        self, state_sequence: Sequence[int] | Tensor, priority: float = 1.0, *, max_new: int | None = None, temperature: float = 1.0, stop: Sequence[int] = ()
    ) -> int:
        """Queue a rollout and return its id. ``priority`` is the value that the scheduler weighs against cost and waiting time.

        Raise ValueError for tokens that the model lacks, for a rollout that could never fit, and for options of token models with another model.
        """
        engine = self._engine
        if isinstance(engine, Engine):
            most = self.config.max_new_tokens if max_new is None else max_new
            tokens = state_sequence.tolist() if isinstance(state_sequence, Tensor) else state_sequence
            request = await self._ask(lambda: engine.submit(tokens, most, temperature=temperature, stop=stop, value=priority))  # type: ignore[arg-type]
        else:
            if max_new is not None or temperature != 1.0 or stop:
                raise ValueError("max_new, temperature and stop need a token model; this engine has a callable")
            state = torch.as_tensor(state_sequence)
            request = await self._ask(lambda: engine.submit(state, priority))
        number = self._count
        self._count += 1
        self._rollouts[number] = request
        return number

    async def result(self, request_id: int, timeout: float | None = None) -> RolloutResult:
        """Wait for a rollout's end, take it from the engine and return it; ``timeout`` seconds replace the config's.

        Raise TimeoutError if it still runs, KeyError for an unknown id, and the model's own error.
        """
        request, seconds = self._find(request_id), self.config.timeout if timeout is None else timeout
        if not await self._until(lambda: request.finish is not None, seconds):
            raise TimeoutError(f"rollout {request_id} did not end within {seconds} s; wait again, or cancel it")
        self._rollouts.pop(request_id, None)
        self._check(request)
        value = self._engine.answers.get(request) if isinstance(self._engine, BatchEngine) else None
        return RolloutResult(
            tuple(request.output), tuple(request.logprobs), tuple(request.versions), str(request.finish), request.waited, request.cached, value
        )

    async def stream(self, request_id: int, timeout: float | None = None) -> AsyncIterator[int]:
        """Yield a token model's new tokens as they are made. The result can be taken meanwhile, or afterwards.

        Raise TimeoutError if no token comes for ``timeout`` seconds (the config's, if it is not given), KeyError for an unknown id, and the
        model's own error. The rollout goes on.
        """
        request, given = self._find(request_id), 0
        seconds = self.config.timeout if timeout is None else timeout
        while True:
            if not await self._until(lambda given=given: len(request.output) > given or request.finish is not None, seconds):  # type: ignore[misc]
                raise TimeoutError(f"rollout {request_id} made no token for {seconds} s; stream again, or cancel it")
            ended = request.finish is not None
            for token in request.output[given:]:
                given += 1
                yield token
            if ended:
                self._check(request)
                return

    async def cancel(self, request_id: int) -> bool:
        """End a rollout between tokens; its result keeps what was made. Return False if it had ended."""
        request = self._find(request_id)
        if request.finish is not None:
            return False
        return await self._ask(lambda: self._engine.abort(request))

    async def pause(self) -> None:
        """Compute nothing more until ``resume``, once the step that runs has ended. Rollouts can be submitted and cancelled meanwhile."""
        await self._ask(self._engine.pause)

    def resume(self) -> None:
        """Undo ``pause``. Every rollout goes on where it was."""
        self._worker.ask(self._engine.resume)

    async def update_weights(self, params: Model | Mapping[str, Tensor], version: int) -> None:
        """Go on with other weights between two tokens. Raise ValueError if they don't fit, or if ``version`` is not newer."""
        await self._ask(lambda: self._engine.update_weights(params, version))  # type: ignore[arg-type]

    def _find(self, number: int) -> Request:
        if number not in self._rollouts:
            raise KeyError(f"rollout {number} is unknown, or its result was taken")
        return self._rollouts[number]

    def _check(self, request: Request) -> None:
        error = self._engine.errors.get(request) if isinstance(self._engine, BatchEngine) else self._worker.error
        if request.finish == "abort" and error is not None:
            raise error

    async def _ask(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._worker.ask(call)), self._worker.timeout)
        except RuntimeError as error:
            if self._worker.error is not None:
                raise self._worker.error from error
            raise

    async def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        # Each who waits keeps the event of the step that comes; it is never cleared, so none can take another's notice away.
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    stepped = self._stepped
                    if done():
                        return True
                    await stepped.wait()
        except TimeoutError:
            return done()

    def _wake(self) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:
            pass  # This loop is closed, and nobody waits in it.

    def _tell(self) -> None:
        stepped, self._stepped = self._stepped, asyncio.Event()
        stepped.set()
