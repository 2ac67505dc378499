"""TCP with TLS: certificates, and no older version."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import Any

import pytest

from echo_core import Server
from echo_tcp.channels.secure import LOOKS, TRICKLE_SECONDS
from echo_tcp.transport import TcpsTransport
from echo_testing import TlsContract
from echo_testing.tls import EXAMPLE, TOKEN, Certificates, given


class TestCertificates(TlsContract):
    plain_scheme = "tcp"

    def transport(self, **options: Any) -> TcpsTransport:
        return TcpsTransport(port=0, **options)

    def test_an_older_tls_is_refused(self, certificates: Certificates) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            Server(EXAMPLE, 2, self.transport(**given(certificates.learner)), token=TOKEN) as server,
            socket.create_connection(server.address.endpoint, timeout=20) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(plain)

    def test_strangers_who_reset_at_once_delay_nobody(self, certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
        """A TLS socket cannot be made of a connection that is already reset. That is an OSError, but not one about descriptors."""
        server = Server(EXAMPLE, 2, self.transport(**given(certificates.learner)), token=TOKEN)
        with server:
            for _ in range(40):
                with socket.create_connection(server.address.endpoint, timeout=20) as stranger:
                    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    stranger.sendall(b"x")
            with socket.create_connection(server.address.endpoint, timeout=60) as last:
                last.sendall(bytes(64))
                with suppress(ConnectionError):
                    assert last.recv(64) is not None  # an alert or the end shows that it was served
            assert "cannot accept" not in caplog.text, "it would pause after each of them"

    def test_a_handshake_in_crumbs_is_one_all_the_same(self, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not read for every byte, because 200 such clients would keep a core busy."""
        looks = 0
        do_handshake = ssl.SSLSocket.do_handshake

        def counted(sock: ssl.SSLSocket, block: bool = False) -> None:
            nonlocal looks
            looks += 1
            do_handshake(sock, block)

        monkeypatch.setattr(ssl.SSLSocket, "do_handshake", counted)
        context = ssl.create_default_context(cafile=certificates.authority.certificate)
        heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
        worker = context.wrap_bio(heard, said, server_hostname="127.0.0.1")
        patient = self.transport(**given(certificates.learner), handshake_timeout=60.0)
        with (
            Server(EXAMPLE, 2, patient, token=TOKEN) as server,
            socket.create_connection(server.address.endpoint, timeout=50) as sock,
        ):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = time.monotonic()
            while True:
                with suppress(ssl.SSLWantReadError):
                    worker.do_handshake()
                    break
                for byte in said.read():
                    sock.sendall(bytes([byte]))
                    time.sleep(0.005)
                heard.write(sock.recv(1 << 14))
            sock.sendall(said.read())
            assert worker.version() == "TLSv1.3"
            assert 0 < looks <= LOOKS + 2 + (time.monotonic() - start) / TRICKLE_SECONDS
