"""TLS for transports that support it: which certificates to use, and how to make an authority for a private cluster.

    authority = Authority.create("/etc/echo/tls")                  # give authority.pem to everybody; keep authority.key secret.
    authority.issue("learner", hosts=["learner", "10.0.0.5"])      # learner.pem and learner.key, for tls_certificate and tls_key
    authority.issue("worker-3")                                    # for mutual TLS; it cannot pass for a learner

A learner that is given no certificate gets one from the user's own authority, which is made on first use in the folder of the token
file. TLS therefore needs no set-up on one machine, or wherever a home directory is shared. Clients trust this authority in addition
to the system's authorities.

The `cryptography` package makes the keys (the extra `tls` brings it); where it is missing, the `openssl` command does.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..base.address import is_ip
from ..base.errors import SecurityError
from ..base.installing import how_to_install
from ..base.transport_options import ConnectOptions, ListenOptions
from ..base.writing import NewFile, write_together, writing
from .tokens import check_directory, check_genuine, check_private, default_token_path

__all__ = ["CERTIFICATE_ADVICE", "Authority", "Identity", "TlsConnectOptions", "TlsListenOptions", "client_context", "server_context", "trusted"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
AUTHORITY_DAYS = 3650.0
CERTIFICATE_DAYS = 365.0
MOST_DAYS = 36500.0
#: The remedies for a refused certificate. Transports end their error with them.
CERTIFICATE_ADVICE = (
    "check its dates; the worker's tls_authority must be the authority that issued the learner's certificate (`echoctl tls authority` makes one); "
    "that certificate must name the host of the worker's address (`echoctl tls server NAME --host HOST` makes one); "
    "if the learner asks workers for a certificate, the worker needs tls_certificate and tls_key (`echoctl tls client NAME`)"
)
_FOR_ANOTHER_PURPOSE = 26  # X509_V_ERR_INVALID_PURPOSE of OpenSSL


@dataclass(frozen=True, kw_only=True)
class TlsListenOptions(ListenOptions):
    """The options of a listener with TLS, in addition to `ListenOptions`."""

    tls_certificate: Path | None = None  # PEM, with intermediate certificates; None: one of the user's own authority
    tls_key: Path | None = field(default=None, repr=False)
    tls_client_authority: Path | None = None  # PEM: clients must show a certificate of this authority (mutual TLS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together; give both or neither")


@dataclass(frozen=True, kw_only=True)
class TlsConnectOptions(ConnectOptions):
    """The options of a connection with TLS, in addition to `ConnectOptions`."""

    tls_authority: Path | None = None  # PEM; None: the system's authorities and the user's own
    tls_certificate: Path | None = None  # for a learner that asks for one
    tls_key: Path | None = field(default=None, repr=False)
    tls_server_name: str = ""  # the name that the learner's certificate must contain; "": the host of the address

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together; give both or neither")


class Identity(NamedTuple):
    """A certificate chain and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder: `authority.pem` and `authority.key`.

    Anyone who can read the key can impersonate any learner or worker. The certificate is not secret.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open the authority in `directory`.

        Raises SecurityError if there is no authority, if other users can read its key, or if they can change its files.
        """
        self.directory = Path(directory).expanduser()
        self.certificate = self.directory / "authority.pem"
        self._key = self.directory / "authority.key"
        try:
            check_directory(self.directory)
            check_private(self._key, self._key.stat())
            check_genuine(self.certificate)
        except OSError as error:
            if isinstance(error, SecurityError):
                raise
            raise SecurityError(
                f"{self.directory} does not hold an authority: {error.strerror}; make one with Authority.create({str(directory)!r})"
            ) from None

    @classmethod
    def create(cls, directory: str | os.PathLike[str], *, days: float = AUTHORITY_DAYS) -> Authority:
        """Make a new authority.

        Raises:
            SecurityError: `directory` already holds one, or others could change it, or neither `cryptography` nor `openssl` is installed.
            FileWriteError: the files cannot be written, for example because the disk is full. Nothing is left then.
        """
        directory = Path(directory).expanduser()
        if (directory / "authority.key").exists():
            raise SecurityError(f"{directory} already holds an authority; open it with Authority(...), or choose another folder")
        with writing(directory):
            directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        check_directory(directory)
        _make("Echo authority", [], days, directory / "authority.pem", directory / "authority.key", None)
        return cls(directory)

    @classmethod
    def of_the_user(cls) -> Authority:
        """The user's own authority, in the folder of the token file. It is made on first use; if several processes make it, one wins."""
        directory = default_token_path().with_name("authority")
        if not directory.exists():
            try:
                directory.parent.parent.mkdir(parents=True, exist_ok=True)
                directory.parent.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise SecurityError(
                    f"cannot keep an authority of your own in {directory}: {error.strerror}; give tls_certificate and tls_key, or set "
                    f"XDG_CONFIG_HOME to a folder that you can write to"
                ) from error
            new = directory.with_name(f".authority-{secrets.token_hex(8)}")
            try:
                cls.create(new)
                with contextlib.suppress(OSError):  # another process was first, and its authority counts
                    new.rename(directory)
            finally:
                shutil.rmtree(new, ignore_errors=True)
        return cls(directory)

    def issue(
        self, name: str, hosts: Sequence[str] = (), *, days: float = CERTIFICATE_DAYS, directory: str | os.PathLike[str] | None = None
    ) -> Identity:
        """Make a certificate for `name`: `name.pem` and `name.key` in `directory` (None: the authority's).

        With `hosts` it is a learner's certificate, without them a worker's. A worker's certificate only proves who the worker is:
        its holder cannot pass for a learner. A learner's also does what a worker's does, for learners that are clients of others.

        Args:
            name: shown to people; also a file name.
            hosts: names and addresses under which clients reach the learner; `name` itself is then one of them.
            days: how long the certificate is valid.

        Raises:
            SecurityError: the name or a host cannot be used, or neither `cryptography` nor `openssl` is installed. ValueError: `days` has no meaning.
            FileWriteError: the files cannot be written, for example because the disk is full. Those that were there stay.
        """
        if not _NAME.fullmatch(name):
            raise SecurityError(f"{name!r} cannot name a certificate; use letters, digits, dots and dashes")
        folder = self.directory if directory is None else Path(directory)
        identity = Identity(folder / f"{name}.pem", folder / f"{name}.key")
        if not folder.is_dir():
            raise SecurityError(f"the folder {folder} for the certificate of {name!r} does not exist; make it, or give another one (directory=)")
        if name == "authority" and folder.samefile(self.directory):
            raise SecurityError(f"a certificate named 'authority' would replace the authority itself in {folder}; choose another name")
        for host in hosts:
            if not is_ip(host) and (not _HOST.fullmatch(host) or not host.strip("0123456789.")):  # no client would look for it in a certificate
                raise SecurityError(
                    f"{host!r} is not the name or address of a host; leave out scheme and port, and write an international name in its ASCII form (xn--...)"
                )
        _make(name, list(dict.fromkeys((name, *hosts))) if hosts else [], days, *identity, self)
        return identity

    def __repr__(self) -> str:
        return f"<Authority {self.directory}>"


