"""Finds clients that resume an earlier TLS session although its certificate has expired since: `expired`."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

__all__ = ["expired"]

VERSION, UTC_TIME = 0xA0, 0x17  # tags of DER


def expired(shown: Mapping[str, Collection[bytes]]) -> str:
    """Why a call over a resumed TLS session is refused; "" if the certificate with which the session began is still valid, or none was asked for.

    gRPC checks a certificate only in a full handshake, and its servers always offer sessions to resume, as nginx and Envoy do. Without this check, a
    certificate that has expired since would be accepted as long as the learner lives. A new certificate configuration of gRPC for each connection would
    prevent that, but can crash the process: gRPC frees the old one while another handshake uses it (grpc/grpc#36693). An issuer that has expired since
    is not noticed here, because gRPC passes on only the first certificate of the chain. A connection that stands is not checked again, as everywhere
    in TLS: a proxy may carry new workers on a connection that began with its earlier certificate.

    Args:
        shown: gRPC's data about the client: `grpc.ServicerContext.auth_context()`.
    """
    if b"true" not in shown.get("ssl_session_reused", ()):
        return ""
    for certificate in shown.get("x509_pem_cert", ()):
        try:
            date = _not_after(certificate)
        except (ValueError, IndexError):
            return "the date of the certificate that this TLS session began with cannot be read"
        if datetime.now(UTC) > date:
            return (
                f"the certificate of this TLS session has expired ({date:%Y-%m-%d %H:%M:%S} UTC): renew it, and if a proxy shows it, make the proxy"
                " forget its earlier sessions (nginx: grpc_ssl_session_reuse off)"
            )
    return ""


def _not_after(pem: bytes) -> datetime:
    """The end of a certificate's validity. Raises ValueError or IndexError if `pem` is not a certificate."""
    # RFC 5280, 4.1: the first part of the certificate has [version,] serial number, algorithm, issuer, validity: (not before, not after), ...
    certificate = _parts(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))[0][1]
    fields = _parts(_parts(certificate)[0][1])
    validity = fields[4 if fields[0][0] == VERSION else 3][1]
    tag, text = _parts(validity)[1]
    date = text.decode("ascii")
    if tag == UTC_TIME:  # this type has two digits for the year, and ends with 2049
        date = ("20" if date < "50" else "19") + date
    return datetime.strptime(date, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """The values that follow one another in DER data. Each has a tag, a length and a content."""
    parts, at = [], 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:  # the low bits are the length of the length
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size])
            at += size
        if at + length > len(data):
            raise ValueError("cut off")
        parts.append((tag, data[at : at + length]))
        at += length
    return parts
