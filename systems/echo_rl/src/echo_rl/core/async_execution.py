"""Rollouts for asyncio: submit state or token sequences, and await or stream what the model makes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from echo_rl.device import resolve
from echo_rl.engine import Engine, Model, Request
from echo_rl.engine.scheduler import Scheduler


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
        for name in ("max_concurrent_rollouts", "max_cache_size", "timeout", "max_new_tokens", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)}")


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
    ``finish`` is ``"length"``, ``"stop"`` or ``"abort"``; ``queue_time`` is in seconds; ``reused`` counts the tokens of the prompt found in the cache.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str
    queue_time: float
    reused: int
    value: Any = None


@dataclass(eq=False)
class _Rollout:
    request: Request
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    state: Tensor | None = None
    value: Any = None
    error: Exception | None = None


class AsyncExecutionEngine:
    """Run rollouts of one model beside the event loop, in a thread.

    ``model`` is a token model (``echo_rl.engine.Model``), whose rollouts share cached prefixes, or a callable from a batch of states to a batch of answers.
    A callable gets states of one shape stacked along a new first axis, and nothing of it is cached.
    """

    def __init__(self, config: ExecutionConfig | None = None, model: Model | Callable[[Tensor], Any] | None = None, device: str = "cpu") -> None:
        if model is None:
            raise ValueError("model is missing; give a Model or a callable")
        self.config = config or ExecutionConfig()
        self.device = resolve(device)
        self._engine: Engine | None = None
        self._call: Callable[[Tensor], Any] | None = None
        if isinstance(model, Model):
            model = model.to(self.device)
            slots, room = self.config.max_concurrent_rollouts, min(model.config.context, self.config.max_cache_size)
            self._engine = Engine(model, slots, room, self.config.max_cache_size, self.config.scheduler)
        else:
            self._call = model.to(self.device) if isinstance(model, torch.nn.Module) else model
        self.cache = KVCacheManager(self.config, self._engine)
        self._scheduler = Scheduler(self.config.scheduler, slots=self.config.max_concurrent_rollouts)
        self._rollouts: dict[int, _Rollout] = {}
        self._waiting: list[_Rollout] = []
        self._live: list[_Rollout] = []
        self._count = 0
        self._lock = asyncio.Lock()
        self._going = asyncio.Event()
        self._going.set()
        self._worker: asyncio.Task[None] | None = None

    async def submit_rollout(
        self, state_sequence: Sequence[int] | Tensor, priority: float = 1.0, *, max_new: int | None = None, temperature: float = 1.0, stop: Sequence[int] = ()
    ) -> int:
        """Queue a rollout and return its id. ``priority`` is the value that the scheduler weighs against cost and waiting time.

        Raise ValueError for tokens that the model lacks, for a rollout that could never fit, and for options of token models with another model.
        """
        async with self._lock:
            if self._engine is not None:
                tokens = [int(t) for t in state_sequence]
                request = self._engine.submit(tokens, max_new or self.config.max_new_tokens, temperature=temperature, stop=stop, value=priority)
                rollout = _Rollout(request)
            else:
                if max_new is not None or temperature != 1.0 or stop:
                    raise ValueError("max_new, temperature and stop need a token model; this engine has a callable")
                state = torch.as_tensor(state_sequence)
                length = len(state) if state.ndim else 1
                request = Request(self._count, (0,) * length, 1, 1.0, 1.0, frozenset(), priority, time.monotonic(), Random(0))
                rollout = _Rollout(request, state=state)
                self._waiting.append(rollout)
            number = self._count
            self._count += 1
            self._rollouts[number] = rollout
            self._live.append(rollout)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return number

    async def result(self, request_id: int, timeout: float | None = None) -> RolloutResult:
        """Wait for a rollout's end, take it from the engine and return it; ``timeout`` seconds replace the config's.

        Raise TimeoutError if it still runs, KeyError for an unknown id, and the model's own error.
        """
        rollout = self._find(request_id)
        seconds = self.config.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                while rollout.request.finish is None:
                    await self._change(rollout)
        except TimeoutError:
            raise TimeoutError(f"rollout {request_id} did not end within {seconds} s; wait again, or cancel it") from None
        self._rollouts.pop(request_id, None)
        if rollout.error is not None:
            raise rollout.error
        r = rollout.request
        return RolloutResult(tuple(r.output), tuple(r.logprobs), tuple(r.versions), str(r.finish), r.waited, r.cached, rollout.value)

    async def stream(self, request_id: int) -> AsyncIterator[int]:
        """Yield a token model's new tokens as they are made. The result can still be taken afterwards."""
        rollout, given = self._find(request_id), 0
        while True:
            ended = rollout.request.finish is not None
            for token in rollout.request.output[given:]:
                given += 1
                yield token
            if ended:
                return
            await self._change(rollout)

    async def cancel(self, request_id: int) -> bool:
        """End a rollout between tokens; its result keeps what was made. Return False if it had ended."""
        rollout = self._find(request_id)
        async with self._lock:
            if rollout.request.finish is not None:
                return False
            if self._engine is not None:
                self._engine.abort(rollout.request)
            else:
                rollout.request.finish = "abort"
                self._waiting.remove(rollout)
            self._tell()
        return True

    async def pause(self) -> None:
        """Compute nothing more until ``resume``, once the step that runs has ended. Rollouts can be submitted and cancelled meanwhile."""
        self._going.clear()
        async with self._lock:
            pass

    def resume(self) -> None:
        """Undo ``pause``. Every rollout goes on where it was."""
        self._going.set()

    async def update_weights(self, params: Model | Mapping[str, Tensor], version: int) -> None:
        """Go on with other weights between two tokens. Raise ValueError if they don't fit, or if ``version`` is not newer."""
        async with self._lock:
            if self._engine is None:
                if not isinstance(self._call, torch.nn.Module) or isinstance(params, Model):
                    raise ValueError("a plain callable has no weights that could be updated; give a Model or a torch module")
                self._call.load_state_dict(params)
                return
            self._engine.update_weights(params, version)

    def _find(self, number: int) -> _Rollout:
        if number not in self._rollouts:
            raise KeyError(f"rollout {number} is unknown, or its result was taken")
        return self._rollouts[number]

    async def _change(self, rollout: _Rollout) -> None:
        await rollout.changed.wait()
        rollout.changed.clear()

    def _tell(self) -> None:
        for rollout in self._live:
            rollout.changed.set()
        self._live = [r for r in self._live if r.request.finish is None]

    async def _work(self) -> None:
        while self._live:
            await self._going.wait()
            async with self._lock:
                if not self._going.is_set():  # it was paused while this task waited for the lock
                    continue
                try:
                    await asyncio.to_thread(self._engine.step if self._engine is not None else self._batch)
                except Exception as error:
                    # Those who wait must learn of it; otherwise every result would only time out.
                    for rollout in self._live:
                        rollout.error = error
                        if self._engine is not None:
                            self._engine.abort(rollout.request)
                        rollout.request.finish = "abort"
                    self._waiting.clear()
                self._tell()
            await asyncio.sleep(0)

    def _batch(self) -> None:
        by_request = {r.request: r for r in self._waiting}
        chosen: list[_Rollout] = []
        now = time.monotonic()
        while by_request and len(chosen) < self.config.max_concurrent_rollouts:
            same = [r for r in by_request if not chosen or _shape(by_request[r]) == _shape(chosen[0])]
            if not same:
                break
            request = self._scheduler.choose(same, now, lambda r: 0)
            request.waited = now - request.arrived
            self._scheduler.record(request.waited)
            chosen.append(by_request.pop(request))
        if not chosen:
            return
        assert self._call is not None
        with torch.inference_mode():
            answers = self._call(torch.stack([r.state for r in chosen if r.state is not None]).to(self.device))
        for i, rollout in enumerate(chosen):
            rollout.value = tuple(a[i] for a in answers) if isinstance(answers, tuple) else answers[i]
            rollout.request.finish = "length"
            self._waiting.remove(rollout)


def _shape(rollout: _Rollout) -> torch.Size:
    assert rollout.state is not None
    return rollout.state.shape
