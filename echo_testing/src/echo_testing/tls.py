"""Tests to inherit that check how a transport with TLS handles certificates: `TlsContract`."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import EchoError, EchoTimeoutError, SecurityError
from echo_core.security.tls import Authority, Identity, _make
from echo_core.wire.transport import Transport
from echo_testing.processes import until
from echo_testing.relay import Relay
from echo_testing.tls_relay import TlsRelay

__all__ = ["Certificates", "TlsContract"]

EXAMPLE = {"x": np.zeros(4, np.float32), "n": np.zeros((), np.int64)}
TOKEN = "the-token-of-these-tests-long-enough"


class Certificates(NamedTuple):
    """An authority, two of its certificates, and a certificate of another authority with a worker's name."""

    authority: Authority
    learner: Identity
    worker: Identity
    stranger: Identity

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        authority = Authority.create(folder / "authority")
        stranger = Authority.create(folder / "other").issue("worker-3")
        return cls(authority, authority.issue("learner", ["127.0.0.1"]), authority.issue("worker-3"), stranger)


def given(identity: Identity) -> dict[str, Path]:
    """The options that make one end show this certificate."""
    return {"tls_certificate": identity.certificate, "tls_key": identity.key}


class TlsContract(ABC):
    """Subclass it and define how to make a transport that listens on a free port of 127.0.0.1, from `TlsListenOptions`.

    Attributes:
        plain_scheme: the scheme of the same transport without TLS, for clients of a proxy that adds TLS.
    """

    plain_scheme: str

    @abstractmethod
    def transport(self, **options: Any) -> Transport:
        """A transport with these options."""

    @pytest.fixture
    def certificates(self, tmp_path: Path) -> Certificates:
        return Certificates.make(tmp_path)

    def trust(self, certificates: Certificates, **more: Any) -> dict[str, Any]:
        """A worker's options."""
        return {"tls_authority": certificates.authority.certificate, "token": TOKEN, "timeout": 20} | more

    def test_a_learner_shows_its_certificate(self, certificates: Certificates) -> None:
        with Server(EXAMPLE, 2, self.transport(**given(certificates.learner)), token=TOKEN) as server:
            with Client(server.address, EXAMPLE, **self.trust(certificates)) as client:
                client.send_batch({"x": np.zeros((2, 4), np.float32), "n": np.arange(2)})
                assert server.sample(20) is not None
            with pytest.raises(SecurityError, match="certificate.*echoctl tls authority"):
                Client(server.address, EXAMPLE, token=TOKEN, timeout=20)  # this client does not know the authority
            with pytest.raises(SecurityError, match="certificate.*echoctl tls server NAME --host HOST"):
                Client(server.address, EXAMPLE, **self.trust(certificates, tls_server_name="another.host"))

    def test_workers_show_theirs_where_asked(self, certificates: Certificates) -> None:
        asking = self.transport(tls_client_authority=certificates.authority.certificate, **given(certificates.learner))
        with Server(EXAMPLE, 2, asking, token=TOKEN) as server:
            with Client(server.address, EXAMPLE, **self.trust(certificates, **given(certificates.worker))) as client:
                client.request("ping")
                assert server.peers()[0].address.startswith("worker-3@")
            for wrong in ({}, given(certificates.stranger)):
                with pytest.raises((SecurityError, EchoTimeoutError), match="tls_certificate"):  # the message names the option to give
                    Client(server.address, EXAMPLE, **self.trust(certificates, timeout=2, **wrong))
            until(lambda: server.peers() == [], "no client is left")

    def test_a_learner_does_not_start_with_a_workers_certificate(self, certificates: Certificates) -> None:
        with pytest.raises(SecurityError, match=rf"{certificates.worker.certificate} is no learner's certificate"):
            Server(EXAMPLE, 2, self.transport(**given(certificates.worker)), token=TOKEN).start()

    def test_an_expired_certificate(self, certificates: Certificates, tmp_path: Path) -> None:
        old = certificates.authority.issue("learner", ["127.0.0.1"], days=2 / 86400, directory=tmp_path)
        with Server(EXAMPLE, 2, self.transport(**given(old)), token=TOKEN) as server:
            time.sleep(2.5)
            with pytest.raises(SecurityError, match="certificate"):
                Client(server.address, EXAMPLE, **self.trust(certificates))

    def test_an_expired_certificate_of_a_worker(self, certificates: Certificates, tmp_path: Path) -> None:
        old = certificates.authority.issue("worker-3", days=-1 / 1440, directory=tmp_path)
        asking = self.transport(tls_client_authority=certificates.authority.certificate, **given(certificates.learner))
        trusted = self.trust(certificates, **given(certificates.worker))
        with Server(EXAMPLE, 2, asking, token=TOKEN) as server, Client(server.address, EXAMPLE, **trusted) as client:
            with pytest.raises((SecurityError, EchoTimeoutError)):
                Client(server.address, EXAMPLE, **self.trust(certificates, timeout=2, **given(old)))
            assert len(server.peers()) == 1
            client.send_batch({"x": np.zeros((2, 4), np.float32), "n": np.arange(2)})
            assert server.sample(20) is not None

    def test_a_session_of_before_stands_for_no_certificate(self, certificates: Certificates, tmp_path: Path) -> None:
        """A client that resumes a session shows no certificate, so an expired one would never be checked again."""
        asking = self.transport(tls_client_authority=certificates.authority.certificate, **given(certificates.learner))
        with Server(EXAMPLE, 2, asking, token=TOKEN) as server, ExitStack() as stack:
            passing = certificates.authority.issue("worker-3", days=8 / 86400, directory=tmp_path)
            expiry = time.time() + 8
            relays = []
            for newest in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
                context = ssl.create_default_context(cafile=certificates.authority.certificate)
                context.maximum_version = newest
                context.set_alpn_protocols(["h2"])
                context.load_cert_chain(*passing)
                relay = stack.enter_context(TlsRelay(server.address.endpoint, context))
                through = replace(server.address, scheme=self.plain_scheme, port=relay.port)
                try:
                    for _ in range(2):  # while the certificate is valid, a session may be resumed
                        with Client(through, EXAMPLE, token=TOKEN, timeout=3) as client:
                            client.request("ping")
                except EchoError:
                    assert newest is ssl.TLSVersion.TLSv1_2  # the listener need not support this version
                else:
                    relays.append(through)
            time.sleep(max(0.0, expiry + 1.5 - time.time()))
            assert relays
            for through in relays:
                with pytest.raises(EchoError):
                    Client(through, EXAMPLE, token=TOKEN, timeout=1)
            assert server.peers() == []

    def test_certificates_that_are_replaced_count_for_new_connections(self, certificates: Certificates, tmp_path: Path) -> None:
        """Both ends read theirs again, open connections go on, and a certificate without its key changes nothing."""
        mine, theirs, trusted = (tmp_path / name for name in ("mine", "theirs", "trusted.pem"))
        next_authority = Authority.create(tmp_path / "next")

        def install(authority: Authority) -> None:
            for folder, name, hosts in ((mine, "learner", ["127.0.0.1"]), (theirs, "worker-3", [])):
                folder.mkdir(exist_ok=True)
                authority.issue(name, hosts, directory=folder)
            (tmp_path / "new.pem").write_bytes(authority.certificate.read_bytes())
            (tmp_path / "new.pem").replace(trusted)

        install(certificates.authority)
        learner = given(Identity(mine / "learner.pem", mine / "learner.key"))
        worker = {"tls_authority": trusted, "token": TOKEN, "timeout": 20, **given(Identity(theirs / "worker-3.pem", theirs / "worker-3.key"))}
        old = self.trust(certificates, timeout=2, **given(certificates.worker))
        with (
            Server(EXAMPLE, 2, self.transport(tls_client_authority=trusted, **learner), token=TOKEN) as server,
            Relay(server.address.endpoint) as relay,
            Client(server.address, EXAMPLE, **worker) as staying,
            Client(replace(server.address, port=relay.port), EXAMPLE, **worker) as returning,
        ):
            for client in (staying, returning):
                client.request("ping")
            install(next_authority)
            with Client(server.address, EXAMPLE, **worker) as late:
                late.request("ping")
            relay.cut()
            returning.send_batch({"x": np.zeros((2, 4), np.float32), "n": np.arange(2)})
            returning.wait(60)
            staying.request("ping")
            assert server.sample(20) is not None
            with pytest.raises((SecurityError, EchoTimeoutError)):
                Client(server.address, EXAMPLE, **old)
            (mine / "learner.key").unlink()
            with Client(server.address, EXAMPLE, **worker) as last:
                last.request("ping")

    @pytest.mark.parametrize("way, spots", [("down", (1, 10, 60, 130, 700)), ("up", (1, 10, 60, 120, 300, 540))])
    def test_a_damaged_byte_of_a_handshake_is_no_verdict(self, certificates: Certificates, way: str, spots: tuple[int, ...]) -> None:
        """A worker that returns takes nothing for final that damage, or somebody without a certificate, can cause."""
        with (
            Server(EXAMPLE, 2, self.transport(**given(certificates.learner)), token=TOKEN) as server,
            Relay(server.address.endpoint) as relay,
            Client(replace(server.address, port=relay.port), EXAMPLE, **self.trust(certificates)) as client,
        ):
            for number, at in enumerate(spots, 1):
                relay.cut(way, at)
                client.send_batch({"x": np.zeros((2, 4), np.float32), "n": np.full(2, number)})
                client.wait(60)
                assert server.sample(20).batch["n"].tolist() == [number, number]
                assert relay.damaged == number

    def test_the_name_in_a_certificate_is_text(self, certificates: Certificates, tmp_path: Path) -> None:
        """The client chose this name, and people read it in logs and terminals."""
        pytest.importorskip("cryptography")  # openssl's command writes names in another form
        odd = Identity(tmp_path / "odd.pem", tmp_path / "odd.key")
        _make("x\nCRITICAL disk full\x1b[31m", ["odd"], 1, *odd, certificates.authority)
        asking = self.transport(tls_client_authority=certificates.authority.certificate, **given(certificates.learner))
        with Server(EXAMPLE, 2, asking, token=TOKEN) as server, Client(server.address, EXAMPLE, **self.trust(certificates, **given(odd))) as client:
            client.request("ping")
            assert server.peers()[0].address.startswith("x?CRITICAL disk full?[31m@")

    @pytest.mark.parametrize("wrong", ["no certificate", "a foreign certificate", "an expired certificate", "no TLS", "nothing at all"])
    def test_handshakes_that_fail_are_counted_and_logged(
        self, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str
    ) -> None:
        asking = {"tls_client_authority": certificates.authority.certificate, "handshake_timeout": 3.0}
        trusted = self.trust(certificates, **given(certificates.worker))
        with Server(EXAMPLE, 2, self.transport(**asking, **given(certificates.learner)), token=TOKEN) as server:

            def refused() -> int:
                counts = server.stats()
                return int(sum(counts[f"transport/{server.address.scheme}/{name}"] for name in ("refused", "protocol_errors")))

            with Client(server.address, EXAMPLE, **trusted) as good:
                good.request("ping")
                if wrong in ("no TLS", "nothing at all"):
                    for _ in range(3):
                        with socket.create_connection(server.address.endpoint, timeout=20) as sock:
                            sock.sendall(b"" if wrong == "nothing at all" else b"GET / HTTP/1.1\r\n\r\n" + b" " * 300)
                            with suppress(ConnectionError):
                                while sock.recv(4096):
                                    pass
                    attempts = 3
                else:
                    shown = {} if wrong == "no certificate" else given(certificates.stranger)
                    if wrong == "an expired certificate":
                        shown = given(certificates.authority.issue("worker-3", days=-1 / 1440, directory=tmp_path))
                    with pytest.raises((SecurityError, EchoTimeoutError)):
                        Client(server.address, EXAMPLE, **self.trust(certificates, timeout=0.5, **shown))
                    attempts = 1
                until(lambda: refused() >= attempts, "they are counted")
                until(lambda: caplog.records, "and logged")
                good.request("ping")
                with Client(server.address, EXAMPLE, **trusted) as another:
                    another.request("ping")
            time.sleep(4)  # long enough that even a good handshake would count as failed
            assert refused() == attempts or attempts == 1  # a worker may try several times
            lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert 1 <= len(lines) <= 4 and str(server.address) in lines[0]
