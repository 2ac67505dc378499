"""One conversation over ZeroMQ as a channel of bytes.

ZeroMQ sends messages, hides that a connection was lost, and drops what it has no room for. A channel needs bytes in order, an end of the
stream, and a sender that waits. So each message begins with a byte that says what it is:

    H  hello         the first message of a worker; a conversation that begins with another one is answered with E
    D  data          at most PIECE_BYTES
    C  credit        how many bytes were read in all: the other end may be WINDOW_BYTES ahead of that
    E  end           nothing more comes; after an orderly shutdown, and in answer to a conversation that is not known
    B  beat          a sign of life
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from echo_core.wire.protocol import Buffer
from echo_net.channel import Channel

HELLO, DATA, CREDIT, END, BEAT = b"H", b"D", b"C", b"E", b"B"
PIECE_BYTES = 128 << 10
WINDOW_BYTES = 2 << 20  # the most that waits in ZeroMQ and in the receiver together, for each conversation
WAITING_BYTES = 512 << 10  # the most that waits for credit; beyond that `send` waits
SILENCE_SECONDS = 20.0  # without a sign of life: the other end is gone
LINGER_SECONDS = 1.0  # for what was sent before `shutdown` to be taken


class ZmqChannel(Channel):
    """See `echo_net.channel.Channel`. `send` and `receive` are called by Echo, the methods below by the thread that has the socket.

    Args:
        peer: names the other end, for people.
        wake: tells the thread of the socket that there is something to send; from any thread.
        released: called by `close`, in the process that made the channel.
    """

    def __init__(self, peer: str, wake: Callable[[], None], released: Callable[[], None] = lambda: None) -> None:
        self.peer = peer
        self._wake = wake
        self._released = released
        self._process = os.getpid()
        self._changed = threading.Condition()  # holds the lock of everything below
        self._control: deque[bytes] = deque()  # messages that need no credit
        self._waiting: deque[bytes] = deque()  # pieces that do
        self._waiting_bytes = self._sent = self._credit = 0  # bytes: now, in all, in all
        self._arrived: deque[memoryview] = deque()
        self._received = self._read = self._told = 0  # bytes in all; `_told` was sent as credit
        self._rest = memoryview(b"")  # of a piece that `recv_into` has begun; the reader's own
        self._shut_at = 0.0  # `shutdown` was called, at this time.monotonic()
        self._end_sent = self._ended = False  # `_ended`: the other end sends nothing more
        self._error: OSError | None = None
        self._heard_at = time.monotonic()

    # ------------------------------------------------------------------------------ called by Echo

    def send(self, buffers: Sequence[Buffer]) -> None:
        whole = memoryview(b"".join(buffers))  # their memory may change once this returns
        for start in range(0, len(whole), PIECE_BYTES):
            piece = DATA + whole[start : start + PIECE_BYTES]
            with self._changed:
                self._changed.wait_for(lambda: self._waiting_bytes < WAITING_BYTES or self._over())
                if self._over():
                    raise self._error or ConnectionAbortedError("the connection is closed")
                self._waiting.append(piece)
                self._waiting_bytes += len(piece) - 1
            self._wake()

    def receive(self) -> Buffer:
        if self._rest:
            rest, self._rest = self._rest, memoryview(b"")
            return rest
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._ended or self._shut_at or self._error)
            if self._shut_at or not self._arrived:
                if self._error and not self._shut_at:
                    raise self._error
                return b""
            piece = self._arrived.popleft()
            self._read += len(piece)
            if credit_due := self._read - self._told >= WINDOW_BYTES // 4:
                self._told = self._read
                self._control.append(CREDIT + struct.pack("<Q", self._read))
        if credit_due:
            self._wake()
        return piece

    def recv_into(self, buffer: memoryview) -> int:
        piece = memoryview(self.receive())
        taken = min(len(piece), len(buffer))
        buffer[:taken] = piece[:taken]
        self._rest = piece[taken:]
        return taken

    def shutdown(self) -> None:
        with self._changed:
            self._shut_at = self._shut_at or time.monotonic()
            self._changed.notify_all()
        self._wake()

    def close(self) -> None:
        if os.getpid() == self._process:  # in a forked child the socket and its thread are the parent's
            self.shutdown()
            self._released()

    def _over(self) -> bool:
        return bool(self._shut_at or self._error or self._ended)

    # -------------------------------------------------------- called by the thread that has the socket

    def take(self, message: memoryview) -> None:
        """A message has come."""
        kind, body = bytes(message[:1]), message[1:]
        with self._changed:
            self._heard_at = time.monotonic()
            if kind == DATA:
                self._received += len(body)
                if self._received - self._told > WINDOW_BYTES + PIECE_BYTES:
                    self._error = ConnectionAbortedError("it sent more than it was allowed to")
                self._arrived.append(body)
            elif kind == CREDIT and len(body) == 8:
                self._credit = max(self._credit, struct.unpack("<Q", body)[0])
            elif kind == END:
                self._ended = True
            self._changed.notify_all()

    def messages(self) -> list[bytes]:
        """What may be sent now."""
        with self._changed:
            out = list(self._control)
            self._control.clear()
            while self._waiting and self._sent - self._credit < WINDOW_BYTES:
                piece = self._waiting.popleft()
                self._waiting_bytes -= len(piece) - 1
                self._sent += len(piece) - 1
                out.append(piece)
            late = self._shut_at and time.monotonic() - self._shut_at > LINGER_SECONDS
            if self._shut_at and (late or not self._waiting) and not self._end_sent:
                self._end_sent = True
                out.append(END)
            self._changed.notify_all()
        return out

    def lose(self, error: OSError) -> None:
        """The other end cannot be reached any more."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def is_over(self) -> bool:
        """There is nothing more to send, so the conversation may be forgotten."""
        if time.monotonic() - self._heard_at > SILENCE_SECONDS:
            self.lose(ConnectionResetError(f"{self.peer} has given no sign of life for {SILENCE_SECONDS:g} s"))
        return self._end_sent or self._error is not None
