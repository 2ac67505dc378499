"""An authority of one's own: files that only their user can read, certificates that openssl accepts, by either way of making them."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from echo_core.base.errors import ConfigError, SecurityError
from echo_core.base.option_reader import build_options
from echo_core.security import tls
from echo_core.security.tls import Authority, TlsConnectOptions, TlsListenOptions


@pytest.fixture(params=["cryptography", "openssl"], autouse=True)
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    if request.param == "cryptography":
        pytest.importorskip("cryptography")
    else:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl command")
        monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return str(request.param)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def talk(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """Both ends of a TLS handshake in memory; the protocol they agree on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    s = server.wrap_bio(to_server, to_client, server_side=True)
    c = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for end in (c, s):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return str(c.version())


def test_what_is_issued_is_accepted(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        authority = Authority.create(tmp_path / "a")
        learner = authority.issue("learner", ["127.0.0.1", "::1", "learner.example"])
        worker = authority.issue("worker-3")
    finally:
        os.umask(before)
    assert [mode(path) for path in (learner.key, worker.key, tmp_path / "a/authority.key")] == [0o600] * 3
    assert mode(tmp_path / "a") == 0o700
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "authority.key", "authority.pem", "learner.key", "learner.pem", "worker-3.key", "worker-3.pem",
    ]  # fmt: skip
    server = tls.server_context(
        TlsListenOptions(tls_certificate=learner.certificate, tls_key=learner.key, tls_client_authority=authority.certificate), "127.0.0.1"
    )
    with_worker = TlsConnectOptions(tls_authority=authority.certificate, tls_certificate=worker.certificate, tls_key=worker.key)
    for name in ("learner", "127.0.0.1", "::1", "learner.example"):
        assert talk(server, tls.client_context(with_worker), name) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(server, tls.client_context(with_worker), "other.example")
    with pytest.raises(ssl.SSLError):
        talk(server, tls.client_context(TlsConnectOptions(tls_authority=authority.certificate)), "learner")
    if shutil.which("openssl"):
        command = ["openssl", "verify", "-x509_strict", "-CAfile", str(authority.certificate), str(learner.certificate)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "Authority Key Identifier" in done.stdout + done.stderr, done.stderr


def fields(certificate: Path) -> str:
    command = ["openssl", "x509", "-in", str(certificate), "-noout", "-text"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_workers_certificate_cannot_pass_for_a_learners(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "a")
    learner, worker = authority.issue("learner", ["127.0.0.1"]), authority.issue("worker-3")
    client = tls.client_context(TlsConnectOptions(tls_authority=authority.certificate))
    client.check_hostname = False  # even if names do not matter
    server = tls.server_context(TlsListenOptions(tls_certificate=learner.certificate, tls_key=learner.key), "127.0.0.1")
    assert talk(server, client, "learner") == "TLSv1.3"
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor.load_cert_chain(*worker)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"un(supported|suitable) certificate purpose"):
        talk(impostor, client, "worker-3")
    if shutil.which("openssl"):
        assert "TLS Web Server Authentication" in fields(learner.certificate) and "Alternative Name" in fields(learner.certificate)
        assert "TLS Web Client Authentication" in fields(worker.certificate) and "Alternative Name" not in fields(worker.certificate)


@pytest.mark.parametrize("asks", [False, True])
def test_a_learner_does_not_start_with_a_workers_certificate(asks: bool, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "a")
    worker = authority.issue("worker-3")
    options = TlsListenOptions(
        tls_certificate=worker.certificate, tls_key=worker.key, tls_client_authority=authority.certificate if asks else None
    )
    with pytest.raises(SecurityError, match=rf"{worker.certificate} is no learner's certificate: .*serverAuth.*issue\(name, hosts=\[\.\.\.\]\)"):
        tls.server_context(options, "127.0.0.1")


def test_a_worker_does_not_start_with_a_certificate_that_is_only_for_servers(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    key, certificate = tmp_path / "site.key", tmp_path / "site.pem"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=site", "-days", "1"]
    for usage, fits in (("serverAuth", False), ("clientAuth", True), ("serverAuth,clientAuth", True), ("", True)):
        more = ["-addext", f"extendedKeyUsage={usage}"] if usage else []
        subprocess.run([*new, *more, "-keyout", key, "-out", certificate], check=True, capture_output=True, umask=0o077)
        options = TlsConnectOptions(tls_authority=certificate, tls_certificate=certificate, tls_key=key)
        if fits:
            tls.client_context(options)
        else:
            with pytest.raises(SecurityError, match=rf"{certificate} is no worker's certificate: .*clientAuth.*issue\(name\)"):
                tls.client_context(options)


def test_certificates_are_valid_since_five_minutes_ago(tmp_path: Path) -> None:
    """The clock of another machine may be behind."""
    now = time.time()
    authority = Authority.create(tmp_path / "a")
    made = [authority.certificate, authority.issue("learner", ["127.0.0.1"]).certificate, authority.issue("worker-3", days=1 / 24).certificate]
    later = time.time()
    for path, days in zip(made, (tls.AUTHORITY_DAYS, tls.CERTIFICATE_DAYS, 1 / 24)):
        dates: dict[str, Any] = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        begin, end = ssl.cert_time_to_seconds(dates["notBefore"]), ssl.cert_time_to_seconds(dates["notAfter"])
        assert now - 1 <= begin + 300 <= later + 1
        assert now - 1 <= end - days * 86400 <= later + 1


def test_the_users_own_authority_is_made_once_and_trusted(tmp_path: Path) -> None:
    server = tls.server_context(TlsListenOptions(), "127.0.0.1")
    first = (tmp_path / "config/echo/authority/authority.pem").read_bytes()
    again = tls.server_context(TlsListenOptions(), "0.0.0.0")
    assert (tmp_path / "config/echo/authority/authority.pem").read_bytes() == first
    for context in (server, again):
        for name in ("localhost", "127.0.0.1"):
            assert talk(context, tls.client_context(TlsConnectOptions()), name) == "TLSv1.3"
    assert sorted(os.listdir(tmp_path / "config/echo")) == ["authority"]


def test_a_folder_that_cannot_be_made_is_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(SecurityError, match="tls_certificate and tls_key, or set XDG_CONFIG_HOME"):
        Authority.of_the_user()


def test_an_authority_open_to_others_is_refused(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "a")
    key = tmp_path / "a/authority.key"
    key.chmod(0o644)
    with pytest.raises(SecurityError, match=f"chmod 600 {key}"):
        Authority(tmp_path / "a")
    key.chmod(0o600)
    identity = authority.issue("learner", ["127.0.0.1"])
    identity.key.chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        tls.server_context(TlsListenOptions(tls_certificate=identity.certificate, tls_key=identity.key), "127.0.0.1")


def test_mistakes_end_in_what_to_do(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "a")
    with pytest.raises(SecurityError, match="already"):
        Authority.create(tmp_path / "a")
    with pytest.raises(SecurityError, match=r"Authority\.create"):
        Authority(tmp_path / "nowhere")
    for name in ("", "../x", "a b", "x" * 64, "-x", "x\n"):
        with pytest.raises(SecurityError, match="cannot name"):
            authority.issue(name)
    before = (tmp_path / "a/authority.key").read_bytes()
    with pytest.raises(SecurityError, match="replace the authority itself"):
        authority.issue("authority")
    assert (tmp_path / "a/authority.key").read_bytes() == before
    for host in ("", "b\u00fccher.example", "tcp://learner", "learner:5555", "300.1.1.1", "-x", "[::1]"):
        with pytest.raises(SecurityError, match="not the name or address of a host"):
            authority.issue("learner", [host])
    with pytest.raises(SecurityError, match="the folder .* does not exist"):
        authority.issue("learner", directory=tmp_path / "nowhere")
    learner, other = authority.issue("learner"), authority.issue("other")
    with pytest.raises(SecurityError, match="belong"):
        tls.server_context(TlsListenOptions(tls_certificate=learner.certificate, tls_key=other.key), "127.0.0.1")
    with pytest.raises(SecurityError, match="check"):
        tls.client_context(TlsConnectOptions(tls_authority=tmp_path / "nowhere.pem"))
    with pytest.raises(ConfigError, match="tls_key"):
        build_options(TlsListenOptions, {"tls_certificate": "x.pem"}, "grpcs")
    assert "learner.key" not in repr(TlsListenOptions(tls_certificate=learner.certificate, tls_key=learner.key))
    assert "PRIVATE" not in repr(authority)


@pytest.mark.parametrize("opened", ["echo", "echo/authority", "echo/authority/authority.pem"])
def test_an_authority_that_others_can_change_is_not_trusted(tmp_path: Path, opened: str) -> None:
    authority = Authority.of_the_user()
    tls.trusted(TlsConnectOptions())
    place = tmp_path / "config" / opened
    was = mode(place)
    place.chmod(was | 0o020)
    with pytest.raises(SecurityError, match=f"by other users .*run: chmod {was:o} {place}"):
        tls.client_context(TlsConnectOptions())
    if opened != "echo":
        with pytest.raises(SecurityError, match="chmod"):
            Authority(authority.directory)
    place.chmod(was)
    tls.client_context(TlsConnectOptions())


def test_no_authority_is_made_where_others_could_replace_it(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(SecurityError, match=f"chmod 700 {folder}"):
        Authority.create(folder)
    assert not any(folder.iterdir())
