"""A learner in plain Python that speaks the wire format and does what a test tells it.

It keeps every sample that it commits and checks the numbers, acknowledges only when it may, and hangs up
when it should. So it can behave like the worst learner, always at the moment at which a test needs that.
"""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from echo_core.base.address import Address
from echo_core.base.errors import EchoError
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import (
    HEADER_BYTES,
    TO_LEARNER,
    Header,
    Kind,
    frame,
    pack_error,
    pack_header,
    pack_reply,
    parse_header,
    parse_request,
    weights_frames,
)
from echo_core.wire.weights import PackedWeights
from echo_net.handshake import ServerHandshake
from echo_tcp.transport import TcpTransport


def connect(learner: WireLearner, **options: Any) -> Any:
    """A worker of `learner`."""
    return TcpTransport.connect(learner.address, learner.spec, **options)


class WireLearner:
    """Listens, on a free port of this machine by default, and serves any number of workers.

    Attributes:
        frames: every DATA frame that came whole, as (first number, count), including repetitions.
        may_ack: while cleared, samples are committed but not acknowledged.
        may_read: while cleared, nothing is read.
        cut: called before each read; returns the number of bytes after which to hang up, or None.
        handler: answers CONTROL requests.
        receipts, goodbyes: the messages of workers.
        subscriptions: the version that a worker held when it subscribed, of each connection.
    """

    def __init__(
        self,
        example: Any,
        *,
        tokens: tuple[bytes, ...] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        incarnation: str = "01" * 16,
        receive_buffer: int = 0,
        read_bytes: int = 1 << 16,
        history: WireLearner | None = None,
    ) -> None:
        self.spec = Spec.from_example(example)
        self.tokens, self.incarnation, self.read_bytes = tokens, incarnation, read_bytes
        self.committed: dict[str, int] = defaultdict(int)
        self.samples: dict[str, list[list[np.ndarray]]] = defaultdict(list)
        if history is not None:  # the same run of the learner, on another socket
            self.committed, self.samples = history.committed, history.samples
        self.frames: list[tuple[int, int]] = []
        self.links = 0
        self.receipts: list[tuple[int, int]] = []
        self.subscriptions: list[int] = []
        self._subscribed: set[socket.socket] = set()
        self.goodbyes: list[str] = []
        self.errors: list[BaseException] = []
        self.may_ack, self.may_read = threading.Event(), threading.Event()
        self.may_ack.set()
        self.may_read.set()
        self.cut: Callable[[], int | None] = lambda: None
        self.handler: Callable[..., tuple[dict[str, Any], bytes]] | None = None
        self.greeting: Callable[[int], bytes] = lambda done: frame(Kind.ACK, seq=done)
        self.changed = threading.Condition()
        self._weights: PackedWeights | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._acking = threading.Lock()
        self._over = False
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.bind((host, port))
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1]
        self.address = Address("tcp", host, self.port)
        self._start(self._accept)

    # ------------------------------------------------------------------------------ for tests

    @property
    def rows(self) -> list[list[np.ndarray]]:
        """The committed samples of the only client, each a list of leaves."""
        assert len(self.samples) <= 1
        return next(iter(self.samples.values()), [])

    def until(self, ready: Callable[[], bool], seconds: float = 20) -> None:
        with self.changed:
            assert self.changed.wait_for(ready, seconds), "the worker did not do its part"
        assert not self.errors, self.errors

    def publish(self, weights: PackedWeights) -> None:
        with self.changed:
            self._weights = weights
            self.changed.notify_all()

    def acknowledge(self, number: int, crowd: int = 0) -> None:
        """Send an ACK on the newest link, regardless of may_ack. `crowd`: the number of workers in it."""
        self._sockets[-1].sendall(pack_header(Kind.ACK, seq=number, count=crowd))

    def say(self, data: bytes) -> None:
        self._sockets[-1].sendall(data)

    def hang_up(self) -> None:
        """End the present links. A worker may connect again before this returns; its new link stays."""
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def stop_listening(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        self._over = True
        self.stop_listening()
        self._threads[0].join(10)  # it accepts connections: from now on there are no new ones
        self.hang_up()  # comes before the events, so that nothing is acknowledged at the last moment
        self.may_read.set()
        self.may_ack.set()
        with self.changed:
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> WireLearner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------- serving

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            handshake = ServerHandshake(self.spec, self.tokens, self.incarnation)
            while not handshake.done:
                data = sock.recv(1 << 16)
                if not data:
                    return
                try:
                    sock.sendall(handshake.receive(data))
                except EchoError:
                    sock.sendall(handshake.refusal)
                    return
            client = handshake.peer["client"]
            with self.changed:
                if client not in self.committed:
                    self.committed[client] = handshake.peer["base"]
                self.links += 1
                self.changed.notify_all()
            sock.sendall(self.greeting(self.committed[client]))
            self._read(sock, client, bytearray(handshake.leftover))
        except OSError:
            pass  # the worker, or close(), hung up
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            sock.close()

    def _read(self, sock: socket.socket, client: str, data: bytearray) -> None:
        while True:
            while len(data) >= HEADER_BYTES:
                header = parse_header(data, self.spec.sample_bytes, TO_LEARNER)
                end = HEADER_BYTES + header.length
                if len(data) < end:
                    break
                self._frame(sock, client, header, bytes(data[HEADER_BYTES:end]))
                del data[:end]
            self.may_read.wait()
            cut = self.cut()
            piece = sock.recv(self.read_bytes if cut is None else max(1, cut))
            if not piece or cut is not None:
                return
            data += piece

    def _frame(self, sock: socket.socket, client: str, header: Header, payload: bytes) -> None:
        with self.changed:
            if header.kind is Kind.DATA:
                self._data(client, header, payload)
            elif header.kind is Kind.RECEIPT:
                self.receipts.append((header.seq, int.from_bytes(payload, "little")))
                self._start(self._push, sock, header.seq)
            elif header.kind is Kind.SUBSCRIBE and sock not in self._subscribed:  # later ones only say whether a call waits
                self._subscribed.add(sock)
                self.subscriptions.append(header.seq)
                self._start(self._push, sock, header.seq)
            elif header.kind is Kind.BYE:
                self.goodbyes.append(payload.decode())
            self.changed.notify_all()
        if header.kind is Kind.DATA:
            if self.may_ack.is_set():
                self._ack(sock, client)
            else:
                self._start(self._ack, sock, client)
        elif header.kind is Kind.CONTROL and self.handler is not None:
            try:
                reply = pack_reply(*self.handler(*parse_request(payload)))
            except EchoError as error:
                reply = pack_error(error)
            sock.sendall(frame(Kind.CONTROL, reply, flags=1, seq=header.seq))
        elif header.kind is Kind.BYE:
            sock.shutdown(socket.SHUT_RDWR)

    def _ack(self, sock: socket.socket, client: str) -> None:
        self.may_ack.wait()
        with suppress(OSError), self._acking:
            sock.sendall(frame(Kind.ACK, seq=self.committed[client]))

    def _data(self, client: str, header: Header, payload: bytes) -> None:
        done = self.committed[client]
        assert header.seq <= done + 1, f"sample {done + 1} is missing before {header.seq}"
        self.frames.append((header.seq, header.count))
        leaves, offset = [], 0
        for leaf in self.spec.leaves:
            count = header.count * int(np.prod(leaf.shape))
            array = np.frombuffer(payload, leaf.dtype, count, offset)
            leaves.append(array.reshape(header.count, *leaf.shape))
            offset += header.count * leaf.nbytes
        for i in range(max(0, done + 1 - header.seq), header.count):
            self.samples[client].append([leaf[i] for leaf in leaves])
            self.committed[client] += 1

    def _push(self, sock: socket.socket, held: int) -> None:
        with self.changed:
            while not self._over:
                if self._weights is not None and self._weights.version > held:
                    break
                self.changed.wait(0.2)
            weights = self._weights
        if self._over or weights is None:
            return
        with suppress(OSError):
            for pieces in weights_frames(weights):
                sock.sendall(b"".join(pieces))