# ------------------------------------------------------------------------------------------------------ what transports call


@contextlib.contextmanager
def server_identity(options: TlsListenOptions, host: str) -> Iterator[Identity]:
    """The learner's certificate: the given one, or a new one of the user's authority that exists while the block runs."""
    if options.tls_certificate is not None and options.tls_key is not None:
        _check_key(options.tls_key)
        yield Identity(options.tls_certificate, options.tls_key)
        return
    with _temporary_folder() as folder:
        hosts = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
        if host not in ("0.0.0.0", "::", ""):
            hosts.append(host)
        yield Authority.of_the_user().issue("learner", hosts, days=90, directory=folder)


def trusted(options: TlsConnectOptions) -> bytes:
    """The authorities whose certificates a client accepts from a learner, as PEM."""
    if options.tls_authority is not None:
        return _read(options.tls_authority)
    paths = ssl.get_default_verify_paths()
    own = default_token_path().with_name("authority") / "authority.pem"
    if os.path.exists(own):
        check_directory(own.parent.parent)
        check_directory(own.parent)
        check_genuine(own)
    return b"\n".join(_read(Path(path)) for path in (paths.cafile, own) if path and os.path.exists(path))


def server_context(options: TlsListenOptions, host: str) -> ssl.SSLContext:
    """The context of the learner's sockets: TLS 1.3, with clients' certificates if the options ask for them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a resumed session would skip the check of the client's certificate, which may have expired since
    with server_identity(options, host) as identity, _explained(identity.certificate):
        context.load_cert_chain(*identity)
        if not _fits(identity, server=True):
            raise SecurityError(
                f"{identity.certificate} is no learner's certificate: it is not for servers (serverAuth), so that every client would refuse this "
                "learner; make one with Authority(...).issue(name, hosts=[...]), and give it as tls_certificate and tls_key"
            )
    if options.tls_client_authority is not None:
        with _explained(options.tls_client_authority):
            context.load_verify_locations(options.tls_client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: TlsConnectOptions) -> ssl.SSLContext:
    """The context of a worker's sockets: TLS 1.3, with a check of the learner's name and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if options.tls_authority is None:
        context.load_default_certs()  # also loads those that the system keeps in a folder
    if roots := trusted(options):
        with _explained(options.tls_authority or Path("the system's authorities")):
            context.load_verify_locations(cadata=roots.decode("ascii", "ignore"))
    if options.tls_certificate is not None and options.tls_key is not None:
        _check_key(options.tls_key)
        identity = Identity(options.tls_certificate, options.tls_key)
        with _explained(identity.certificate):
            context.load_cert_chain(*identity)
            if not _fits(identity, server=False):
                raise SecurityError(
                    f"{identity.certificate} is no worker's certificate: it is not for clients (clientAuth), so that no learner that asks for one "
                    "would accept it; make one with Authority(...).issue(name), and give it as tls_certificate and tls_key"
                )
    return context


