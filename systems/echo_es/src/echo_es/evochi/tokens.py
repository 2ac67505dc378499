"""The JSON web tokens that workers of Evochi carry: HS512, made with the standard library."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import time
from typing import Any

from echo_core import SecurityError

__all__ = ["EXPIRY", "issue", "verify"]

EXPIRY = 720 * 3600.0  # seconds, which are 30 days
ISSUER = "evochi@v1"
LONGEST = 4096  # characters of a token; one of ours has fewer than 400


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _signature(secret: bytes, signed: str) -> bytes:
    return hmac.digest(secret, signed.encode(), "sha512")


_HEADER = _text(json.dumps({"alg": "HS512", "typ": "JWT"}, separators=(",", ":")).encode())


def issue(secret: bytes, worker: str, expiry: float = EXPIRY) -> str:
    """A token that proves for `expiry` seconds to be `worker`."""
    now = int(time.time())
    claims = {"iss": ISSUER, "sub": worker, "exp": now + int(expiry), "nbf": now, "iat": now}
    signed = f"{_HEADER}.{_text(json.dumps(claims, separators=(',', ':')).encode())}"
    return f"{signed}.{_text(_signature(secret, signed))}"


def verify(secret: bytes, token: str, now: float | None = None) -> tuple[str, float]:
    """The worker that a token names, and the time at which it expires (seconds since 1970).

    Raises SecurityError if the token is not one of ours, or is not valid at the time `now`.
    """
    now = time.time() if now is None else now
    try:
        if len(token) > LONGEST:
            raise ValueError(token)
        header, claims, signature = token.encode("ascii").decode().split(".")
        genuine = hmac.compare_digest(_bytes(signature), _signature(secret, f"{header}.{claims}"))
        # The signature is checked first, so that nothing a stranger wrote is parsed.
        said: dict[str, Any] = {**json.loads(_bytes(header)), **json.loads(_bytes(claims))} if genuine else {}
        if said.get("alg") != "HS512":
            raise ValueError(token)
        worker, begins, ends = said["sub"], float(said.get("nbf", 0)), float(said["exp"])
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise SecurityError("the token is not one that this server has issued; a worker must send the one of its hello event") from None
    if not begins <= now < ends:
        raise SecurityError(f"the token of worker {worker!s:.80} has expired or is not valid yet; the worker must join again (see EVOCHI_JWT_EXPIRY)")
    return str(worker), ends
