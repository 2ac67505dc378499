"""The messages of a handshake: header, kinds and limits, what is proven over them, and how specs are described and compared."""

from __future__ import annotations

import hashlib
import hmac
import re
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from echo_core.base.errors import ProtocolError, SpecError
from echo_core.wire.protocol import PROTOCOL_VERSION, dump_json

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec

MAGIC: Final = b"ECHO"
MESSAGE: Final = Struct("<4sBBHI")
LIMIT_BEFORE: Final = 4 << 10  # bytes of JSON from an end that has proven nothing yet
LIMIT_AFTER: Final = 1 << 20
WORKER_LABEL: Final = b"echo worker"
LEARNER_LABEL: Final = b"echo learner"

HEX32: Final = re.compile(r"[0-9a-f]{32}")
HEX64: Final = re.compile(r"[0-9a-f]{64}")
NAME_LIMIT: Final = 128


class Message(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    SPEC = 5
    READY = 6
    REFUSED = 7


def pack(kind: Message, body: dict[str, Any]) -> bytes:
    text = dump_json(body)
    return MESSAGE.pack(MAGIC, PROTOCOL_VERSION, kind, 0, len(text)) + text


def mac_of(token: bytes, label: bytes, digest: bytes) -> str:
    return hmac.new(token, label + digest, hashlib.sha256).hexdigest()


def printable(text: object, limit: int = NAME_LIMIT) -> str:
    """Peers choose these words and people read them in terminals: no control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:limit])


@lru_cache(maxsize=64)  # specs of a process; made anew for every stranger, one of 4096 leaves would cost 12 ms each time
def describe(spec: Spec) -> dict[str, Any]:
    """`spec` for the wire, not to be changed; refused here rather than by a peer when it is too large for it."""
    described = spec.to_json()
    size = len(dump_json(described)) + 256  # 256: the rest of a WELCOME
    if size > LIMIT_AFTER:
        raise SpecError(
            f"the spec takes {size} bytes to describe, a handshake carries {LIMIT_AFTER};"
            " use fewer leaves or shorter keys"
        )
    return described


def difference_of(mine: Spec, described: dict[str, Any], other: str) -> str | None:
    """Which leaf of the other end's spec is not ours, in one sentence, or None."""
    try:
        return mine.difference(type(mine).from_json(described), "here", f"at the {other}")
    except SpecError as error:
        return f"the {other}'s spec cannot be used: {error}"
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the {other} described its spec badly: {error!r}") from error
