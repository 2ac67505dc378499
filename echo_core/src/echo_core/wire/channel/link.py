"""One channel after its handshake: frames in, frames out, and a thread that does the writing.

The owner of a link reads from it in one thread of its own. Writing is left to the link's thread,
so that a peer that reads slowly never keeps its owner from reading: two ends that both wait for
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

from ...base.errors import ConnectionClosedError, EchoError, EchoTimeoutError
from ...base.spare_threads import started
from ...base.waiting import Wait, shown
from ..handshake import ClientHandshake, ServerHandshake
from ..protocol import HEADER_BYTES, REPLY, Buffer, Header, Kind, frame, parse_header
from ..silence import unwatch, watch
from .channel import Channel

__all__ = ["Gate", "Link", "Waitable", "Work", "deadline", "run_handshake", "wait_until"]

BUFFER_BYTES = 64 << 10
NOTHING = 0  # the number of work that has none
MOST_POSTED, MOST_POSTED_BYTES = 16, 1 << 20  # frames posted and not begun; beyond that a link is `crowded`

#: What to write next, and the number `Link.written` takes once that is handed over.
Work = tuple[Iterable[Buffer], int]


class Waitable(Protocol):
    """What `wait_until` sleeps on: a `threading.Condition`, or something else that wakes whoever waits."""

    def wait(self, timeout: float | None, /) -> object:
        """Sleep for at most so many seconds (None: no limit). The lock is held before and after, and free meanwhile."""


def wait_until(
    condition: Waitable,
    ready: Callable[[], bool],
    timeout: float,
    waiting: Callable[[], str],
    advice: Callable[[], str] = lambda: "wait longer (timeout=)",
    nap: Callable[[], float] = lambda: math.inf,
) -> None:
    """Sleep on `condition` (held) until `ready()`. `waiting()` says who waits for whom, `advice()` what to do about it,
    `nap()` after how many seconds to look again unasked.

    Raises EchoTimeoutError after `timeout` seconds (math.inf: never); logs once after a few.
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
    """Shut `channel` down if the block takes longer, which ends it with an EchoTimeoutError."""
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
    """Exchange messages until `handshake` is done, or agreed and held by the learner; a learner's refusal is sent.

    Raises what the handshake raises, ConnectionClosedError or OSError when the peer is lost.
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
    """An owner's lock, and what its threads sleep on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)  # callers: something has moved; that a frame was written, only while one is `watching`
        self.work = threading.Condition(self.lock)  # the link's thread: there may be work
        self.watchers = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For a caller that holds the lock and sleeps until something is written. A caller that sleeps for another reason, as a `send` for
        room does, would be woken by every frame for nothing."""
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
        error: why it ended; None while it stands.
        written: the number of the last work that was handed over whole.
        received, sent: how many bytes; those that are just being written are sent.
        half_since: since when a frame has begun and its rest is awaited (`time.monotonic()`); 0.0 if none has.
        heard_at: when something of the other end arrived last. A transport that hears of the other end by another way may set it.

    Args:
        channel: after its handshake; the link shuts it down, and closes it in `finish`.
        leftover: bytes read beyond the handshake.
        sample_bytes, allowed: as `parse_header` takes them.
        gate: the owner's.
        work: what to write when nothing was posted, or None; called with `gate.lock` held. The
            buffers may be a generator: it runs without the lock.
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
        """What it runs over."""
        return self._channel

    @property
    def posted_bytes(self) -> int:
        """How many bytes are posted and not yet begun to be written."""
        return self._posted_bytes

    def start(self) -> None:
        """Begin writing; `gate.lock` held."""
        watch(self)
        if not self._channel.pull(self._produce, self.fail):
            writer = threading.Thread(target=self._write, name="echo-writer", daemon=True)
            self._writer = started(writer)

    def ended(self) -> Exception:
        """A copy of `error` to raise. An error refers to the frames through which it was raised, and these to the link. The link would then stay,
        with all memory that is on its way, until the garbage collector runs."""
        return copy.copy(self.error) if self.error is not None else ConnectionClosedError("the connection is closed")

    # ----------------------------------------------------------------- reading, by one thread

    def read_header(self) -> Header:
        """Wait for the next frame. Raises ProtocolError, ConnectionClosedError or OSError."""
        self._fill(self._header, begun=False)
        return parse_header(self._header, self._sample_bytes, self._allowed)

    def read(self, length: int) -> Buffer:
        """`length` bytes of the frame's payload, which nobody will change."""
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
        """Read on, and forget it, until the other end hangs up or the link fails: hanging up on unread bytes may destroy what was written last."""
        with suppress(OSError, EchoError):
            while self._more(None):
                pass

    def _more(self, view: memoryview | None) -> int:
        """Wait for bytes: into `view` if given, else into the buffer, or as one. How many came."""
        self._reads_since = time.monotonic()
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

    def post(self, data: bytes) -> None:
        """Write a whole small frame before any further work; `gate.lock` held."""
        self._posted.append(data)
        self._posted_bytes += len(data)
        self._gate.work.notify_all()

    def send_soon(self, data: bytes) -> None:
        """As `post`, for a caller that does not hold the lock."""
        with self._gate.lock:
            self.post(data)

    def crowded(self) -> bool:
        """Whether so much is posted and unwritten that nothing should be done that posts more."""
        return len(self._posted) > MOST_POSTED or self._posted_bytes > MOST_POSTED_BYTES

    def idle(self) -> bool:
        """Nothing posted is unwritten; `gate.lock` held."""
        return not self._posted and self._writing is None

    def _write(self) -> None:
        while (buffers := self._produce()) is not None:
            try:
                self._channel.send(buffers)
            except Exception as error:
                self.fail(error)
                return

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
        """End the connection, from any thread: reading and writing stop at once."""
        with self._gate.lock:
            self.error = self.error or error
            if not self._closed:
                self._channel.shutdown()
            self._gate.work.notify_all()
            self._gate.changed.notify_all()

    def finish(self) -> None:
        """The reading thread's last call: everything is freed."""
        self.fail(ConnectionClosedError("closed"))
        unwatch(self)
        if self._writer is not None:
            self._writer.join()
        with self._gate.lock:
            self._closed = True
            self._work = _no_work  # the link must not keep its owner alive
        self._channel.close()

    def forget(self) -> None:
        """In a forked child: give the copy of the channel back, disturbing nobody."""
        self._channel.close()
