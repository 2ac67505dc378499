"""The stream of bytes over TLS: with native records if Python's libssl can be reached, and with the ssl module alone."""

from __future__ import annotations

import hashlib
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from echo_core.base.address import Address
from echo_core.security.tls import Authority, TlsConnectOptions, TlsListenOptions, client_context, server_context
from echo_tcp._tls import Records
from echo_tcp.channels import secure
from echo_tcp.channels.secure import TlsChannel, dial_tls

PATIENCE = 20.0  # seconds until a test that waits for something gives up


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of the learner and of the worker."""
    authority = Authority.create(tmp_path_factory.mktemp("authority"))
    learner = authority.issue("learner", ["127.0.0.1"])
    listen = TlsListenOptions(tls_certificate=learner.certificate, tls_key=learner.key)
    return server_context(listen, "127.0.0.1"), client_context(TlsConnectOptions(tls_authority=authority.certificate))


class BySslModule:
    """Stands for `Records` if libssl cannot be reached."""

    @staticmethod
    def of(make: Any) -> tuple[Any, None]:
        return make(), None


@pytest.fixture(params=["records", "ssl module"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "ssl module":
        monkeypatch.setattr(secure, "Records", BySslModule)
    return str(request.param)


Pair = tuple[TlsChannel, TlsChannel]


@contextmanager
def connected(contexts: tuple[ssl.SSLContext, ssl.SSLContext], listening: socket.socket, port: int) -> Iterator[Pair]:
    """A learner's channel, accepted at `listening`, and that of a worker that dials `port`, after the handshake."""
    with ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(dial_tls, Address("tcps", "127.0.0.1", port), contexts[1], "", PATIENCE)
        plain, _ = listening.accept()
        plain.setblocking(False)
        learner = TlsChannel(plain, "worker", contexts[0])
        worker = dialled.result(PATIENCE)
        done = pool.submit(worker.shake_hands)
        learner.shake_hands()
        done.result(PATIENCE)
        try:
            yield learner, worker
        finally:
            for channel in (learner, worker):
                channel.shutdown()
                channel.close()


@pytest.fixture
def pair(contexts: tuple[ssl.SSLContext, ssl.SSLContext], way: str) -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listening, connected(contexts, listening, listening.getsockname()[1]) as pair:
        yield pair


