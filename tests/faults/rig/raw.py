"""A worker's end of the wire by hand: for sending what no client would send."""

from __future__ import annotations

import secrets
import socket
from typing import Any

from echo_core import Server, Spec
from echo_core.security.tokens import find_token
from echo_core.wire.protocol import HEADER_BYTES, TO_WORKER, Header, Kind, pack_header, parse_header
from echo_net.handshake import ClientHandshake
from echo_testing.samples import example, stacked

from .proxy import reset

__all__ = ["Cut", "RawWorker", "data_frame"]


class Cut(Exception):
    """As many bytes have been sent as were to be."""


class RawWorker:
    """A worker on a plain blocking socket, after its handshake.

    `most` bytes are sent in all; the byte after them raises Cut. `sizes` has the bytes of each
    message of the handshake. `resume` is how many samples of `client_id` the learner has.
    """

    def __init__(
        self,
        server: Server | int,
        filler: int = 48,
        *,
        most: int | None = None,
        client_id: str = "",
        base: int = 0,
        name: str = "raw",
        spec: Spec | None = None,
    ) -> None:
        port = server if isinstance(server, int) else server.port
        self.client_id = client_id or secrets.token_hex(16)
        self.filler = filler
        self.sizes: list[int] = []
        self.left = most
        self.spec = spec or Spec.from_example(example(filler))
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        try:
            self._shake_hands(base, name)
        except BaseException:
            self.sock.close()
            raise

    def _shake_hands(self, base: int, name: str) -> None:
        handshake = ClientHandshake(self.spec, find_token(), self.client_id, base, "worker", name)
        message = handshake.start()
        while True:
            if message:
                self.sizes.append(len(message))
                self.send(message)
            if handshake.done:
                break
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionResetError("the learner hung up in the handshake")
            message = handshake.receive(data)
        self._data = handshake.leftover
        header = self.read()[0]
        assert header.kind is Kind.ACK
        self.resume = header.seq

    def send(self, data: bytes) -> None:
        part = data if self.left is None else data[: self.left]
        if part:
            self.sock.sendall(part)
        if self.left is not None:
            self.left -= len(part)
            if len(part) < len(data):
                raise Cut

    def read(self) -> tuple[Header, bytes]:
        """The next frame of the learner."""
        header = parse_header(self._exactly(HEADER_BYTES), self.spec.sample_bytes, TO_WORKER)
        return header, self._exactly(header.length)

    def _exactly(self, count: int) -> bytes:
        while len(self._data) < count:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionResetError("the learner hung up")
            self._data += data
        data, self._data = self._data[:count], self._data[count:]
        return data

    def acknowledged(self, number: int) -> None:
        """Wait until the learner has confirmed `number` samples."""
        while (frame := self.read())[0].kind is not Kind.ACK or frame[0].seq < number:
            pass

    def samples(self, maker: int, first: int, count: int = 1, seq: int | None = None) -> None:
        """Send samples `first` on of `maker` as one frame, numbered from `seq` (first + 1)."""
        self.send(data_frame(stacked(maker, first, count, self.filler), count, seq or first + 1))

    def close(self, how: str = "close") -> None:
        reset(self.sock) if how == "reset" else self.sock.close()

    def __enter__(self) -> RawWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def data_frame(samples: dict[str, Any], count: int, seq: int) -> bytes:
    """A DATA frame of `stacked` samples: header, then leaf after leaf in the spec's order."""
    payload = b"".join(samples[key].tobytes() for key in sorted(samples))
    return pack_header(Kind.DATA, count=count, seq=seq, length=len(payload)) + payload
