"""One channel after its handshake: frames in, frames out, and a thread that does the writing.

The owner of a link reads from it in one thread of its own. Writing is left to the link's thread,
so that a peer that reads slowly never keeps the owner from reading. Two ends that both wait for
the other to read would wait for ever.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np

from echo_core.base.errors import ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.base.spare_threads import started
from echo_core.base.waiting import Wait, shown
from echo_core.wire.protocol import HEADER_BYTES, REPLY, Buffer, Header, Kind, frame, parse_header

from ..handshake import ClientHandshake, ServerHandshake
from ..network.silence import unwatch, watch
from .channel import Channel

__all__ = ["Gate", "Link", "Waitable", "Work", "deadline", "run_handshake", "wait_until"]

BUFFER_BYTES = 64 << 10
NO_PIECE = memoryview(b"")
NOTHING = 0  # the number of work that has none
MOST_POSTED, MOST_POSTED_BYTES = 16, 1 << 20  # frames posted and not begun; beyond that a link is `crowded`

#: What to write next, and the number `Link.written` takes once that is handed over.
Work = tuple[Iterable[Buffer], int]


class Waitable(Protocol):
    """What `wait_until` sleeps on: a `threading.Condition`, or something else that wakes the waiting threads."""

    def wait(self, timeout: float | None, /) -> object:
        """Sleep for at most `timeout` seconds, or without a limit if it is None. The lock is held before and after, and is free meanwhile."""


def wait_until(
    condition: Waitable,
    ready: Callable[[], bool],
    timeout: float,
    waiting: Callable[[], str],
    advice: Callable[[], str] = lambda: "wait longer (timeout=)",
    nap: Callable[[], float] = lambda: math.inf,
) -> None:
    """Sleep on `condition`, whose lock is held, until `ready()`. After some seconds, a line in the log says who waits for whom.

    Args:
        condition: what to sleep on.
        ready: ends the wait when it returns true.
        timeout: seconds, or math.inf for no limit.
        waiting: returns a text that says who waits for whom.
        advice: returns the advice for the error.
        nap: returns after how many seconds to call `ready` again even if nobody notifies.

    Raises:
        EchoTimeoutError: `timeout` seconds are over.
    """
    wait = Wait(timeout)
    while not ready():
        until = wait.look(
            lambda: f"{waiting()}; gave up after {shown(timeout)} s; {advice()}",
            lambda waited: f"{waiting()} (for {waited:.0f} s so far)",
        )
        until = min(until, nap())
        condition.wait(None if until == math.inf else min(until, threading.TIMEOUT_MAX))


@contextmanager
def deadline(channel: Channel, seconds: float, what: str) -> Iterator[None]:
    """Shut `channel` down if the block takes longer than `seconds`. The block then ends with an EchoTimeoutError."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        channel.shutdown()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    started(timer)
    try:
        yield
    except OSError as error:  # most EchoErrors of a broken connection are OSErrors too
        if late.is_set():
            raise EchoTimeoutError(f"{what} took longer than {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
        # Its thread may be inside give_up: the caller is free to close the channel only after.
        timer.join()


def run_handshake(channel: Channel, handshake: ClientHandshake | ServerHandshake) -> None:
    """Exchange messages until `handshake` is done, or agreed if the learner holds it. If the learner refuses, this sends the refusal.

    Raises the errors of the handshake, and ConnectionClosedError or OSError if the peer is lost.
    """
    buffer = memoryview(bytearray(BUFFER_BYTES))
    try:
        if isinstance(handshake, ClientHandshake):
            channel.send([handshake.start()])
        while not (handshake.done or (isinstance(handshake, ServerHandshake) and handshake.agreed)):
            n = channel.recv_into(buffer)
            if n == 0:
                raise ConnectionClosedError(f"the {handshake.other} hung up during the handshake")
            if reply := handshake.receive(buffer[:n]):
                channel.send([reply])
    finally:
        if isinstance(handshake, ServerHandshake) and handshake.refusal:
            with suppress(OSError):
                channel.send([handshake.refusal])


class Gate:
    """The lock of a link's owner, and the conditions on which its threads sleep."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)  # for callers. It is notified of written frames only while a caller is `watching`
        self.work = threading.Condition(self.lock)  # for the link's thread: there may be work
        self.watchers = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have `changed` notified of written frames, for a caller that holds the lock and waits for one. Otherwise it is not, because every
        frame would wake callers that wait for something else, such as a `send` that waits for room."""
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1


def _no_work() -> None:
    return None


class Link:
    """Frames over a channel.

    Attributes:
        error: why the link ended, or None while it works.
        written: the number of the last work that was handed over whole.
        received: how many bytes were received.
        sent: how many bytes were sent, including those that are being written.
        half_since: when a frame began whose rest has not arrived (`time.monotonic()`); 0.0 if there is none.
        heard_at: when the last bytes of the other end arrived. A transport that hears from the other end in another way may set it.

    Args:
        channel: the channel after its handshake. The link shuts it down, and closes it in `finish`.
        leftover: the bytes that were read after the handshake.
        sample_bytes, allowed: as `parse_header` takes them.
        gate: the gate of the link's owner.
        work: returns what to write when nothing is posted, or None. It is called with `gate.lock` held. The buffers may come from a
            generator, which runs without the lock.
    """

    def __init__(
        self,
        channel: Channel,
        leftover: bytes,
        sample_bytes: int,
        allowed: frozenset[Kind],
        gate: Gate,
        work: Callable[[], Work | None],
        silence: float,
        beat: float,
    ) -> None:
        self.silence = silence
        self.beat = beat
        self.error: Exception | None = None
        self.written = 0
        self.received = len(leftover)
        self.sent = 0
        self.half_since = 0.0
        self.heard_at = time.monotonic()
        self._reads_since = 0.0
        self._channel = channel
        self._sample_bytes = sample_bytes
        self._allowed = allowed
        self._gate = gate
        self._work = work
        self._posted: deque[bytes] = deque()
        self._posted_bytes = 0
        self._writing: int | None = None  # the number of the work that is being written
        self._closed = False
        # Bytes received and not yet read: _buffer[_start:_end]. With `_pieces` every buffer is
        # a piece of the channel's, good for ever; else it is filled again and again.
        self._pieces = False
        self._buffer = memoryview(bytearray(max(BUFFER_BYTES, len(leftover))))
        self._buffer[: len(leftover)] = leftover
        self._start, self._end = 0, len(leftover)
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._writer: threading.Thread | None = None

    @property
    def channel(self) -> Channel:
        """The channel that carries the frames."""
        return self._channel

    @property
    def piece_bytes(self) -> int:
        """The size of the piece of memory that the channel gave last; the link keeps it until it waits for the next. 0: there is none."""
        return len(self._buffer) if self._pieces else 0

    @property
    def posted_bytes(self) -> int:
        """How many posted bytes wait until their writing begins."""
        return self._posted_bytes

    def start(self) -> None:
        """Begin to write. The caller holds `gate.lock`."""
        watch(self)
        if not self._channel.pull(self._produce, self.fail):
            writer = threading.Thread(target=self._write, name="echo-writer", daemon=True)
            self._writer = started(writer)

    def ended(self) -> Exception:
        """A copy of `error` to raise. A raised error refers to the frames that it passed through, and these refer to the link. The error itself
        would therefore keep the link and its memory until the garbage collector runs."""
        return copy.copy(self.error) if self.error is not None else ConnectionClosedError("the connection is closed")

    # ----------------------------------------------------------------- reading, by one thread

    def read_header(self) -> Header:
        """Wait for the next frame. Raises ProtocolError, ConnectionClosedError or OSError."""
        self._fill(self._header, begun=False)
        return parse_header(self._header, self._sample_bytes, self._allowed)

    def read(self, length: int) -> Buffer:
        """Read `length` bytes of the frame's payload. Their memory does not change afterwards."""
        if self._pieces and 0 < length <= self._end - self._start:
            self._start += length  # it lies in one piece: no copy
            self.half_since = 0.0
            return self._buffer[self._start - length : self._start]
        data = np.empty(length, np.uint8).data if length >= BUFFER_BYTES else memoryview(bytearray(length))  # a bytearray is zeroed first
        self._fill(data, begun=True)
        return data

    def _fill(self, view: memoryview, begun: bool) -> None:
        done, wanted = 0, len(view)
        while done < wanted:
            if self._start == self._end:
                if begun or done:
                    self.half_since = self.half_since or time.monotonic()
                large = wanted - done >= BUFFER_BYTES  # then past the buffer: one copy less
                n = self._more(view[done:] if large else None)
                if n == 0:
                    if self.error is not None:
                        raise self.ended()
                    middle = " in the middle of a frame" if begun or done else ""
                    raise ConnectionClosedError(f"the other end closed the connection{middle}")
                self.received += n
                self.heard_at = time.monotonic()
                if large and not self._pieces:
                    done += n
                    continue
            take = min(wanted - done, self._end - self._start)
            view[done : done + take] = self._buffer[self._start : self._start + take]
            self._start += take
            done += take
        self.half_since = 0.0

    def drain(self) -> None:
        """Read and discard bytes until the other end hangs up or the link fails. Hanging up on unread bytes could destroy the last frames sent."""
        with suppress(OSError, EchoError):
            while self._more(None):
                pass

    def _more(self, view: memoryview | None) -> int:
        """Wait for bytes: into `view` if given, else into the buffer, or as one. How many came."""
        self._reads_since = time.monotonic()
        if self._pieces:
            self._buffer, self._start, self._end = NO_PIECE, 0, 0  # otherwise every idle connection would keep its last piece
        try:
            piece = self._channel.receive()
            if piece is not None:
                self._pieces = True
                self._buffer, self._start, self._end = memoryview(piece), 0, len(piece)
                return self._end
            if view is not None:
                return self._channel.recv_into(view)
            self._start, self._end = 0, 0
            self._end = self._channel.recv_into(self._buffer)
            return self._end
        except OSError:
            if self.error is not None:
                raise self.ended() from None  # which says why the channel was shut down
            raise
        finally:
            self._reads_since = 0.0

    @property
    def reads(self) -> bool:
        """Whether a thread waits for bytes now. Otherwise the silence of the other end says nothing about it."""
        return self._reads_since > 0

    def look(self) -> bool:
        """See `silence.Listening`."""
        if self.error is not None:
            return False
        since = self._reads_since
        if since and time.monotonic() - max(since, self.heard_at) > self.silence:
            self.fail(ConnectionClosedError(f"the other end was silent for {self.silence:g} s (option silence)"))
            return False
        return True

    # --------------------------------------------------------------- writing, from any thread

    def post(self, data: bytes, instead_of: bytes = b"") -> None:
        """Write a small frame before any further work. If the posted frame `instead_of` is still unwritten, it is not written. The caller holds
        `gate.lock`."""
        if instead_of in self._posted:
            self._posted.remove(instead_of)
            self._posted_bytes -= len(instead_of)
        self._posted.append(data)
        self._posted_bytes += len(data)
        self._gate.work.notify_all()

    def send_soon(self, data: bytes) -> None:
        """As `post`, for a caller that does not hold the lock."""
        with self._gate.lock:
            self.post(data)

    def crowded(self) -> bool:
        """Whether so many posted bytes are unwritten that the owner should do nothing that posts more."""
        return len(self._posted) > MOST_POSTED or self._posted_bytes > MOST_POSTED_BYTES

    def idle(self) -> bool:
        """Whether everything posted is written. The caller holds `gate.lock`."""
        return not self._posted and self._writing is None

    def _write(self) -> None:
        while (buffers := self._produce()) is not None:
            try:
                self._channel.send(buffers)
            except Exception as error:
                self.fail(error)
                return
            del buffers  # while there is nothing to write, they would keep weights in memory

    def _produce(self) -> list[Buffer] | None:
        """What to write next, asked for when all before is written; waits for it. None: the end."""
        try:
            if (work := self._next()) is None:
                return None
            buffers = list(work[0])  # without the lock: a large frame is put together here
            self.sent += sum(map(len, buffers))  # before it is written: the other end may answer before this thread goes on
            self._writing = work[1]
            return buffers
        except Exception as error:
            self.fail(error)
            return None

    def _next(self) -> Work | None:
        with self._gate.lock:
            if self._writing is not None:
                self.written = max(self.written, self._writing)
                self._writing = None
                if self._gate.watchers:
                    self._gate.changed.notify_all()
            while self.error is None:
                if self._posted:
                    self._writing = NOTHING
                    data = self._posted.popleft()
                    self._posted_bytes -= len(data)
                    return [data], 0
                if (work := self._work()) is not None:
                    self._writing = NOTHING
                    return work
                if not self._gate.work.wait(self.beat):
                    self.post(frame(Kind.PING, flags=REPLY))  # a sign of life, which needs no answer
            return None

    # ------------------------------------------------------------------------------ the end

    def fail(self, error: Exception) -> None:
        """End the connection. Reading and writing stop at once. Any thread may call it."""
        with self._gate.lock:
            self.error = self.error or error
            if not self._closed:
                self._channel.shutdown()
            self._gate.work.notify_all()
            self._gate.changed.notify_all()

    def finish(self) -> None:
        """Free everything. It is the last call of the thread that reads."""
        self.fail(ConnectionClosedError("closed"))
        unwatch(self)
        if self._writer is not None:
            self._writer.join()
        with self._gate.lock:
            self._closed = True
            self._work = _no_work  # the link must not keep its owner alive
        self._channel.close()

    def forget(self) -> None:
        """In a forked child: close the copy of the channel without disturbing the parent's connection."""
        self._channel.close()
