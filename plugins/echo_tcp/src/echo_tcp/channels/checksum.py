"""TCP with a checksum over everything: the option `checksum`, for `echo_net.channel`.

The stream consists of records: a header, and up to 64 KiB of bytes. The header has four u32, little-endian: the record's number (from 0), its length,
the CRC-32C of these two, and the CRC-32C of the bytes. The numbers show a record that is missing, doubled or in another place. A header is checked before
its length is believed: with a wrong length, the reader would wait for bytes that nobody sends. If bytes of a record are missing, it waits for them all
the same. So a reader that waits long looks whether the header of a later record arrives instead; an idle end sends one every third of `silence`.

TCP's own checksum does not notice what a middlebox changes before it computes the checksum anew. It is no protection against somebody who changes
bytes on purpose: use `tcps://` for that.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from echo_core.base.address import Address
from echo_core.base.errors import ConfigError
from echo_core.wire.protocol import Buffer
from echo_net.channel import Channel
from echo_net.channel.connection import ChannelConnection
from echo_net.channel.listener import ChannelListener

from ..dial import connect
from ..sockets import name_of
from .socket_acceptor import SocketAcceptor

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink

    from ..options import TcpConnectOptions, TcpListenOptions

try:
    from crc32c import crc32c
except ImportError:  # _require_crc32c says so
    crc32c = None  # type: ignore[assignment]

__all__ = ["CheckedChannel", "connect_checked", "listen_checked"]

RECORD_BYTES = 64 << 10  # the most of one record
MAGIC = b"ECHO"  # with which a handshake without records begins
HEAD = struct.Struct("<IIII")
PROVEN = struct.Struct("<II")  # the beginning of a header, which its CRC covers
NUMBERS = 1 << 32  # then they begin anew
LATE_SECONDS = 1.0  # after so long, the rest of a record is late
LATER = 1 << 20  # most records that can follow while one is read


def _require_crc32c() -> None:
    """Raise ConfigError unless checksums can be computed."""
    if crc32c is None:
        raise ConfigError("checksum=true needs the package crc32c, which computes checksums: pip install crc32c")


class CheckedChannel(Channel):
    """A blocking TCP socket with records.

    Args:
        sock: is closed with this object.
        peer: the other end, shown to people.
        damaged: is called for every record that is damaged.
        dialled: whether the other end is the learner.
    """

    def __init__(self, sock: socket.socket, peer: str, damaged: Callable[[], None] = lambda: None, *, dialled: bool = False) -> None:
        self.peer = peer
        self._dialled = dialled
        self._sock = sock
        self._damaged = damaged
        self._record = memoryview(bytearray(RECORD_BYTES))
        self._start = self._end = 0  # what of it was not given away yet
        self._sent = self._received = 0  # records
        self._begun = False

    def send(self, buffers: Sequence[Buffer]) -> None:
        for record in _records(buffers):
            length, crc = sum(map(len, record)), 0
            for piece in record:
                crc = crc32c(piece, crc)
            proven = PROVEN.pack(self._sent, length)
            self._write([HEAD.pack(self._sent, length, crc32c(proven), crc), *record])
            self._sent = (self._sent + 1) % NUMBERS

    def _write(self, pieces: list[Buffer]) -> None:
        sent = self._sock.sendmsg(pieces)
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
            else:
                self._sock.sendall(memoryview(piece)[sent:])
                sent = 0

    def recv_into(self, buffer: memoryview) -> int:
        while self._start == self._end:
            if not self._read_record():
                return 0
        n = min(len(buffer), self._end - self._start)
        buffer[:n] = self._record[self._start : self._start + n]
        self._start += n
        return n

    def _read_record(self) -> bool:
        """Read and check the next record. False at the end of the stream."""
        head = memoryview(bytearray(HEAD.size))
        if not self._fill(head, may_end=True):
            if self._dialled and not self._begun:
                raise ConnectionResetError("the learner hung up during the handshake, as one without checksum=true does")
            return False
        if not self._begun and bytes(head[:4]) == MAGIC:
            raise ConnectionResetError("the other end sends without checksums; give both ends checksum=true, or neither")
        self._begun = True
        number, length, proof, crc = HEAD.unpack(head)
        if number != self._received or length > RECORD_BYTES or crc32c(head[: PROVEN.size]) != proof:
            raise self._damage()
        self._fill(self._record[:length], may_end=False)
        if crc32c(self._record[:length]) != crc:
            raise self._damage()
        self._received = (number + 1) % NUMBERS
        self._start, self._end = 0, length
        return True

    def _fill(self, view: memoryview, *, may_end: bool) -> bool:
        done, late_at = 0, time.monotonic() + LATE_SECONDS
        while done < len(view):
            n = self._sock.recv_into(view[done:])
            if n == 0:
                if may_end and not done:
                    return False
                raise ConnectionResetError("the other end went away in the middle of a record")
            done += n
            if not may_end and time.monotonic() > late_at and self._has_later_header(view[max(0, done - n - HEAD.size) : done]):
                raise self._damage()
        return True

    def _has_later_header(self, view: memoryview) -> bool:
        """Whether a later record begins in these bytes, which should belong to the present one."""
        for at in range(len(view) - HEAD.size + 1):
            number, length, proof, _ = HEAD.unpack_from(view, at)
            if length <= RECORD_BYTES and 0 < (number - self._received) % NUMBERS < LATER and crc32c(view[at : at + PROVEN.size]) == proof:
                return True
        return False

    def _damage(self) -> ConnectionResetError:
        self._damaged()
        return ConnectionResetError("bytes were damaged on their way: a checksum does not match")

    def shutdown(self) -> None:
        with suppress(OSError):  # it is not connected any more
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


def _records(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The same bytes in lists of at most `RECORD_BYTES`."""
    record: list[Buffer] = []
    room = RECORD_BYTES
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while len(view):
            piece, view = view[:room], view[room:]
            record.append(piece)
            room -= len(piece)
            if room == 0:
                yield record
                record, room = [], RECORD_BYTES
    if record:
        yield record


def listen_checked(options: TcpListenOptions, sink: Sink) -> ChannelListener:
    """A learner's end with checksums. ConfigError without the package crc32c; OSError."""
    _require_crc32c()
    return ChannelListener.on(CheckedAcceptor(options), sink, options)


def connect_checked(address: Address, spec: Spec, options: TcpConnectOptions) -> ChannelConnection:
    """A worker's end with checksums. ConfigError without the package crc32c; otherwise as `Transport.connect`."""
    _require_crc32c()
    return ChannelConnection(_dial, address, spec, options)


def _dial(address: Address, options: TcpConnectOptions, timeout: float) -> CheckedChannel:
    """Reach the learner. OSError."""
    sock = connect(address, options.send_buffer, timeout)
    sock.settimeout(None)
    return CheckedChannel(sock, name_of(address.endpoint), dialled=True)


class CheckedAcceptor(SocketAcceptor):
    """See `echo_net.channel.Acceptor`."""

    def __init__(self, options: TcpListenOptions) -> None:
        super().__init__("tcp", options.host, options.port, options.receive_buffer, options.max_connection_rate)
        self._damaged = 0

    def counts(self) -> Mapping[str, int]:
        return {**super().counts(), "damaged_total": self._damaged}

    def channel(self, sock: socket.socket, peer: str) -> Channel:
        sock.setblocking(True)
        return CheckedChannel(sock, peer, self._count)

    def _count(self) -> None:
        self._damaged += 1
