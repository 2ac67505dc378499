"""A gRPC call as a channel of bytes: `GrpcChannel`, the same for both ends."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import grpc

from echo_core.base.errors import SecurityError
from echo_core.base.forks import OneProcess
from echo_core.base.spare_threads import check_spare_threads
from echo_core.security.tls import CERTIFICATE_ADVICE
from echo_core.wire.protocol import Buffer
from echo_net.channel import Channel

from . import follows_forks
from .memory import keep_freed_memory
from .protobuf import pack, unpack

__all__ = ["GrpcChannel", "Outbox", "in_this_process"]

log = logging.getLogger("echo")

LINGER_SECONDS = 1.0  # after shutdown, a peer that reads slowly has so long to take the bytes that were sent

_grpc = OneProcess("gRPC", "grpc://", "use tcp://")
_left_to_the_parent: list[object] = []  # in a forked child: destroying gRPC's objects there hangs


def in_this_process() -> None:
    """Note that gRPC runs in this process. Raises ForkError in a child of a process where it ran."""
    _grpc.check()
    if not _grpc.used:
        check_spare_threads(8 + min(os.cpu_count() or 1, 16), "grpcio")  # without them it hangs, or aborts the process after some seconds
        keep_freed_memory()
        if follows_forks:
            os.register_at_fork(before=_warn)
    _grpc.use()


@cache  # one line, no matter how often the process forks
def _warn() -> None:
    log.warning(
        "this process forks, and grpcio starts its threads in the child as well, where they read from the parent's connections and may crash: set"
        " GRPC_ENABLE_FORK_SUPPORT=0 in the environment or import echo_grpc before grpcio; or start processes with multiprocessing's 'spawn' or 'forkserver'"
    )


class Outbox:
    """Messages for gRPC, which iterates over them in a thread of its own.

    Until `feed`, messages are put here, and one waits while another is sent. After `feed`, the thread that iterates
    makes them itself: a message that another thread puts costs two wake-ups between the threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._message: bytes | None = None
        self._closed = False
        self._produce: Callable[[], Sequence[Buffer] | None] | None = None
        self._lost: Callable[[Exception], None] | None = None
        self._packed: Iterator[bytes] = iter(())  # the rest of the frame that was produced last

    def put(self, message: bytes) -> None:
        with self._changed:
            while self._message is not None and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ConnectionAbortedError("the connection is closed")
            self._message = message
            self._changed.notify_all()

    def feed(self, produce: Callable[[], Sequence[Buffer] | None], lost: Callable[[Exception], None]) -> None:
        """Make messages by `produce` from now on; nothing is put any more. See `Channel.pull`."""
        with self._changed:
            self._produce, self._lost = produce, lost
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more messages; those that wait are still sent."""
        with self._changed:
            self._closed = True
            # They lead back to the channel: a cycle that is collected in a forked child crashes there.
            self._produce = self._lost = None
            self._changed.notify_all()

    def drop(self) -> None:
        """The call has ended: forget the rest of a frame, which may be a version of the weights."""
        self.close()
        self._packed = iter(())

    def abandon(self) -> None:
        """The call has ended, and with it the iteration. Senders get an error."""
        lost = self._lost
        self.close()
        if lost is not None:  # a reader that waits for space would not notice
            lost(ConnectionAbortedError("the connection is closed"))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            while self._message is None and self._produce is None:
                if self._closed:
                    raise StopIteration
                self._changed.wait()
            if self._message is not None:
                message, self._message = self._message, None
                self._changed.notify_all()
                return message
            produce = self._produce
        assert produce is not None
        while True:
            for message in self._packed:
                return message
            if (buffers := produce()) is None:
                raise StopIteration
            self._packed = pack(buffers)


class GrpcChannel(Channel):
    """See `echo_net.channel.Channel`.

    Attributes:
        received: how many bytes have come.

    Args:
        outbox: the messages that gRPC sends.
        arriving: the messages that it receives; the iteration ends with the stream.
        peer: the other end, shown to people.
        end: ends the call at once, from any thread; called by `shutdown`.
        release: frees the objects of the call; called by `close`.
        hung_up: a hint for the case that the other end closes the connection before a call can begin.
    """

    def __init__(
        self,
        outbox: Outbox,
        arriving: Iterator[bytes],
        peer: str,
        end: Callable[[], Any],
        release: Callable[[], Any],
        hung_up: str = "",
    ) -> None:
        self.peer = peer
        self.received = 0
        self._outbox = outbox
        self._arriving = arriving
        self._end = end
        self._release = release
        self._hung_up = hung_up
        self._rest = memoryview(b"")
        self._over = False
        self._process = os.getpid()

    def send(self, buffers: Sequence[Buffer]) -> None:
        try:
            for message in pack(buffers):
                self._outbox.put(message)
        except ConnectionAbortedError:
            # A call that failed to begin gives the reason, for example a certificate.
            if not self._over and isinstance(self._arriving, grpc.RpcError):
                raise self._ended(self._arriving) from None
            raise

    def pull(self, produce: Callable[[], Sequence[Buffer] | None], lost: Callable[[Exception], None]) -> bool:
        self._outbox.feed(produce, lost)
        return True

    def receive(self) -> memoryview:
        if self._rest:
            piece, self._rest = self._rest, memoryview(b"")
            return piece
        try:
            for message in self._arriving:
                self.received += len(message)
                if piece := unpack(message):
                    return piece
            return memoryview(b"")
        except grpc.RpcError as error:
            # grpcio keeps the error. The frames of its traceback would keep this channel, and the version of the weights that was on its way.
            error.__traceback__ = None
            raise self._ended(error) from None
        except (ValueError, TypeError) as error:  # the call or its channel is closed
            raise ConnectionAbortedError(f"the call is over: {error}") from None

    def _ended(self, error: grpc.RpcError) -> OSError:
        reason = _reason(error)
        # grpcio gives no other reason if the other end refuses this end's TLS, or uses TLS and this end does not.
        if self._hung_up and "failed to connect" in str(reason) and "Socket closed" in str(reason):
            return ConnectionResetError(f"{self.peer} hung up before the call began, {self._hung_up}")
        return reason

    def recv_into(self, buffer: memoryview) -> int:
        piece = self.receive()
        taken = min(len(piece), len(buffer))
        buffer[:taken] = piece[:taken]
        self._rest = piece[taken:]
        return taken

    def shutdown(self) -> None:
        self._over = True
        self._outbox.close()
        self._end()

    def close(self) -> None:
        if os.getpid() == self._process:
            self._outbox.drop()
            self._release()
            # gRPC's objects are freed now. If they were left to the garbage collector, they might be freed in a forked child.
            self._arriving, self._end, self._release = iter(()), _nothing, _nothing
        else:
            _left_to_the_parent.append(self)


def _nothing() -> None:
    """Do nothing: a closed channel calls this."""


def _reason(error: grpc.RpcError) -> OSError:
    """Why a call ended, as the exception that the channel's users expect."""
    code = getattr(error, "code", lambda: None)()
    details = getattr(error, "details", lambda: None)() or "the call was cancelled"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return ConnectionRefusedError(f"busy: the learner takes no more clients ({details})")
    if code is grpc.StatusCode.UNAUTHENTICATED:  # not final: the owner of the certificate, perhaps a proxy, may renew it
        return ConnectionRefusedError(f"the learner refuses the call: {details}")
    # Only a verdict of this worker about a certificate is final. Everything else may be a damaged byte, or somebody who is not the learner.
    if "WRONG_VERSION_NUMBER" in details:
        return ConnectionResetError(f"the learner answers without TLS: use grpc://, or have it listen at grpcs:// ({details})")
    if ("CERTIFICATE_VERIFY_FAILED" in details and "signature failure" not in details) or "verification check failed" in details:
        return SecurityError(f"the learner's certificate and this worker do not agree: {details.removesuffix('.')}; {CERTIFICATE_ADVICE}")
    return ConnectionResetError(details)
