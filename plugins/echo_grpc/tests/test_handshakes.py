"""TLS handshakes that fail are counted, and successful ones are not."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import grpc
import numpy as np
import pytest

from echo_core import Client, SecurityError, Server
from echo_core.security.tls import Authority
from echo_grpc.handshakes import Handshakes
from echo_grpc.transport import GrpcsTransport
from echo_testing.processes import until

EXAMPLE = {"x": np.zeros(4, np.float32)}
TOKEN = "the-token-of-these-tests-long-enough"


def test_calls_of_one_connection_excuse_one_handshake(tmp_path: Path) -> None:
    """A balancer that asks for the learner's health again and again does not hide clients whose handshake fails."""
    pytest.importorskip("grpc_health")
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    authority = Authority.create(tmp_path)
    own = authority.issue("learner", ["127.0.0.1"])
    transport = GrpcsTransport(port=0, handshake_timeout=0.5, tls_certificate=own.certificate, tls_key=own.key)
    with Server(EXAMPLE, 2, transport, token=TOKEN) as server:
        place = server.address.endpoint
        trust = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        with grpc.secure_channel("{}:{}".format(*place), trust) as balancer:
            health = health_pb2_grpc.HealthStub(balancer)
            for _ in range(5):
                socket.create_connection(place).close()
                assert health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1
        until(lambda: server.stats()["transport/grpcs/refused"] == 5, "the five are counted")


def test_certificates_that_are_no_use_are_an_error_at_once(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    (tmp_path / "rubbish.pem").write_text("no certificate")
    for wrong in (
        {"tls_authority": authority.certificate, "tls_certificate": one.certificate, "tls_key": other.key},
        {"tls_authority": tmp_path / "rubbish.pem"},
    ):
        with pytest.raises(SecurityError, match="pem"):  # and not EchoTimeoutError after the timeout, which no test waits for
            Client("grpcs://127.0.0.1:1", EXAMPLE, token=TOKEN, timeout=3600, **wrong)


def test_of_more_than_can_be_open_the_oldest_have_failed(caplog: pytest.LogCaptureFixture) -> None:
    woken = []
    handshakes = Handshakes(timeout=3600, idle=60, most=10, wake=lambda: woken.append(True))
    assert handshakes.look() is None, "nothing to wait for"
    for _ in range(1000):
        handshakes.begun()
    assert handshakes.failed == 990 and len(woken) == 1
    handshakes.look()
    for _ in range(1000):
        handshakes.begun()
    soon = handshakes.look()
    assert soon is not None and soon < 10, "there is more to say"
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert ": 990 (" in line, "one line in a while says how many"
