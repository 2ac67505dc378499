"""TCP with TLS, for `echo_net.channel`: sockets and handshakes by the ssl module, and records by `_tls` if it can reach libssl."""

from __future__ import annotations

import math
import select
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from echo_core.base.address import Address
from echo_core.base.errors import SecurityError
from echo_core.security.tls import CERTIFICATE_ADVICE
from echo_core.wire.protocol import Buffer
from echo_net.channel import Channel
from echo_net.handshake import printable

from .._tls import Records
from ..dial import KEEPALIVE
from ..sockets import left_at_fork, name_of
from .socket_acceptor import SocketAcceptor

if TYPE_CHECKING:
    from ..options import TcpsListenOptions

__all__ = ["TlsAcceptor", "TlsChannel", "dial_tls"]

PIECE_BYTES = 64 << 10  # bytes encrypted or decrypted at a time, so that the other thread never waits long for the lock
LOOKS, TRICKLE_SECONDS = 8, 0.2  # a handshake comes in fewer pieces; a client that sends more is then read only every so many seconds

T = TypeVar("T")


class TlsChannel(Channel):
    """A TLS socket that two threads may use: a lock guards OpenSSL's state, and no thread holds it while it waits.

    After the handshake, `records` do all the work if the libssl of this Python can be reached; otherwise the ssl module does, which is slower.

    The TLS handshake is part of the first call, so a thread that accepts connections neither waits for it nor is disturbed when it fails.

    Args:
        sock: a socket that does not block. It is closed with this object.
        peer: the other end, shown to people.
        context: makes a learner's end of a plain `sock`; None if `sock` is already a socket of the ssl module.
        records: the records of such a socket.
    """

    def __init__(self, sock: socket.socket, peer: str, context: ssl.SSLContext | None = None, records: Records | None = None) -> None:
        self.peer = peer
        self._context = context
        self._records = records
        self._raw = sock  # the object that owns the descriptor
        if context is None:
            assert isinstance(sock, ssl.SSLSocket)
            self._sock = sock
        self._lock = threading.Lock()
        self._over = False
        self._shaken = False
        self._shaking = threading.Lock()

    def send(self, buffers: Sequence[Buffer]) -> None:
        self.shake_hands()
        if sum(map(len, buffers)) <= PIECE_BYTES:
            buffers = [b"".join(buffers)]
        if self._records is not None:
            try:
                for buffer in buffers:
                    self._records.send(buffer)
                self._records.flush()
            except ssl.SSLError as error:
                raise _explained(error, self._proven()) from None
            return
        for buffer in buffers:
            view = memoryview(buffer)
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                while piece:
                    # OpenSSL must be given the same piece again until it has taken all of it.
                    piece = piece[self._patiently(partial(self._sock.send, piece)) :]

    def recv_into(self, buffer: memoryview) -> int:
        self.shake_hands()
        try:
            if self._records is not None:
                return self._records.recv_into(buffer)
            return self._patiently(lambda: self._sock.recv_into(buffer))
        except ssl.SSLZeroReturnError:
            return 0
        except ssl.SSLError as error:
            raise _explained(error, self._proven()) from None

    def shake_hands(self) -> None:
        """Make the TLS handshake, unless it is done already. Raises SecurityError or OSError."""
        if self._shaken:
            return
        with self._shaking:
            if not self._shaken:
                self._wrap()
                self._patiently(self._sock.do_handshake, LOOKS)
                certificate: dict[str, Any] = dict(self._sock.getpeercert() or {})
                common = dict(item for part in certificate.get("subject", ()) for item in part)
                if "commonName" in common and self._sock.server_side:
                    self.peer = f"{printable(common['commonName'])}@{self.peer}"
                with self._lock:
                    self._alive()
                    if self._records is not None:
                        self._records.begin()
                self._shaken = True

    def _wrap(self) -> None:
        if self._context is None:
            return
        with self._lock:
            self._alive()
            self._sock, self._records = _wrapped(self._context, self._raw, server_side=True)
            self._raw = self._sock
            self._context = None

    def _proven(self) -> bool:
        """Whether what the other end says is known to come from it: after the handshake. A learner's end never tries again, so there all of it counts."""
        return self._shaken or self._sock.server_side

    def _alive(self) -> None:
        if self._over:
            raise ConnectionAbortedError("the connection is closed")

    def _patiently(self, attempt: Callable[[], T], looks: float = math.inf) -> T:
        """Try as often as needed; after the first `looks` times, with pauses."""
        while True:
            with self._lock:
                self._alive()
                try:
                    return attempt()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
                except ssl.SSLZeroReturnError:
                    raise
                except ssl.SSLError as error:
                    raise _explained(error, self._proven()) from None
            poll = select.poll()
            poll.register(self._sock, event)
            poll.poll()
            if (looks := looks - 1) < 0:
                time.sleep(TRICKLE_SECONDS)

    def shutdown(self) -> None:
        with self._lock:
            self._over = True
            if self._records is not None:
                self._records.end()
            with suppress(OSError):  # SSLSocket.shutdown() would go on in plain text
                socket.socket.shutdown(self._raw, socket.SHUT_RDWR)

    def close(self) -> None:
        self._raw.close()


def _wrapped(context: ssl.SSLContext, plain: socket.socket, **options: Any) -> tuple[ssl.SSLSocket, Records | None]:
    """Make `plain` a socket of the ssl module, before the handshake; return it and its records. If the other end has reset it, close it and raise OSError."""
    try:
        sock, records = Records.of(partial(context.wrap_socket, plain, do_handshake_on_connect=False, **options))
        left_at_fork(sock)
        return sock, records
    except BaseException as error:
        plain.close()
        # The ssl module has already taken the descriptor out of `plain`, and does not close the socket that it was going to return.
        for frame, _ in traceback.walk_tb(error.__traceback__):
            half = frame.f_locals.get("self")
            if isinstance(half, ssl.SSLSocket):
                half.close()
        raise


def _explained(error: ssl.SSLError, proven: bool) -> OSError:
    """The error for the channel's users. A verdict about a certificate is a SecurityError, which ends a worker for good, if it is our own or `proven`."""
    ours = isinstance(error, ssl.SSLCertVerificationError)
    reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or str(error)
    if ours or (proven and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)):
        return SecurityError(f"the other end's certificate, or this end's for it, is refused: {reason.removesuffix('.')}; {CERTIFICATE_ADVICE}")
    return ConnectionResetError(f"TLS: {reason}")


def dial_tls(address: Address, context: ssl.SSLContext, server_name: str, timeout: float) -> TlsChannel:
    """Reach the learner and make the TLS handshake. Raises OSError, SecurityError."""
    host, port = address.endpoint
    plain = socket.create_connection((host, port), timeout=timeout)
    left_at_fork(plain)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            plain.setsockopt(socket.IPPROTO_TCP, option, value)
        sock, records = _wrapped(context, plain, server_hostname=server_name or host)
    except BaseException:
        plain.close()
        raise
    sock.setblocking(False)
    return TlsChannel(sock, name_of((host, port)), records=records)


class TlsAcceptor(SocketAcceptor):
    """See `echo_net.channel.Acceptor`. `context` returns the context of a new connection."""

    def __init__(self, options: TcpsListenOptions, context: Callable[[], ssl.SSLContext]) -> None:
        super().__init__("tcps", options.host, options.port, options.receive_buffer, options.max_connection_rate)
        self._context = context

    def channel(self, sock: socket.socket, peer: str) -> Channel:
        return TlsChannel(sock, peer, self._context())
