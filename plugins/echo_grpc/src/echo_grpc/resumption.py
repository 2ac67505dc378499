"""TLS sessions of before that a client takes up again: `resumed_in_vain`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

__all__ = ["resumed_in_vain"]


def resumed_in_vain(shown: Mapping[str, Collection[bytes]]) -> str:
    """Why a call is refused, if it came by a session for which no certificate was shown this time; "" if it is not.

    gRPC looks at a certificate in a full handshake only, and its servers always offer sessions to take up again, as nginx and Envoy do: one
    that has expired since would be good for as long as the learner lives. To change gRPC's certificate configuration for each connection
    would end that, and the process: it frees the old one while another handshake uses it (grpc/grpc#36693).

    Args:
        shown: what gRPC knows of the client: `grpc.ServicerContext.auth_context()`.
    """
    certificate = next(iter(shown.get("x509_pem_cert", ())), b"")
    if not certificate or b"true" not in shown.get("ssl_session_reused", ()):
        return ""
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        return 'to see when the certificate of a resumed TLS session expires, the learner needs: pip install "echo-core[tls]"; or connect without resumption'
    expiry = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return "" if datetime.now(UTC) <= expiry else f"the certificate that this TLS session began with has expired ({expiry:%Y-%m-%d %H:%M:%S} UTC)"
