"""The calls of evochi.v1, answered by a coordinator. Everything here runs on the event loop of the front, except `SubscribedWorker.give`.

A worker is greeted when there is a state for it. Evochi's own server greets it at once, and a worker that joins too early fails, because it is
asked to evaluate without a state. The worker that makes the first state is greeted without one.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from echo_core import SecurityError

from .. import state as states
from ..search.tasks import Kind, Member, RefusedError, Task
from . import codec, tokens
from .codec import CodecError, decode
from .skippable import ours

if TYPE_CHECKING:
    from ..search.coordinator import Coordinator
    from .metrics import Metrics
    from .options import FrontOptions

__all__ = ["Service"]

_log = logging.getLogger("echo.es")
CLIENT_BYTES = 4 << 20  # the largest message that a client of grpcio takes by default
OK: bytes = codec.Answer(ok=True).SerializeToString()
_DURATIONS = {Kind.INITIALIZE: "initialize", Kind.EVALUATE: "evaluate", Kind.OPTIMIZE: "optimize", Kind.SHARE: "share_state"}
_REMOVED = grpc.StatusCode.CANCELLED, "server removed you"  # as Evochi's server says
Metadata = Mapping[str, Any]
Context = Any  # grpc.aio.ServicerContext, whose types differ between versions of grpcio


class SubscribedWorker:
    """A worker that has subscribed."""

    def __init__(self, member: Member, loop: asyncio.AbstractEventLoop) -> None:
        self.member = member
        self.tasks: asyncio.Queue[Task | None] = asyncio.Queue()  # None: the worker is removed
        self.token = ""
        self.heard = 0.0  # when its last call came; 0: none came yet
        self.beat = 0.0  # when its last heartbeat came; 0: none came yet
        self._loop, self._thread = loop, threading.get_ident()

    def give(self, task: Task) -> bool:
        """Have the task sent. The coordinator calls it from any thread."""
        if threading.get_ident() == self._thread:
            self.tasks.put_nowait(task)
            return True
        try:
            self._loop.call_soon_threadsafe(self.tasks.put_nowait, task)
        except RuntimeError:  # the loop is closed
            return False
        return True


class Service:
    """Answers the calls of workers.

    Args:
        coordinator: the coordinator, which gives the tasks.
        options: the options of the front.
        metrics: the figures, which count the durations of tasks.
    """

    def __init__(self, coordinator: Coordinator, options: FrontOptions, metrics: Metrics) -> None:
        self._coordinator, self._options, self._metrics = coordinator, options, metrics
        secret = options.secret or secrets.token_bytes(32)
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._subscribed: dict[str, SubscribedWorker] = {}  # by the worker's id
        self._known: dict[str, tuple[SubscribedWorker, float]] = {}  # by token, with the time at which it expires
        self._watching: asyncio.Task[None] | None = None
        self._removal = _REMOVED  # how the stream of a removed worker ends

    def handlers(self) -> grpc.GenericRpcHandler:
        unary = {
            "Heartbeat": self._heartbeat,
            "FinishEvaluation": self._finish_evaluation,
            "FinishOptimization": self._finish_optimization,
            "FinishInitialization": self._take_state,
            "FinishShareState": self._take_state,
        }
        methods = {name: grpc.unary_unary_rpc_method_handler(self._guarded(method)) for name, method in unary.items()}
        return grpc.method_handlers_generic_handler(codec.SERVICE, methods | {"Subscribe": grpc.unary_stream_rpc_method_handler(self._subscribe)})

    def begin(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def end(self, *, restarting: bool) -> None:
        """Remove all workers: those that wait for a task are told that it is over, if it is.

        `restarting`: their streams end as those of a lost connection do, because Evochi's protocol has no other way to say that a server comes back.
        """
        if self._watching is not None:
            self._watching.cancel()
        if restarting:
            self._removal = grpc.StatusCode.UNAVAILABLE, "the server is being restarted"
        for worker in list(self._subscribed.values()):
            worker.tasks.put_nowait(None)

    # ---- the stream of events -----------------------------------------------------------------------------------------

    async def _subscribe(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        options = self._options
        sent = dict(context.invocation_metadata() or ())
        if options.token is not None and not hmac.compare_digest(str(sent.get(codec.JOIN_TOKEN, "")).encode(), options.token.encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"this server asks for a join token: send it as {codec.JOIN_TOKEN} in the metadata of calls")
        if options.max_workers and len(self._subscribed) >= options.max_workers:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"max workers reached ({options.max_workers})")
        try:
            cores = decode(codec.Subscribe, request).cores
            member = self._coordinator.join(f"evochi-{secrets.token_hex(8)}", cores, name=f"evochi {context.peer()}")
        except (CodecError, RefusedError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        member.tests = False
        worker = self._subscribed[member.id] = SubscribedWorker(member, asyncio.get_running_loop())
        try:
            self._coordinator.take(member, worker.give)
            if worker.tasks.empty():
                _log.info("%s waits until there is a state for it", member.name)
            while True:
                task = await worker.tasks.get()
                if task is None:
                    break
                for event in self._events(worker, task):
                    yield event
                if task.kind is Kind.STOP:
                    break
            await context.abort(*(self._removal if task is None else _REMOVED))
        finally:
            del self._subscribed[member.id]
            self._known.pop(worker.token, None)
            self._coordinator.leave(member)

    def _events(self, worker: SubscribedWorker, task: Task) -> list[bytes]:
        """The messages that hand a task to the worker."""
        number = str(task.id)
        if task.kind is Kind.WELCOME:
            hello = self._hello(worker, task.state)
            self._coordinator.report(worker.member, task.id)
            self._coordinator.take(worker.member, worker.give)
            return [hello]
        if task.kind is Kind.INITIALIZE:
            return [self._hello(worker, None), bytes(codec.Event(type=codec.INITIALIZE, initialize=codec.Task(task_id=number)).SerializeToString())]
        if task.kind is Kind.EVALUATE:
            event = codec.Event(type=codec.EVALUATE, evaluate=codec.Evaluate(task_id=number, epoch=task.epoch))
            for part in task.slices:
                event.evaluate.slices.add(start=part.start, end=part.stop)
        elif task.kind is Kind.OPTIMIZE:
            assert task.rewards is not None
            event = codec.Event(type=codec.OPTIMIZE, optimize=codec.Optimize(task_id=number, epoch=task.epoch, rewards=codec.packed(task.rewards)))
        elif task.kind is Kind.SHARE:
            event = codec.Event(type=codec.SHARE_STATE, share_state=codec.ShareState(task_id=number, epoch=task.epoch))
        else:
            event = codec.Event(type=codec.STOP, stop=codec.Task(task_id=number))
        return [bytes(event.SerializeToString())]

    def _hello(self, worker: SubscribedWorker, state: bytes | None) -> bytes:
        options, coordinator = self._options, self._coordinator
        if not worker.token:
            worker.token = tokens.issue(self._secret, worker.member.id, options.expiry)
            self._known[worker.token] = worker, time.time() + options.expiry
        beat = max(1, int(options.worker_timeout / 2))
        hello = codec.Hello(id=worker.member.id, token=worker.token, state=state, population_size=coordinator.population)
        hello.heartbeat_interval, hello.max_epochs = beat, coordinator.max_epochs
        event: bytes = codec.Event(type=codec.HELLO, hello=hello).SerializeToString()
        if len(event) > CLIENT_BYTES:
            _log.warning(
                "%s is sent a state of %.1f MB, but a client of grpcio takes 4 MiB unless its channel has the option grpc.max_receive_message_length",
                worker.member.name,
                len(event) / 1e6,
            )
        return event

    async def _watch(self) -> None:
        """Remove the workers that wait for a task and have sent nothing for too long, and end the streams of those that the coordinator has removed.

        A worker that has a task needs no heartbeat: Evochi's client sends heartbeats from the event loop on which it evaluates, so none come meanwhile, and
        its first one comes after it has taken the state of its greeting. That such a worker is alive is what the pings of HTTP/2 show (`front.py`).
        """
        timeout = self._options.worker_timeout
        while True:
            await asyncio.sleep(timeout / 8)
            late = time.monotonic() - timeout
            for worker in list(self._subscribed.values()):
                if not self._coordinator.has(worker.member):
                    worker.tasks.put_nowait(None)
                elif worker.member.task is None and worker.heard and worker.heard < late:
                    _log.warning("%s has sent no heartbeat for %.1f s and is removed", worker.member.name, timeout)
                    self._coordinator.leave(worker.member)
                    worker.tasks.put_nowait(None)

    # ---- the other calls ----------------------------------------------------------------------------------------------

    def _guarded(self, method: Callable[[SubscribedWorker, bytes, Metadata], None]) -> Callable[[bytes, Context], Any]:
        """A handler that finds out who calls, and turns errors into the codes of gRPC."""

        async def handler(request: bytes, context: Context) -> bytes:
            try:
                sent = dict(context.invocation_metadata() or ())
                worker = self._who(sent)
                worker.heard = time.monotonic()
                method(worker, request, sent)
            except _CallError as error:
                await context.abort(error.code, str(error))
            except CodecError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return OK

        return handler

    def _who(self, sent: Metadata) -> SubscribedWorker:
        """The worker whose token came with the call."""
        token = str(sent.get("authorization", "")).removeprefix("Bearer ")
        found = self._known.get(token)
        if found is not None and time.time() < found[1]:
            return found[0]
        try:
            worker, _ = tokens.verify(self._secret, token)
        except SecurityError as error:
            raise _CallError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        raise _CallError(grpc.StatusCode.UNAUTHENTICATED, f"worker {worker} is not known here any more; it has to join again")

    def _heartbeat(self, worker: SubscribedWorker, request: bytes, _: Metadata) -> None:
        decode(codec.Heartbeat, request)
        if worker.beat:
            self._metrics.observe("heartbeat", worker.heard - worker.beat)
        worker.beat = worker.heard

    def _finish_evaluation(self, worker: SubscribedWorker, request: bytes, _: Metadata) -> None:
        # Two bytes are an Evaluation, which protobuf makes dozens of; nobody needs nearly as many bytes for an individual.
        if len(request) > 64 * (self._coordinator.population + worker.member.cores) + 4096:
            raise _CallError(grpc.StatusCode.INVALID_ARGUMENT, f"{len(request)} bytes are more than the rewards of a whole population")
        message = decode(codec.FinishEvaluation, request)
        parts: list[slice] = []
        rewards: list[Any] = []
        for evaluation in message.evaluations:
            start, end, values = evaluation.slice.start, evaluation.slice.end, codec.floats(evaluation.rewards)
            if end - start != len(values):
                raise _CallError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{len(values)} rewards were given for the individuals {start}:{end}; give exactly one for each",
                )
            parts.append(slice(start, end))
            rewards.append(values)
        self._finish(worker, message.task_id, lambda task: self._coordinator.report(worker.member, task, np.concatenate(rewards) if rewards else (), parts))

    def _finish_optimization(self, worker: SubscribedWorker, request: bytes, sent: Metadata) -> None:
        digest = sent.get(codec.DIGEST)  # None: a client of Evochi, which does not say which state it has
        self._finish(worker, decode(codec.FinishTask, request).task_id, lambda task: self._coordinator.report(worker.member, task, digest=digest))

    def _take_state(self, worker: SubscribedWorker, request: bytes, _: Metadata) -> None:
        message = decode(codec.FinishState, request)
        own = ours(message.state)  # None: only pickle can open it
        digest = None if own is None else states.digest(own)
        self._finish(worker, message.task_id, lambda task: self._coordinator.share(worker.member, task, message.state, digest=digest))

    def _finish(self, worker: SubscribedWorker, number: str, report: Callable[[int], object]) -> None:
        """Report a task, and ask for the next one. A result that does not fit leaves the task as it is."""
        member = worker.member
        held, since = member.task, member.since
        if not number.isascii() or not number.isdecimal() or len(number) > 18:
            raise _CallError(grpc.StatusCode.INVALID_ARGUMENT, f"{number!r:.60} is not the id of a task")
        try:
            report(int(number))
        except RefusedError as error:
            fits = held is not None and str(held.id) == number
            raise _CallError(grpc.StatusCode.INVALID_ARGUMENT if fits else grpc.StatusCode.NOT_FOUND, str(error)) from None
        if held is not None and member.task is not held:
            self._metrics.observe(_DURATIONS[held.kind], time.monotonic() - since)
            self._coordinator.take(member, worker.give)


class _CallError(Exception):
    """Ends a call with a code of gRPC."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
