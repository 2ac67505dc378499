"""`Worker`: what evaluates individuals and optimises the state that all workers share. Its interface is that of Evochi's client."""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar, cast

from echo_core.base.address import Address

from ..arguments import number, whole
from ..observations.shared import SharedObservations
from .hooks import AsyncHooks, Hooks

__all__ = ["Worker"]

S = TypeVar("S")


class _Link(Protocol):
    async def run(self) -> None: ...
    async def close(self) -> None: ...


class Worker(ABC, Generic[S]):
    """Evaluates individuals for a server, until it is over.

    Override `initialize`, `evaluate` and `optimize`, and if you like `on_stop`, `on_state_change` and `on_test`. Each of them may be plain or async. A plain
    one runs on a thread of its own, so the connection stays alive however long it takes. Ctrl-C and `close` do not wait for it.

    Args:
        channel: the address of an `ESServer`, such as `"tcp://learner:5555"`, or a channel of grpc.aio to a server of Evochi's protocol.
        cores: the largest number of individuals that `evaluate` gets at once.
        token: the secret that an Echo server and its workers share, or the join token of a server of Evochi's protocol.
        name: this worker's name in logs and statistics.
        reconnect: for how many seconds it tries to connect again after the connection is lost. At the start it tries for as long, but over Echo for at least
            5 seconds.
        codec: "auto" never unpickles. "pickle" also opens states that clients of Evochi have pickled. That runs any code that their senders have chosen.
        state_type: the dataclass of the state, if it is not given as `Worker[S]`.
        experiment: the name of the search. It is needed only if the server has several. It works only over Echo.
        observations: the statistics to which the hooks add observations, if the server merges them. It works only over Echo.

    Raises ValueError if an argument is invalid.
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
        observations: SharedObservations | None = None,
    ) -> None:
        self.cores = whole("cores", cores, 1)
        reconnect = number("reconnect", reconnect, least=0)
        if codec not in ("auto", "pickle"):
            raise ValueError(f"codec: there is no {codec!r}; choose 'auto' or 'pickle'")
        state_type = state_type or _state_type(type(self))
        tests = type(self).on_test is not Worker.on_test
        # Python adds the class's name to these two names, so a class of yours can use all other names for itself.
        self.__hooks: Hooks | AsyncHooks
        self.__link: _Link
        if isinstance(channel, str | Address):
            if codec == "pickle":
                raise ValueError("codec: nothing is pickled over an address of Echo; codec='pickle' is for channels of grpc.aio")
            from .link import EchoLink
            from .link_thread import LinkThread

            hooks = self.__hooks = Hooks(self, state_type, observations, tests)
            self.__link = LinkThread(hooks, EchoLink(hooks, channel, token=token, name=name, reconnect=reconnect, experiment=experiment))
        else:
            for argument, given in (("experiment", experiment), ("observations", observations)):
                if given is not None:
                    raise ValueError(f"{argument}: servers of Evochi's protocol have no such thing; leave it out")
            from ..evochi.needed import require

            require()
            from ..evochi.client import EvochiLink

            own = self.__hooks = AsyncHooks(self, state_type, observations, tests)
            self.__link = EvochiLink(own, channel, pickled=codec == "pickle", reconnect=reconnect, token=token)

    # ---- for you to write ---------------------------------------------------------------------------------------------

    @abstractmethod
    def initialize(self) -> Any:
        """The first state, of type S. One worker is asked for it."""

    @abstractmethod
    def evaluate(self, epoch: int, slices: list[slice]) -> Any:
        """The rewards of these individuals, as a list of `Eval`. There are at most `cores` individuals.

        Each individual needs exactly one reward. The slices of the list may be the given ones, or divide the individuals in another way.
        """

    @abstractmethod
    def optimize(self, epoch: int, rewards: list[float]) -> Any:
        """The next state, of type S, from the rewards of the whole epoch. All workers must compute the same."""

    def on_test(self, state: S, episodes: int) -> Any:
        """The rewards of this state without noise, as a list with one for each episode.

        Write this method if the server calls `ESServer.test`. It works only over Echo.
        """
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
        if not hasattr(self, "_Worker__link"):
            raise RuntimeError(f"{type(self).__name__}.__init__ must call super().__init__(channel, cores), which it does not")
        try:
            await self.__link.run()
        finally:
            self.__hooks.end()

    async def close(self) -> None:
        """Leave the server. A second call does nothing over Echo, and raises RuntimeError on a channel of grpc.aio, as Evochi's client does."""
        await self.__link.close()

    @property
    def id(self) -> str:
        """The name that the server gave. Raises RuntimeError before it is known, as the next three do."""
        return cast("str", _known(self.__hooks.id, "id"))

    @property
    def population_size(self) -> int:
        """The individuals in an epoch."""
        _known(self.__hooks.id, "population_size")
        return self.__hooks.population

    @property
    def max_epochs(self) -> int:
        """The number of epochs. 0 means that there is no limit."""
        _known(self.__hooks.id, "max_epochs")
        return self.__hooks.max_epochs

    @property
    def state(self) -> S:
        """The newest state that this worker has."""
        _known(True if self.__hooks.has_state else None, "state")
        return cast("S", self.__hooks.state)


def _known(value: Any, what: str) -> Any:
    if value is None:
        raise RuntimeError(f"{what} is not known yet: the server tells it after start()")
    return value


def _state_type(kind: type) -> type | None:
    """The dataclass `S` that a subclass of `Worker[S]` names."""
    for base in kind.__mro__:
        for parent in getattr(base, "__orig_bases__", ()):
            for argument in typing.get_args(parent):
                if isinstance(argument, type) and dataclasses.is_dataclass(argument):
                    return argument
    return None
