"""What a certificate says: its name, the hosts that it is for, and its dates. Reading it needs the `cryptography` package."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import SecurityError
from ..base.installing import how_to_install
from .tls import CERTIFICATE_DAYS, Authority, Identity

__all__ = ["Certificate", "read_certificate", "renew"]


@dataclass(frozen=True)
class Certificate:
    """What a certificate says.

    Attributes:
        name: the common name.
        hosts: names and addresses of a learner; a worker's certificate has none.
        begins, ends: when it is valid.
    """

    name: str
    hosts: tuple[str, ...]
    begins: datetime.datetime
    ends: datetime.datetime

    @property
    def days_left(self) -> float:
        """How long it is still valid; negative after its end."""
        return (self.ends - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400


def read_certificate(path: Path) -> Certificate:
    """Read the first certificate of a PEM file.

    Raises:
        SecurityError: the file holds no certificate, or the `cryptography` package is missing.
    """
    return _read(path)[0]


def renew(path: Path, authority: Authority, *, days: float = CERTIFICATE_DAYS) -> Identity:
    """Replace a certificate and its key by new ones with the same name and hosts. Running learners and workers use them for new connections.

    Raises:
        SecurityError: it is not a certificate of this authority, or its file no longer has the name that is in it.
        FileWriteError: the files cannot be written. The previous ones stay then.
    """
    said, raw = _read(path)
    issuer = _read(authority.certificate)[1]
    try:
        raw.verify_directly_issued_by(issuer)  # type: ignore[attr-defined]
    except Exception:  # ValueError, TypeError and InvalidSignature say the same
        raise SecurityError(f"{path} was not issued by the authority in {authority.directory}; give the folder of the one that issued it") from None
    if path.name != f"{said.name}.pem":
        raise SecurityError(f"{path} is the certificate of {said.name!r}; only a file of that name ({said.name}.pem) can be renewed in its place")
    return authority.issue(said.name, said.hosts, days=days, directory=path.parent)


def _read(path: Path) -> tuple[Certificate, object]:
    try:
        from cryptography import x509
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise SecurityError(f"reading certificates needs the cryptography package; {how_to_install('echo-core[tls]')}") from None
    try:
        raw = x509.load_pem_x509_certificate(path.read_bytes())
        names = [str(one.value) for one in raw.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        try:
            hosts = tuple(str(one.value) for one in raw.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except x509.ExtensionNotFound:
            hosts = ()
        return Certificate(next(iter(names), ""), hosts, raw.not_valid_before_utc, raw.not_valid_after_utc), raw
    except OSError as error:
        raise SecurityError(f"cannot read {path}: {error.strerror}; check the path") from None
    except ValueError:  # its text could show what the file contains
        raise SecurityError(f"{path} is not a certificate; it must be PEM") from None
