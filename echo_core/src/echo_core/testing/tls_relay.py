"""A proxy that speaks TLS for workers that do not, and resumes earlier TLS sessions: `TlsRelay`."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import closing, suppress
from typing import Self

__all__ = ["TlsRelay"]


class TlsRelay:
    """Listens on a free port of 127.0.0.1 and forwards all bytes to a learner over TLS, as proxies do. Each connection resumes the TLS
    session of the last one and so shows no certificate. It serves one connection at a time.

    Args:
        learner: host and port.
        context: the TLS context with the certificate that it shows.

    Attributes:
        port: the port where it listens.
        resumed: the number of connections so far for which the learner resumed an earlier session.
        resumes: whether it tries to resume sessions; True at first.
    """

    def __init__(self, learner: tuple[str, int], context: ssl.SSLContext) -> None:
        self.resumed, self.resumes = 0, True
        self._learner = learner
        self._context = context
        self._session: ssl.SSLSession | None = None
        self._worker: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="tls-relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        self._listener.close()

    def cut(self) -> None:
        """End the present connection."""
        if (worker := self._worker) is not None:
            with suppress(OSError):  # the connection has already ended
                worker.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._worker = worker
            with closing(worker), suppress(OSError):
                self._pass_on(worker)

    def _pass_on(self, worker: socket.socket) -> None:
        host, _ = self._learner
        with (
            socket.create_connection(self._learner, timeout=20) as plain,
            self._context.wrap_socket(plain, server_hostname=host, session=self._session if self.resumes else None) as learner,
        ):
            self.resumed += bool(learner.session_reused)
            while True:
                # One thread serves both directions. It may wait for one of them while the other has data, which is harmless here, because
                # Echo's handshakes and small samples do not fill a socket.
                ready = [learner] if learner.pending() else select.select([worker, learner], [], [], 20)[0]
                for end, other in ((worker, learner), (learner, worker)):
                    if end in ready:
                        if not (data := end.recv(1 << 16)):
                            return
                        other.sendall(data)
                self._session = learner.session or self._session