class Between:
    """A proxy between worker and learner. It forwards the bytes of both until a test says what to do with the next ones."""

    def __init__(self, listening: socket.socket, learner: tuple[str, int]) -> None:
        self.deed = bytes  # what happens to the worker's bytes
        self._listening, self._learner = listening, learner
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        worker, _ = self._listening.accept()
        with worker, socket.create_connection(self._learner, timeout=PATIENCE) as learner:
            back = threading.Thread(target=self._pass, args=(learner, worker, False))
            back.start()
            self._pass(worker, learner, True)
            back.join()

    def _pass(self, source: socket.socket, to: socket.socket, forth: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(self.deed(data) if forth else data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        self._thread.join(PATIENCE)


@pytest.fixture
def tampered(contexts: tuple[ssl.SSLContext, ssl.SSLContext], way: str) -> Iterator[tuple[TlsChannel, TlsChannel, Between]]:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as there:
        between = Between(there, listening.getsockname())
        with connected(contexts, listening, there.getsockname()[1]) as (learner, worker):
            yield learner, worker, between
        between.join()


def received(channel: TlsChannel, size: int, most: int = 1 << 20) -> bytes:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        n = channel.recv_into(view[done : done + most])
        assert n, f"ended after {done} of {size} bytes"
        done += n
    return bytes(data)


def libssl_is_shared() -> bool:
    return "/libssl.so" in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not libssl_is_shared(), reason="this Python has its libssl inside")
def test_the_libssl_of_python_is_reached(pair: Pair, way: str) -> None:
    """Without this the other tests would try the ssl module twice."""
    assert [channel._records is not None for channel in pair] == [way == "records"] * 2


def test_records_are_of_the_socket_that_was_made(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """If `make` makes another SSL after that of the socket, there are no records, and not those of the other SSL."""
    plain, peer = socket.socketpair()

    def make() -> ssl.SSLSocket:
        sock = contexts[1].wrap_socket(plain, do_handshake_on_connect=False, server_hostname="127.0.0.1")
        contexts[1].wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="127.0.0.1")
        return sock

    sock, records = Records.of(make)
    with sock, peer:
        assert records is None


@pytest.mark.skipif(not libssl_is_shared(), reason="this Python has its libssl inside")
@pytest.mark.parametrize("way", ["records"], indirect=True)
def test_each_thread_is_told_its_own_error(pair: Pair) -> None:
    """The receiver gets a record first and then finds the end of the connection behind it; meanwhile the sender fails for another reason."""
    learner, worker = pair
    worker.send([b"the last"])
    worker._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    worker.close()  # a reset
    room = memoryview(bytearray(64))
    assert bytes(room[: learner.recv_into(room)]) == b"the last"
    with pytest.raises(BrokenPipeError):
        learner.send([b"to nobody"])
    with pytest.raises(ConnectionResetError):
        learner.recv_into(room)


def test_both_ends_send_and_receive_at_once(pair: Pair) -> None:
    """Large and small messages, in pieces that do not match records."""
    size = 24 << 20
    data = Random(1).randbytes(size)
    digest = hashlib.sha256(data).digest()

    def send(channel: TlsChannel, seed: int) -> None:
        random, view, at = Random(seed), memoryview(data), 0
        while at < size:
            pieces = []
            for _ in range(random.randint(1, 4)):
                n = min(size - at, random.choice([1, 40, 16_384, 16_385, 65_536, 100_000, 1_500_000]))
                pieces.append(view[at : at + n])
                at += n
            channel.send([piece for piece in pieces if len(piece)])

    def receive(channel: TlsChannel, most: int) -> bytes:
        return hashlib.sha256(received(channel, size, most)).digest()

    with ThreadPoolExecutor(4) as pool:
        sends = [pool.submit(send, channel, seed) for seed, channel in enumerate(pair)]
        receives = [pool.submit(receive, channel, most) for channel, most in zip(pair, (1 << 22, 50_000), strict=True)]
        assert [future.result(6 * PATIENCE) for future in receives] == [digest, digest]
        for future in sends:
            future.result(PATIENCE)


def test_what_was_sent_before_a_shutdown_arrives(pair: Pair) -> None:
    learner, worker = pair
    data = Random(2).randbytes(200_000)
    worker.send([data[:10], data[10:]])
    worker.shutdown()
    assert received(learner, len(data)) == data
    assert learner.recv_into(memoryview(bytearray(10))) == 0
    assert learner.recv_into(memoryview(bytearray(10))) == 0  # and again


@pytest.mark.parametrize("call", ["send", "recv_into"])
def test_shutdown_wakes_whoever_waits(pair: Pair, call: str) -> None:
    learner, _ = pair
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        if call == "recv_into":
            assert learner.recv_into(memoryview(bytearray(10))) == 0  # an end is as valid as an error
            raise ConnectionAbortedError
        while True:
            learner.send([bytes(1 << 20)])  # the other end does not read

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert begun.wait(PATIENCE)
        threading.Event().wait(0.3)
        assert not waiting.done()
        learner.shutdown()
        with pytest.raises(ConnectionError):
            waiting.result(PATIENCE)
    with pytest.raises(ConnectionAbortedError, match="closed"):
        learner.send([b"x"])


def test_one_who_waits_for_bytes_delays_nobody_who_sends(pair: Pair) -> None:
    learner, worker = pair
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(received, learner, 5)
        learner.send([b"first"])
        assert received(worker, 5) == b"first"
        assert not waiting.done()
        worker.send([b"later"])
        assert waiting.result(PATIENCE) == b"later"


def test_a_record_that_was_changed_on_the_way_is_refused(tampered: tuple[TlsChannel, TlsChannel, Between]) -> None:
    learner, worker, between = tampered
    worker.send([b"true"])
    assert received(learner, 4) == b"true"
    between.deed = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    worker.send([b"false"])
    with pytest.raises(ConnectionResetError, match="TLS: .*(RECORD_MAC|DECRYPTION)"):
        received(learner, 5)


def test_records_before_a_changed_one_are_given(tampered: tuple[TlsChannel, TlsChannel, Between]) -> None:
    learner, worker, between = tampered
    gathered = bytearray()

    def hold_back(data: bytes) -> bytes:
        gathered.extend(data)
        if len(gathered) < 60_000:
            return b""
        gathered[-1] ^= 1
        return bytes(gathered)

    between.deed = hold_back
    data = Random(3).randbytes(60_000)
    worker.send([data])
    assert received(learner, 49_152) == data[:49_152]  # three records of 16 KiB
    with pytest.raises(ConnectionResetError, match="TLS: .*(RECORD_MAC|DECRYPTION)"):
        received(learner, 1)


def test_plain_text_in_the_middle_is_refused(tampered: tuple[TlsChannel, TlsChannel, Between]) -> None:
    learner, worker, between = tampered
    between.deed = lambda data: b"GET / HTTP/1.1\r\nHost: learner\r\n\r\n"
    worker.send([b"x"])
    with pytest.raises(ConnectionResetError, match="TLS: "):
        received(learner, 1)


@pytest.mark.parametrize("reset", [False, True])
def test_a_peer_that_is_gone_without_a_farewell(pair: Pair, reset: bool) -> None:
    """The connection ends as if the peer was killed or its machine is gone."""
    learner, worker = pair
    learner.send([b"x"])
    assert received(worker, 1) == b"x"  # and with it the tickets; a close with these unread would reset the connection
    if reset:
        worker._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    worker.close()
    with suppress(ConnectionResetError) if reset else nullcontext():
        assert learner.recv_into(memoryview(bytearray(10))) == 0
    with pytest.raises(ConnectionError):
        while True:
            learner.send([bytes(1 << 16)])


def test_a_signal_interrupts_who_waits(pair: Pair) -> None:
    """Ctrl-C, in a program that waits for bytes in its main thread."""
    learner, worker = pair

    class Interrupted(Exception):
        pass

    def interrupt(*_: Any) -> NoReturn:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            received(learner, 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    worker.send([b"x"])
    assert received(learner, 1) == b"x"  # and nothing is lost
