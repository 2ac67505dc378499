"""`Worker`: what evaluates individuals and optimises the state that all workers share. Its interface is that of Evochi's client."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar, cast

from echo_core.base.address import Address

from .. import state as states
from ..observations.shared import SharedObservations
from .cancelling import cancelled
from .evaluation import Eval

__all__ = ["Worker"]

S = TypeVar("S")


class _Link(Protocol):
    async def run(self) -> None: ...
    async def close(self) -> None: ...


class Worker(ABC, Generic[S]):
    """Evaluates individuals for a server, until it is over.

    Override `initialize`, `evaluate` and `optimize`, and if you like `on_stop` and `on_state_change`. Each of them may be plain or async. A plain one
    runs on a thread of its own, so the connection stays alive however long it takes.

    Args:
        channel: the address of an `ESServer`, such as `"tcp://learner:5555"`, or a channel of grpc.aio to a server of Evochi's protocol.
        cores: the most individuals that `evaluate` gets at once.
        token: the shared secret of Echo, or the join token of a server of Evochi's protocol.
        name: this worker's name in logs and statistics.
        reconnect: seconds for which it tries again when the server is lost.
        codec: "auto" never unpickles. "pickle" also opens states that clients of Evochi have pickled, which runs what their senders chose.
        state_type: the dataclass of the state, if it is not given as `Worker[S]`.
        experiment: the name of the search, if the server has several. Only over Echo.

    Attributes:
        observations: set it to `SharedObservations` if the server merges what workers see. Only over Echo.

    Raises ValueError if an argument has no meaning.
    """

    def __init__(
        self,
        channel: Any,
        cores: int,
        *,
        token: str | None = None,
        name: str | None = None,
        reconnect: float = 60.0,
        codec: str = "auto",
        state_type: type | None = None,
        experiment: str | None = None,
    ) -> None:
        if cores < 1:
            raise ValueError(f"cores: a worker evaluates at least one individual at a time, so {cores} is not possible")
        if codec not in ("auto", "pickle"):
            raise ValueError(f"codec: there is no {codec!r}; choose 'auto' or 'pickle'")
        self.cores = cores
        self.observations: SharedObservations | None = None
        self._state_type = state_type or _state_type(type(self))
        self._id: str | None = None
        self._population = self._max_epochs = 0
        self._has_state = False
        self._state: Any = None
        self._evaluating: tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]] | None = None
        self._hooks = ThreadPoolExecutor(1, thread_name_prefix="echo-es-hook")
        if isinstance(channel, str | Address):
            if codec == "pickle":
                raise ValueError("codec: nothing is pickled over an address of Echo; codec='pickle' is for channels of grpc.aio")
            from .link import EchoLink

            self._link: _Link = EchoLink(self, channel, token=token, name=name, reconnect=reconnect, experiment=experiment)
        else:
            if experiment is not None:
                raise ValueError("experiment: servers of Evochi's protocol have one search; leave it out")
            from ..evochi.needed import require

            require()
            from ..evochi.client import EvochiLink

            self._link = EvochiLink(self, channel, pickled=codec == "pickle", reconnect=reconnect, token=token)

    # ---- for you to write ---------------------------------------------------------------------------------------------

    @abstractmethod
    def initialize(self) -> Any:
        """The first state, of type S. One worker is asked for it."""

    @abstractmethod
    def evaluate(self, epoch: int, slices: list[slice]) -> Any:
        """The rewards of these individuals, as a list of `Eval`. There are at most `cores`."""

    @abstractmethod
    def optimize(self, epoch: int, rewards: list[float]) -> Any:
        """The next state, of type S, from the rewards of the whole epoch. All workers must compute the same."""

    def test(self, state: S, episodes: int) -> Any:
        """One reward for each episode, as a list, of this state without noise. Write it if the server calls `ESServer.test`. Only over Echo."""
        raise NotImplementedError

    def on_stop(self, cancel: bool) -> Any:
        """It is over.

        Over Echo it is called once: with True if an evaluation was cancelled by the end, or this worker was closed before; else with False.
        On a channel of grpc.aio it is called as by Evochi's client: with False when the server says so, and with True when the connection has ended.
        """

    def on_state_change(self, state: S) -> Any:
        """`state` has just been replaced by this one."""

    # ---- for you to use -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Work until the server says that it is over, or `close` is called.

        Raises EchoError or grpc.aio.AioRpcError if the server refuses, or is not reached for `reconnect` seconds; and what a hook raises.
        """
        try:
            await self._link.run()
        finally:
            self._hooks.shutdown(wait=False)

    async def close(self) -> None:
        """Leave the server. A second call does nothing over Echo, and raises RuntimeError on a channel of grpc.aio, as Evochi's client does."""
        await self._link.close()

    @property
    def id(self) -> str:
        """The name that the server gave. Raises RuntimeError before it is known, as the next three do."""
        return cast("str", self._known(self._id, "id"))

    @property
    def population_size(self) -> int:
        """The individuals in an epoch."""
        self._known(self._id, "population_size")
        return self._population

    @property
    def max_epochs(self) -> int:
        """How many epochs there are; 0: no end."""
        self._known(self._id, "max_epochs")
        return self._max_epochs

    @property
    def state(self) -> S:
        """The newest state that this worker has."""
        self._known(True if self._has_state else None, "state")
        return cast("S", self._state)

    def _known(self, value: Any, what: str) -> Any:
        if value is None:
            raise RuntimeError(f"{what} is not known yet: the server tells it after start()")
        return value

    @property
    def cancelled(self) -> bool:
        """Whether nobody needs the result of the present evaluation any more, as `echo_es.cancelled()` says.

        A plain `evaluate` that takes long asks now and then, and returns None if so. An async one is cancelled. Only over Echo.
        """
        return cancelled()

    # ---- for the wire side --------------------------------------------------------------------------------------------

    def joined(self, strategy: dict[str, Any] | None, noise: str | None) -> None:
        """If the server optimises, `state` is what it publishes, and `optimize` is not called."""

    def welcomed(self, worker: str, population: int, max_epochs: int) -> None:
        """The server has accepted this worker."""
        self._id, self._population, self._max_epochs = worker, population, max_epochs

    def pack(self, state: Any) -> bytes:
        """The state as bytes, without pickle."""
        return states.pack(state)

    def unpack(self, data: Any) -> Any:
        """The state from bytes, as S."""
        return states.unpack(data, self._state_type)

    async def changed(self, state: Any) -> None:
        """There is a new state."""
        self._state, self._has_state = state, True
        await self._call(self.on_state_change, state)

    async def call_initialize(self) -> Any:
        return await self._call(self.initialize)

    @property
    def tests(self) -> bool:
        """Whether it can do tests."""
        return type(self).test is not Worker.test

    def cancel(self) -> None:
        """Nobody needs the result of the present evaluation any more."""
        evaluating = self._evaluating
        if evaluating is not None:
            loop, future = evaluating
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(future.cancel)

    async def call_evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        return list(await self._cancellable(self.evaluate, epoch, slices))

    async def call_test(self, epoch: int, state: bytes, episodes: int) -> list[float]:
        rewards = [float(reward) for reward in await self._cancellable(self.test, self.unpack(state), episodes)]
        if len(rewards) != episodes:
            raise ValueError(f"test was called for {episodes} episodes and returned {len(rewards)} rewards; return one for each")
        return rewards

    async def call_optimize(self, epoch: int, rewards: list[float]) -> Any:
        return await self._call(self.optimize, epoch, rewards)

    async def call_stop(self, cancel: bool) -> None:
        await self._call(self.on_stop, cancel)

    async def _cancellable(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a hook that `cancel` ends if it is async. A plain one goes on until it has asked `cancelled`."""
        if not inspect.iscoroutinefunction(hook):
            return await self._call(hook, *arguments)
        future = asyncio.ensure_future(hook(*arguments))
        self._evaluating = asyncio.get_running_loop(), future
        try:
            return await future
        finally:
            self._evaluating = None

    async def _call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        if inspect.iscoroutinefunction(hook):
            return await hook(*arguments)
        context = contextvars.copy_context()  # `cancelled` asks there
        result = await asyncio.get_running_loop().run_in_executor(self._hooks, context.run, hook, *arguments)
        return await result if inspect.isawaitable(result) else result


def _state_type(kind: type) -> type | None:
    """The dataclass `S` that a subclass of `Worker[S]` names."""
    for base in kind.__mro__:
        for parent in getattr(base, "__orig_bases__", ()):
            for argument in typing.get_args(parent):
                if isinstance(argument, type) and dataclasses.is_dataclass(argument):
                    return argument
    return None
