"""What every transport with TLS must do about certificates, as tests to inherit: `TlsContract`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.errors import EchoTimeoutError, SecurityError
from echo_core.tls import Authority, Identity
from echo_core.transport import Transport

__all__ = ["Certificates", "TlsContract"]

EXAMPLE = {"x": np.zeros(4, np.float32), "n": np.zeros((), np.int64)}
TOKEN = "the token of these tests, long enough"


class Certificates(NamedTuple):
    """An authority, two of its certificates, and one of somebody else's in a worker's name."""

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
    """The options that make one end show it."""
    return {"tls_certificate": identity.certificate, "tls_key": identity.key}


class TlsContract(ABC):
    """Subclass it and say how to make a transport that listens on a free port of 127.0.0.1, from `TlsListenOptions`."""

    @abstractmethod
    def transport(self, **options: Any) -> Transport:
        """One with these options."""

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
            with pytest.raises(SecurityError, match="certificate"):
                Client(server.address, EXAMPLE, token=TOKEN, timeout=20)  # who does not know the authority
            with pytest.raises(SecurityError, match="certificate"):
                Client(server.address, EXAMPLE, **self.trust(certificates, tls_server_name="another.host"))

    def test_workers_show_theirs_where_asked(self, certificates: Certificates) -> None:
        asking = self.transport(tls_client_authority=certificates.authority.certificate, **given(certificates.learner))
        with Server(EXAMPLE, 2, asking, token=TOKEN) as server:
            with Client(server.address, EXAMPLE, **self.trust(certificates, **given(certificates.worker))) as client:
                client.request("ping")
                assert server.peers()[0].address.startswith("worker-3@")
            for wrong in ({}, given(certificates.stranger)):
                with pytest.raises((SecurityError, EchoTimeoutError)):
                    Client(server.address, EXAMPLE, **self.trust(certificates, timeout=2, **wrong))
            assert server.peers() == []

    def test_an_expired_certificate(self, certificates: Certificates, tmp_path: Path) -> None:
        pytest.importorskip("cryptography")  # openssl's command knows no seconds
        old = certificates.authority.issue("learner", ["127.0.0.1"], days=2 / 86400, directory=tmp_path)
        with Server(EXAMPLE, 2, self.transport(**given(old)), token=TOKEN) as server:
            time.sleep(2.5)
            with pytest.raises(SecurityError, match="certificate"):
                Client(server.address, EXAMPLE, **self.trust(certificates))

    def test_an_expired_certificate_of_a_worker(self, certificates: Certificates, tmp_path: Path) -> None:
        pytest.importorskip("cryptography")  # openssl's command knows no minutes
        old = certificates.authority.issue("worker-3", days=-1 / 1440, directory=tmp_path)
        asking = self.transport(tls_client_authority=certificates.authority.certificate, **given(certificates.learner))
        with Server(EXAMPLE, 2, asking, token=TOKEN) as server:
            client = Client(server.address, EXAMPLE, **self.trust(certificates, **given(certificates.worker)))
            with pytest.raises((SecurityError, EchoTimeoutError)):
                Client(server.address, EXAMPLE, **self.trust(certificates, timeout=2, **given(old)))
            assert len(server.peers()) == 1
            client.send_batch({"x": np.zeros((2, 4), np.float32), "n": np.arange(2)})
            assert server.sample(20) is not None
            client.close()
