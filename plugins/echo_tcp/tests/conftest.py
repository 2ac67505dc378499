"""A worker that speaks the wire format by hand, so that it can also speak it wrongly."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Server
from echo_core.security.tokens import find_token
from echo_core.wire.protocol import HEADER_BYTES, Header, Kind, frame, pack_header, parse_header
from echo_net.handshake import ClientHandshake
from echo_tcp.transport import TcpTransport
from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401
from echo_testing.ports import hold

sys.path.insert(0, str(Path(__file__).parent))  # for `wire_learner` and `numbered`

from numbered import LARGE, SMALL, large, small

PATIENCE = 20.0  # seconds until a test that waits for something gives up


@pytest.fixture(autouse=True)
def no_descriptors_left() -> Iterator[None]:
    """A test closes its descriptors."""
    before = _descriptors()
    yield
    until = time.monotonic() + 60
    while _descriptors() > before and time.monotonic() < until:
        time.sleep(0.02)
        gc.collect()  # a traceback in a cycle may hold a closed listener
    assert _descriptors() <= before


@pytest.fixture
def port() -> Iterator[int]:
    """A port for one listener after another. No other program gets it before the test ends; `free_port()` would hold it longer than
    `no_descriptors_left` allows."""
    with hold("127.0.0.1", 0) as held:
        yield held.getsockname()[1]


def _descriptors() -> int:
    """How many sockets, eventfds and epolls are open (pipes may belong to multiprocessing)."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that listdir itself used
            count += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "anon_inode:"))
    return count


class RawWorker:
    """One hand-made connection to `server`. `client` is the session's id, 32 hex digits."""

    def __init__(self, server: Server, client: str = "", base: int = 0, **options: Any) -> None:
        self.server = server
        self.client = client or secrets.token_hex(16)
        self.sock = socket.create_connection(server.address.endpoint, timeout=PATIENCE)
        try:
            self._read = self._handshake(base)
            self.resumed_at = self.expect(Kind.ACK)[0].seq
        except BaseException:
            self.sock.close()
            raise
        self.next = self.resumed_at + 1

    def _handshake(self, base: int) -> bytearray:
        name = f"raw-{self.client[:4]}"
        handshake = ClientHandshake(self.server.spec, find_token(), self.client, base, name=name, session=self.client)
        self.sock.sendall(handshake.start())
        while not handshake.done:
            data = self.sock.recv(65536)
            assert data, "the learner hung up in the handshake"
            self.sock.sendall(handshake.receive(data))
        return bytearray(handshake.leftover)

    def data(self, values: Any, *, first: int | None = None) -> bytes:
        """A DATA frame with one sample for each value; the numbers continue after the last one."""
        values = np.atleast_1d(np.asarray(values))
        first = self.next if first is None else first
        payload = b"".join(
            np.broadcast_to(values.reshape(-1, *[1] * len(leaf.shape)), (len(values), *leaf.shape)).astype(leaf.dtype).tobytes()
            for leaf in self.server.spec.leaves
        )
        self.next = first + len(values)
        return pack_header(Kind.DATA, count=len(values), seq=first, length=len(payload)) + payload

    def send(self, values: Any, *, first: int | None = None) -> None:
        self.sock.sendall(self.data(values, first=first))

    def receive(self) -> tuple[Header, bytes]:
        """The next frame. Raises EOFError if the learner has hung up."""
        header = parse_header(self._exactly(HEADER_BYTES), 0, frozenset(Kind))
        return header, self._exactly(header.length)

    def expect(self, kind: Kind) -> tuple[Header, bytes]:
        """The next frame of this kind; acknowledgements before it are skipped."""
        while True:
            header, payload = self.receive()
            if header.kind is kind:
                return header, payload
            assert header.kind is Kind.ACK, f"{header} instead of {kind.name}: {payload!r}"

    def acknowledged(self, number: int) -> None:
        """Wait until `number` samples of the session are acknowledged."""
        while (seq := self.expect(Kind.ACK)[0].seq) < number:
            pass
        assert seq == number

    def farewell(self) -> str:
        """The reason that the learner gives before it hangs up; checks that it then hangs up."""
        reason = self.expect(Kind.BYE)[1].decode()
        try:
            assert self.sock.recv(1) == b""
        except ConnectionResetError:
            pass
        return reason

    def subscribe(self, held: int = 0) -> None:
        self.sock.sendall(frame(Kind.SUBSCRIBE, seq=held))

    def version(self) -> tuple[int, bytes]:
        """The next version of the weights: its number, and all its bytes."""
        whole = b""
        while True:
            header, chunk = self.expect(Kind.WEIGHTS)
            assert bool(header.flags & 2) == (whole == b"")
            whole += chunk
            if header.flags & 1:
                return header.seq, whole

    def _exactly(self, count: int) -> bytes:
        while len(self._read) < count:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(f"the learner hung up; {bytes(self._read)!r} was left")
            self._read += data
        taken = bytes(self._read[:count])
        del self._read[:count]
        return taken

    def close(self, *, reset: bool = False) -> None:
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()


@pytest.fixture
def raw_workers() -> Iterator[list[RawWorker]]:
    """The raw workers of this test, which are closed at its end."""
    workers: list[RawWorker] = []
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture
def dial(raw_workers: list[RawWorker]) -> Callable[..., RawWorker]:
    """Makes raw workers."""

    def dial(server: Server, client: str = "", base: int = 0) -> RawWorker:
        raw_workers.append(RawWorker(server, client, base))
        return raw_workers[-1]

    return dial


@pytest.fixture
def serve(raw_workers: list[RawWorker]) -> Callable[..., AbstractContextManager[Server]]:
    """`with serve(example, **options of TcpTransport) as server:`"""

    @contextlib.contextmanager
    def serve(
        example: Any, batch_size: int = 4, num_buffers: int = 3, **options: Any
    ) -> Iterator[Server]:
        transport = TcpTransport(port=0, **options)
        with Server(example, batch_size, transport, num_buffers=num_buffers) as server:
            yield server
            # They do not hang up by themselves, and the server would wait a little for that.
            for worker in raw_workers:
                worker.close()

    return serve


@pytest.fixture(params=[(SMALL, small), (LARGE, large)], ids=["small", "large"])
def kind(request: pytest.FixtureRequest) -> Any:
    """An example, and a function that makes its samples."""
    return request.param


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """The first true value of `condition`."""
    until = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < until, what or "it never came to be"
        time.sleep(0.005)
    return value


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., Any]:
    return eventually
