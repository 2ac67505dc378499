"""`echoctl tls`: an authority, certificates of both ends, and their renewal while they are used."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.security.tls import Authority

pytest.importorskip("cryptography")

EXAMPLE = {"x": np.zeros(2, np.float32)}


@pytest.mark.needs("echo-tcp", "echo-samplers")
def test_certificates_are_made_used_and_renewed(echoctl, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    ours = ["--authority", folder, "--json"]
    authority = Path(echoctl("tls", "authority", *ours).json["authority"])
    learner = echoctl("tls", "server", "learner", "--host", "127.0.0.1", "--host", "learner.cluster", "--days", 10, *ours).json
    worker = echoctl("tls", "client", "worker-3", *ours).json
    assert all(stat.S_IMODE(Path(one["key"]).stat().st_mode) == 0o600 for one in (learner, worker))
    shown = echoctl("tls", "show", learner["certificate"], worker["certificate"], "--json")
    assert [one["hosts"] for one in shown.json] == [["learner", "127.0.0.1", "learner.cluster"], []]
    assert shown.code == 1 and [round(one["days_left"]) for one in shown.json] == [10, 365], "the first one ends soon"

    def options(one: dict[str, str]) -> dict[str, Path]:
        return {"tls_certificate": Path(one["certificate"]), "tls_key": Path(one["key"])}

    transport = {"type": "tcps", "port": 0, "tls_client_authority": authority, **options(learner)}
    with Server(EXAMPLE, 1, transport, token="a-token-long-enough") as server:
        for _ in range(2):
            with Client(server.address, EXAMPLE, token="a-token-long-enough", tls_authority=authority, **options(worker)) as client:
                assert client.request("ping")
            before = Path(learner["certificate"]).read_bytes()
            assert echoctl("tls", "renew", learner["certificate"], worker["certificate"], *ours[:2]).code == 0
            assert Path(learner["certificate"]).read_bytes() != before
    again = echoctl("tls", "show", learner["certificate"], "--json")
    assert again.code == 0 and again.json[0]["hosts"] == shown.json[0]["hosts"] and round(again.json[0]["days_left"]) == 365
    assert "learner.cluster" in echoctl("tls", "show", learner["certificate"]).out


def test_what_cannot_be_done_is_named(echoctl, tmp_path: Path) -> None:
    one, other = Authority.create(tmp_path / "one"), Authority.create(tmp_path / "other")
    made = one.issue("worker-3")
    beside = one.directory.parent / "with a space"
    assert f"--host NAME --authority '{beside}'" in echoctl("tls", "authority", "--authority", beside).out, "the next command is for the same folder"
    assert "already holds an authority" in echoctl("tls", "authority", "--authority", one.directory).err
    assert "does not hold an authority" in echoctl("tls", "client", "x", "--authority", tmp_path / "nowhere").err
    foreign = echoctl("tls", "renew", made.certificate, "--authority", other.directory)
    assert foreign.code == 3 and "was not issued by the authority in" in foreign.err
    moved = made.certificate.rename(tmp_path / "moved.pem")
    assert "worker-3.pem" in echoctl("tls", "renew", moved, "--authority", one.directory).err
    (tmp_path / "secret").write_text("swordfish")
    odd = echoctl("tls", "show", tmp_path / "secret")
    assert odd.code == 3 and "is not a certificate" in odd.err and "swordfish" not in odd.err
    assert echoctl("tls", "server", "learner", "--authority", one.directory).code == 2, "a learner's needs a host"
    for days in ("nan", "1e12"):
        wrong = echoctl("tls", "client", "x", "--days", days, "--authority", one.directory)
        assert wrong.code == 2 and "days must be a number up to 36500, not" in wrong.err
