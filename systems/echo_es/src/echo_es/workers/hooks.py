"""The wire's side of a `Worker`: what the server has told it, and the calls of its hooks. The names here cannot collide with those of a class of yours."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from echo_core import ClosedError

from .. import state as states
from ..arguments import real_rewards
from .daemon_thread import DaemonThread
from .evaluation import Eval, Rewards, checked

if TYPE_CHECKING:
    from ..observations.shared import SharedObservations

__all__ = ["AsyncHooks", "Hooks"]


class _Told:
    """What a worker knows of the search.

    Attributes:
        worker: the `Worker`. Its module imports this one, so its type cannot be named here.
        id: the name that the server gave; None before it is known.
        has_state: whether `state` is one.
    """

    def __init__(self, worker: Any, state_type: type | None, observations: SharedObservations | None, tests: bool) -> None:
        self.worker, self.observations, self.tests = worker, observations, tests
        self.id: str | None = None
        self.population = self.max_epochs = 0
        self.has_state = False
        self.state: Any = None
        self._state_type = state_type

    @property
    def cores(self) -> int:
        cores: int = self.worker.cores
        return cores

    def joined(self, strategy: dict[str, Any] | None, noise: str | None) -> None:
        """If the server optimises, `state` is what it publishes, and `optimize` is not called."""

    def welcomed(self, worker: str, population: int, max_epochs: int) -> None:
        """The server has accepted this worker."""
        self.id, self.population, self.max_epochs = worker, population, max_epochs

    def pack(self, state: Any) -> bytes:
        """The state as bytes, without pickle."""
        return states.pack(state)

    def unpack(self, data: Any) -> Any:
        """The state from bytes, as the worker's own class."""
        return states.unpack(data, self._state_type)

    def end(self) -> None:
        """No hook is called any more."""

    def _take(self, state: Any) -> None:
        self.state, self.has_state = state, True


class Hooks(_Told):
    """For `EchoLink`, which runs on a thread: plain hooks run on that thread, and async ones in the event loop of `Worker.start`.

    Attributes:
        loop: the event loop of `Worker.start`. It is None before `start`, and after it was cancelled. No hook is called then.
    """

    def __init__(self, worker: Any, state_type: type | None, observations: SharedObservations | None, tests: bool) -> None:
        super().__init__(worker, state_type, observations, tests)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._evaluating: asyncio.Future[Any] | None = None

    def changed(self, state: Any) -> None:
        self._take(state)
        self._call(self.worker.on_state_change, state)

    def initialize(self) -> Any:
        return self._call(self.worker.initialize)

    def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        return checked(self._call(self.worker.evaluate, epoch, slices, cancellable=True))

    def test(self, epoch: int, state: bytes, episodes: int) -> Rewards:
        rewards = real_rewards(self._call(self.worker.on_test, self.unpack(state), episodes, cancellable=True))
        if rewards.shape != (episodes,):
            raise ValueError(f"on_test was called for {episodes} episodes and returned rewards of shape {rewards.shape}; return one for each")
        return rewards

    def optimize(self, epoch: int, rewards: list[float]) -> Any:
        return self._call(self.worker.optimize, epoch, rewards)

    def stop(self, cancel: bool) -> None:
        self._call(self.worker.on_stop, cancel)

    def cancel(self) -> None:
        if (evaluating := self._evaluating) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                evaluating.get_loop().call_soon_threadsafe(evaluating.cancel)

    def _call(self, hook: Callable[..., Any], *arguments: Any, cancellable: bool = False) -> Any:
        """Call a hook, and wait for it. If it is async and `cancellable`, `cancel` ends it. A plain one goes on until it has asked `cancelled`."""
        if (loop := self.loop) is None:
            raise ClosedError("this worker was cancelled")
        result = hook(*arguments)
        if inspect.isawaitable(result):  # it was only created here, and runs in the loop
            return asyncio.run_coroutine_threadsafe(self._awaited(result, cancellable), loop).result()
        return result

    async def _awaited(self, result: Awaitable[Any], cancellable: bool) -> Any:
        if not cancellable:
            return await result
        self._evaluating = asyncio.ensure_future(result)
        try:
            return await self._evaluating  # if it is cancelled, this waits until it has cleaned up
        finally:
            self._evaluating = None


class AsyncHooks(_Told):
    """For `EvochiLink`, which runs in the event loop: async hooks are awaited there, and plain ones run on a thread of their own."""

    def __init__(self, worker: Any, state_type: type | None, observations: SharedObservations | None, tests: bool) -> None:
        super().__init__(worker, state_type, observations, tests)
        self._thread = DaemonThread("echo-es-hook")

    async def changed(self, state: Any) -> None:
        self._take(state)
        await self._call(self.worker.on_state_change, state)

    async def call_initialize(self) -> Any:
        return await self._call(self.worker.initialize)

    async def call_evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        return checked(await self._call(self.worker.evaluate, epoch, slices))

    async def call_optimize(self, epoch: int, rewards: list[float]) -> Any:
        return await self._call(self.worker.optimize, epoch, rewards)

    def end(self) -> None:
        self._thread.end()

    async def call_stop(self, cancel: bool) -> None:
        await self._call(self.worker.on_stop, cancel)

    async def _call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        if inspect.iscoroutinefunction(hook):
            return await hook(*arguments)
        result = await self._thread.run(hook, *arguments)
        return await result if inspect.isawaitable(result) else result