def client_identity(options: TlsConnectOptions) -> tuple[bytes | None, bytes | None]:
    """A worker's (key, certificate chain) as PEM, or (None, None)."""
    if options.tls_certificate is None or options.tls_key is None:
        return None, None
    _check_key(options.tls_key)
    return _read(options.tls_key), _read(options.tls_certificate)


def _fits(identity: Identity, *, server: bool) -> bool:
    """Whether this end of a connection may show this certificate. A handshake in memory tells it, because the ssl module cannot read extensions."""
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    checks = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if server else ssl.PROTOCOL_TLS_SERVER)
    for context in (shows, checks):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(*identity)  # a server needs one, whichever end shows it for the check
    checks.verify_mode = ssl.CERT_REQUIRED
    checks.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whose certificate it is does not matter here, only what it is for
    checks.load_verify_locations(identity.certificate)
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [shows.wrap_bio(one, other, server_side=server), checks.wrap_bio(other, one, server_side=not server)]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                return error.verify_code != _FOR_ANOTHER_PURPOSE
    return True


def _check_key(path: Path) -> None:
    try:
        check_private(path, path.stat())
    except SecurityError:
        raise
    except OSError as error:
        raise SecurityError(f"cannot read {path}: {error.strerror}; check tls_key") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"cannot read {path}: {error.strerror}; check the tls_ options") from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (ssl.SSLError, OSError) as error:
        if isinstance(error, SecurityError):
            raise
        raise SecurityError(f"{path} cannot be used for TLS: {error}; it must be PEM, and the key must belong to the certificate") from None


# ------------------------------------------------------------------------------------------------------ making certificates


EARLIER = datetime.timedelta(minutes=5)  # a new certificate is valid since then, because clocks differ


