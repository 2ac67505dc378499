"""The wire side of a `Worker` on a channel of grpc.aio: it speaks Evochi's protocol, to our server or to Evochi's own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from echo_core import EchoError

from .. import state as states
from . import codec, frames
from .codec import decode
from .skippable import ours

if TYPE_CHECKING:
    from ..workers.hooks import AsyncHooks

import grpc
import grpc.aio

__all__ = ["EvochiLink"]

_log = logging.getLogger("echo.es")
# The server does not need the result any more, does not know this worker any more, or is being closed, when gRPC cancels the calls that are under way.
# Then the stream of events ends, which says why: a worker that took a cancelled report for its removal would not join the server that goes on.
_OVER = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.CANCELLED)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two attempts to reach the server


class EvochiLink:
    """One worker's connection to an evochi.v1 service.

    Args:
        owner: the worker.
        channel: a channel of grpc.aio, which the user has made.
        pickled: whether states of Evochi's clients may be unpickled. That runs any code that their senders have chosen.
        reconnect: for how many seconds it tries to connect again after the connection is lost.
        token: the join token that a server beyond loopback asks for.
    """

    def __init__(self, owner: AsyncHooks, channel: grpc.aio.Channel, *, pickled: bool = False, reconnect: float = 60.0, token: str | None = None) -> None:
        self._owner, self._channel, self._pickled, self._reconnect = owner, channel, pickled, reconnect
        self._joining = ((codec.JOIN_TOKEN, token),) if token else ()
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._state: Any = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._lost: float | None = None  # since when the server is not reached; set when it is lost
        self._welcomed = self._stopped = self._closed = False

        def method(name: str) -> Any:
            return channel.unary_unary(f"/{codec.SERVICE}/{name}")

        self._subscribe = channel.unary_stream(f"/{codec.SERVICE}/Subscribe")
        self._heartbeat, self._finish_evaluation, self._finish_optimization = method("Heartbeat"), method("FinishEvaluation"), method("FinishOptimization")
        self._finish_initialization, self._share_state = method("FinishInitialization"), method("FinishShareState")
        self._handlers: dict[str, Callable[[Any], Awaitable[None]]] = {
            "hello": self._welcome,
            "initialize": self._initialize,
            "evaluate": self._evaluate,
            "optimize": self._optimize,
            "share_state": self._share,
            "stop": self._stop,
        }

    async def run(self) -> None:
        """Work until the server ends it or `close` is called.

        Raises:
            grpc.aio.AioRpcError: the server refuses, or was not reachable for `reconnect` seconds.
            EchoError: the server has a state that this worker does not open.
        """
        await self._channel.channel_ready()
        pause = FIRST_PAUSE
        while True:
            self._welcomed = False
            try:
                await self._work()
                if not self._stopped:
                    raise EchoError("the server has ended the stream of events without a reason")
                break
            except grpc.aio.AioRpcError as error:
                if self._stopped or self._closed or error.code() is grpc.StatusCode.CANCELLED:
                    break
                if self._welcomed or self._lost is None:
                    self._lost, pause = time.monotonic(), FIRST_PAUSE
                left = self._lost + self._reconnect - time.monotonic()
                if error.code() is not grpc.StatusCode.UNAVAILABLE or left <= 0:
                    raise
                _log.warning("the server is lost (%s); the worker tries to join again for %.0f s", error.details(), left)
            except asyncio.CancelledError:
                if not self._closed:
                    raise
                break  # the channel was closed
            finally:
                await self._quiet()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        await self._owner.call_stop(True)

    async def close(self) -> None:
        """Close the channel. Raises RuntimeError the second time, as Evochi's client does."""
        if self._closed:
            raise RuntimeError("this worker is already closed")
        self._closed = True
        await self._quiet()
        await self._channel.close()

    async def _work(self) -> None:
        """Join once, and do what the server asks for until the stream ends."""
        async for data in self._subscribe(codec.Subscribe(cores=self._owner.cores).SerializeToString(), metadata=self._joining):
            event = decode(codec.Event, data)
            for name, handler in self._handlers.items():
                if event.HasField(name):
                    await handler(getattr(event, name))
                    break
            else:
                _log.warning("the server has sent an event of the unknown type %d", event.type)

    async def _welcome(self, hello: Any) -> None:
        self._welcomed = True
        self._metadata = (*self._joining, ("authorization", f"Bearer {hello.token}"))
        await self._quiet()
        self._heartbeats = asyncio.create_task(self._beat(max(hello.heartbeat_interval, 1)))
        self._owner.welcomed(hello.id, hello.population_size, hello.max_epochs)
        if hello.state:
            await self._set(self._opened(hello.state))

    def _opened(self, data: bytes) -> Any:
        own = ours(data)
        if own is not None:
            return self._owner.unpack(own)
        if self._pickled:
            return frames.opened(data)
        raise EchoError(
            "the state that this worker was given comes from a client of Evochi, which has pickled it; to unpickle it runs whatever code its sender chose. "
            'If you trust every worker of this server, create this one with codec="pickle"; otherwise replace the old clients by echo_es.evochi.v1'
        )

    async def _set(self, state: Any) -> None:
        self._state = state
        await self._owner.changed(state)

    def _sealed(self) -> bytes:
        """The state for the wire."""
        return frames.sealed(self._state, self._packed())

    def _packed(self) -> bytes | None:
        """The state in our form; None if it is of a class that only pickle can carry, which is allowed with `pickled`."""
        try:
            return self._owner.pack(self._state)
        except EchoError as error:
            if not self._pickled:
                raise EchoError(f'{error}; or create every worker with codec="pickle" if you trust them all') from error
            return None

    def _digest(self) -> tuple[tuple[str, str], ...]:
        """Metadata that say which state this is, for our server. Evochi's own server does not read them."""
        own = self._packed()
        return () if own is None else ((codec.DIGEST, states.digest(own)),)

    # ---- events -------------------------------------------------------------------------------------------------------

    async def _initialize(self, task: Any) -> None:
        await self._set(await self._owner.call_initialize())
        await self._report(self._finish_initialization, codec.FinishState(task_id=task.task_id, state=self._sealed()))

    async def _evaluate(self, task: Any) -> None:
        given = await self._owner.call_evaluate(task.epoch, [slice(part.start, part.end) for part in task.slices])
        message = codec.FinishEvaluation(task_id=task.task_id)
        for one in given:
            message.evaluations.add(slice=codec.Slice(start=one.slice.start, end=one.slice.stop), rewards=codec.packed(one.rewards))
        await self._report(self._finish_evaluation, message)

    async def _optimize(self, task: Any) -> None:
        await self._set(await self._owner.call_optimize(task.epoch, codec.floats(task.rewards).tolist()))
        await self._report(self._finish_optimization, codec.FinishTask(task_id=task.task_id), await asyncio.to_thread(self._digest))

    async def _share(self, task: Any) -> None:
        await self._report(self._share_state, codec.FinishState(task_id=task.task_id, state=self._sealed()))

    async def _stop(self, task: Any) -> None:
        self._stopped = True
        await self._owner.call_stop(False)

    async def _report(self, method: Any, message: Any, more: tuple[tuple[str, str], ...] = ()) -> None:
        try:
            await method(message.SerializeToString(), metadata=self._metadata + more)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _OVER:
                raise
            _log.info("the result of task %s was not taken: %s", message.task_id, error.details())

    # ---- heartbeats ---------------------------------------------------------------------------------------------------

    async def _beat(self, interval: float) -> None:
        """Say every `interval` seconds that this worker lives. If the server does not take it, the stream of events ends too, which says why."""
        for number in itertools.count(1):
            now = time.time_ns()
            message = codec.Heartbeat(seq_id=number, timestamp=codec.Timestamp(seconds=now // 10**9, nanos=now % 10**9))
            try:
                await self._heartbeat(message.SerializeToString(), metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                _log.debug("heartbeat %d was not taken: %s", number, error.details())
            await asyncio.sleep(interval)

    async def _quiet(self) -> None:
        """End the heartbeats."""
        task, self._heartbeats = self._heartbeats, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
