"""Certificates of clients that expire while the learner lives."""

from __future__ import annotations

import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from hypothesis import given as given_by_hypothesis
from hypothesis import strategies as st

from echo_core import Client, Server
from echo_grpc.expiry import _not_after, expired
from echo_grpc.transport import GrpcsTransport
from echo_testing.processes import until
from echo_testing.tls import EXAMPLE, TOKEN, Certificates, given
from echo_testing.tls_relay import TlsRelay

x509 = pytest.importorskip("cryptography.x509")

SECONDS = 6  # how long a certificate is valid


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.make(tmp_path)


def passing(certificates: Certificates, folder: Path) -> tuple[dict[str, Path], float]:
    """A worker's certificate that is valid for `SECONDS`, and the time.time() at which it expires."""
    identity = certificates.authority.issue("worker-3", days=SECONDS / 86400, directory=folder)
    return given(identity), x509.load_pem_x509_certificate(identity.certificate.read_bytes()).not_valid_after_utc.timestamp()


def asking(certificates: Certificates, **options: object) -> GrpcsTransport:
    return GrpcsTransport(port=0, tls_client_authority=certificates.authority.certificate, **given(certificates.learner), **options)


def signed(until_when: datetime) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "x" * 60)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(1950, 1, 1, tzinfo=UTC)).not_valid_after(until_when)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("year", [1950, 1968, 1969, 1999, 2000, 2026, 2049, 2050, 2068, 9999])
def test_the_date_of_a_certificate(year: int) -> None:
    date = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    assert _not_after(signed(date)) == date


def test_what_holds_is_not_refused() -> None:
    now = datetime.now(UTC)
    good, old = signed(now + timedelta(hours=1)), signed(now - timedelta(hours=1))
    assert expired({}) == expired({"ssl_session_reused": [b"true"]}) == ""
    assert expired({"ssl_session_reused": [b"true"], "x509_pem_cert": [good]}) == ""
    assert expired({"ssl_session_reused": [b"false"], "x509_pem_cert": [old]}) == ""
    assert "has expired" in expired({"ssl_session_reused": [b"true"], "x509_pem_cert": [old]})
    broken = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    assert "cannot be read" in expired({"ssl_session_reused": [b"true"], "x509_pem_cert": [broken]})


GOOD = ssl.PEM_cert_to_DER_cert(signed(datetime(2100, 1, 1, tzinfo=UTC)).decode())


@given_by_hypothesis(st.binary(max_size=200), st.integers(0, len(GOOD) - 1))
def test_what_is_no_certificate_is_refused_without_an_exception(data: bytes, cut: int) -> None:
    for garbage in (data, GOOD[:cut]):
        pem = ssl.DER_cert_to_PEM_cert(garbage).encode()
        assert expired({"ssl_session_reused": [b"true"], "x509_pem_cert": [pem]})
    pem = ssl.DER_cert_to_PEM_cert(GOOD[:cut] + data).encode()
    expired({"ssl_session_reused": [b"true"], "x509_pem_cert": [pem]})  # may be one again


def test_a_connection_that_stands_carries_new_sessions(certificates: Certificates, tmp_path: Path) -> None:
    """A proxy that renews its certificate keeps its connections, perhaps for weeks, and carries new workers on them."""
    shown, expiry = passing(certificates, tmp_path)
    pem = {name: path.read_bytes() for name, path in shown.items()}
    trusted = certificates.authority.certificate.read_bytes()
    with Server(EXAMPLE, 2, asking(certificates), token=TOKEN) as server:
        credentials = grpc.ssl_channel_credentials(trusted, pem["tls_key"], pem["tls_certificate"])
        host, port = server.address.endpoint
        with grpc.secure_channel(f"{host}:{port}", credentials) as channel:
            watching = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
            assert next(watching) == b"\x08\x01"  # SERVING shows that the connection is made; it stays
            time.sleep(max(0.0, expiry + 1.5 - time.time()))
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20) == b"\x08\x01"
            watching.cancel()


def test_a_worker_is_back_when_its_proxy_has_a_new_certificate(certificates: Certificates, tmp_path: Path) -> None:
    shown, expiry = passing(certificates, tmp_path)
    context = ssl.create_default_context(cafile=certificates.authority.certificate)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(shown["tls_certificate"], shown["tls_key"])
    with Server(EXAMPLE, 2, asking(certificates), token=TOKEN) as server, TlsRelay(server.address.endpoint, context) as relay:
        through = replace(server.address, scheme="grpc", port=relay.port)
        with Client(through, EXAMPLE, token=TOKEN, timeout=60) as client:
            client.request("ping")
            time.sleep(max(0.0, expiry + 1.5 - time.time()))
            relay.cut()
            until(lambda: server.stats()["transport/grpcs/refused"] > 0, "the worker is refused")
            assert relay.resumed > 0
            context.load_cert_chain(*certificates.worker)
            relay.resumes = False
            assert client.request("ping", timeout=60) is not None
            assert client.stats()["reconnects"] == 1