def _make(name: str, hosts: list[str], days: float, certificate: Path, key: Path, issuer: Authority | None) -> None:
    if not abs(days) <= MOST_DAYS:
        raise ValueError(f"days must be a number up to {MOST_DAYS:.0f}, not {days!r}")
    try:
        import cryptography  # noqa: F401
    except ImportError:
        make: Any = _by_openssl
    else:
        make = _by_cryptography
    make(name, hosts, days, certificate, key, issuer)


def _by_cryptography(name: str, hosts: list[str], days: float, certificate: Path, key: Path, issuer: Authority | None) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    own = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer: Any = own
    signers_name = subject
    if issuer is not None:
        signer = serialization.load_pem_private_key(issuer._key.read_bytes(), None)
        signers_name = x509.load_pem_x509_certificate(issuer.certificate.read_bytes()).subject
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signers_name)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is None:
        usage = dict.fromkeys(["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"], False)
        signing = x509.KeyUsage(key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False, **usage)
        builder = builder.add_extension(signing, critical=True)
    else:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            names = [x509.IPAddress(ipaddress.ip_address(host)) if is_ip(host) else x509.DNSName(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    signed = builder.sign(signer, hashes.SHA256())
    plain = serialization.NoEncryption()
    private = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    _write(key, private, certificate, signed.public_bytes(serialization.Encoding.PEM))


def _by_openssl(name: str, hosts: list[str], days: float, certificate: Path, key: Path, issuer: Authority | None) -> None:
    now = datetime.datetime.now(datetime.UTC)
    dates = [f"{when:%Y%m%d%H%M%SZ}" for when in (now - EARLIER, now + datetime.timedelta(days=days))]
    with _temporary_folder() as folder, writing(folder):
        new, request, extensions, signed, settings = (Path(folder, part) for part in ("key", "request", "extensions", "signed", "settings"))
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", new)
        _openssl("req", "-new", "-key", new, "-subj", f"/CN={name}", "-out", request)
        if issuer is None:
            usage = "keyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
            extensions.write_text(f"basicConstraints=critical,CA:TRUE,pathlen:0\n{usage}")
            sign: list[Any] = ["-selfsign", "-keyfile", new]
        else:
            names = ",".join(f"{'IP' if is_ip(host) else 'DNS'}:{host}" for host in hosts)
            usages = f"extendedKeyUsage=clientAuth,serverAuth\nsubjectAltName={names}\n" if hosts else "extendedKeyUsage=clientAuth\n"
            extensions.write_text(
                f"basicConstraints=critical,CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n{usages}"
            )
            sign = ["-cert", issuer.certificate, "-keyfile", issuer._key]
        # `openssl ca` is the only command of all versions that takes both dates. It wants a file with what it has signed before.
        Path(folder, "index").touch()
        settings.write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/index\nnew_certs_dir={folder}\nrand_serial=yes\npolicy=any\n"
            "[any]\ncommonName=supplied\n"
        )
        period = ["-startdate", dates[0], "-enddate", dates[1]]
        options: list[str | Path] = ["-batch", "-notext", "-md", "sha256", "-config", settings, "-extfile", extensions]
        _openssl("ca", *options, *period, *sign, "-in", request, "-out", signed)
        _write(key, new.read_bytes(), certificate, signed.read_bytes())


def _openssl(*arguments: str | Path) -> None:
    try:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, umask=0o077, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise SecurityError(
            f"making certificates needs the cryptography package or the openssl command; {how_to_install('echo-core[tls]')}"
        ) from None
    except subprocess.CalledProcessError as error:
        raise SecurityError(f"openssl {arguments[0]} failed: {error.stderr.decode(errors='replace').strip()[-300:]}") from None


def _write(key: Path, private: bytes, certificate: Path, signed: bytes) -> None:
    """Write both files or neither, because a key is of no use with another certificate. Others can never read the key, not even for a moment."""
    write_together([NewFile(key, private, 0o600), NewFile(certificate, signed, 0o644)])


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    with contextlib.ExitStack() as until_then:
        with writing(os.environ.get("TMPDIR") or "/tmp"):
            folder = until_then.enter_context(tempfile.TemporaryDirectory(prefix="echo-tls-"))
        yield folder
