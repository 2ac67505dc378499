"""TCP with TLS: certificates, and no older version."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest

from echo_core import Server
from echo_core.testing import TlsContract
from echo_core.testing.tls import EXAMPLE, TOKEN, Certificates, given
from echo_tcp.transport import TcpsTransport


class TestCertificates(TlsContract):
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
