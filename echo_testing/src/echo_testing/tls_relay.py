"""A relay that speaks TLS for workers that do not, and resumes earlier TLS sessions: `TlsRelay`."""

from __future__ import annotations

import select
import socket
import ssl

from .relay import Link, Relay

__all__ = ["TlsRelay"]


class TlsRelay(Relay):
    """Forwards all bytes to a learner over TLS, as proxies do. Each connection resumes the TLS session of the last one and so shows no
    certificate. Of the faults of a `Relay` it can only make `cut()`.

    Args:
        learner: host and port.
        context: the TLS context with the certificate that it shows.

    Attributes:
        resumed: the number of connections so far for which the learner resumed an earlier session.
        resumes: whether it tries to resume sessions; True at first.
    """

    def __init__(self, learner: tuple[str, int], context: ssl.SSLContext) -> None:
        super().__init__(learner)
        self.resumed, self.resumes = 0, True
        self._context = context
        self._session: ssl.SSLSession | None = None

    def reach(self) -> socket.socket:
        plain = super().reach()
        plain.settimeout(20)
        try:
            learner = self._context.wrap_socket(plain, server_hostname=self.learner[0], session=self._session if self.resumes else None)
        except BaseException:
            plain.close()
            raise
        self.resumed += bool(learner.session_reused)
        return learner

    def forward(self, link: Link) -> None:
        worker, learner = link.worker, link.learner
        assert isinstance(learner, ssl.SSLSocket)
        while True:
            # One thread serves both directions, because a TLS socket is one thread's. It may wait for one of them while the other has data,
            # which is harmless here, because Echo's handshakes and small samples do not fill a socket.
            ready = [learner] if learner.pending() else select.select([worker, learner], [], [], 20)[0]
            for end, other in ((worker, learner), (learner, worker)):
                if end in ready:
                    if not (data := end.recv(1 << 16)):
                        return
                    other.sendall(data)
            self._session = learner.session or self._session
