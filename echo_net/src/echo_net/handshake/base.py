"""What both ends of a handshake share: cutting the stream into messages, and the transcript."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.wire.protocol import PROTOCOL_VERSION, Buffer, parse_json

from .build import software
from .messages import LIMIT_AFTER, LIMIT_BEFORE, MAGIC, MESSAGE, Message, describe, printable

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec


class Handshake(ABC):
    """What both ends share: cutting the stream into messages, and the transcript."""

    other: str  # what the other end is called in errors
    takes_refusal = False
    agreed = False  # of a learner's end: only `accept` is missing

    def __init__(self, spec: Spec) -> None:
        self.done = False
        self.leftover = b""
        self.peer: dict[str, Any] = {}
        self._spec = spec
        self._spec_json = describe(spec)
        self._due = Message.HELLO
        self._buffer = bytearray()
        self._transcript = hashlib.sha256()
        self._failed = False

    def receive(self, data: Buffer) -> bytes:
        """Take bytes as they come, in any portions; return the bytes to send now (maybe none).

        Once `done`, the bytes that came after the handshake are in `leftover`. Raises ProtocolError,
        SecurityError, HandshakeRefused or SpecError, after which the connection cannot be used.
        """
        if self._failed:
            raise ProtocolError("this handshake has failed already")
        self._buffer += data
        replies = []
        try:
            while not (self.done or self.agreed) and (message := self._next_message()) is not None:
                reply = self._handle(*message)
                self._transcript.update(reply)
                replies.append(reply)
        except EchoError:
            self._failed = True
            raise
        if self.done:
            self.leftover += bytes(self._buffer)
            self._buffer.clear()
        return b"".join(replies)

    def _next_message(self) -> tuple[Message, dict[str, Any], bytes] | None:
        """Cut one message off the buffer: its kind, its body, and the transcript before it.

        Refuses what cannot become the message that is due as soon as that can be seen.
        """
        buffer = self._buffer
        start = bytes(buffer[: len(MAGIC)])
        if not MAGIC.startswith(start):
            raise ProtocolError(
                f"the {self.other} does not speak Echo: it began with {bytes(buffer[:16])!r}, not with the magic {MAGIC!r}"
            )
        if len(buffer) >= 6:
            self._check_version(buffer[4], buffer[5])
        if len(buffer) < MESSAGE.size:
            return None
        _, _, number, reserved, length = MESSAGE.unpack_from(buffer)
        refused = self.takes_refusal and number == Message.REFUSED
        if reserved or not (refused or number == self._due):
            raise ProtocolError(
                f"the {self.other} sent handshake message {number} where {self._due.name} was due"
            )
        kind = Message(number)
        limit = LIMIT_AFTER if kind in (Message.WELCOME, Message.SPEC) else LIMIT_BEFORE
        if length > limit:
            raise ProtocolError(
                f"the {self.other} announced a {kind.name} of {length} bytes, more than {limit}"
            )
        end = MESSAGE.size + length
        if len(buffer) < end:
            return None
        body = parse_json(buffer[MESSAGE.size : end], f"{kind.name} message")
        before = self._transcript.digest()
        self._transcript.update(buffer[:end])
        del buffer[:end]
        return kind, body, before

    def _check_version(self, theirs: int, kind: int) -> None:
        # The reason of a refusal is understood whatever the version, as long as it has reasons:
        # the original protocol (1) has none, there the byte that is the kind here counts arrays.
        if theirs != PROTOCOL_VERSION and not (self.takes_refusal and kind == Message.REFUSED and theirs > 1):
            self._wrong_version(
                f"the {self.other} speaks Echo protocol {theirs}, this end speaks"
                f" {PROTOCOL_VERSION} ({software()}){self._their_software()}; "
                + (
                    'that is the original protocol: choose it here with protocol="echo1"'
                    if theirs == 1
                    else "install the same echo-core at both ends"
                )
            )

    def _their_software(self) -> str:
        """The other end's description of itself, for a message to people; "" if the first message, which has it, has not come whole."""
        if len(self._buffer) < MESSAGE.size:
            return ""
        length = MESSAGE.unpack_from(self._buffer)[-1]
        if length > LIMIT_BEFORE or len(self._buffer) < MESSAGE.size + length:
            return ""
        try:
            body = parse_json(self._buffer[MESSAGE.size : MESSAGE.size + length], "message")
        except ProtocolError:
            return ""
        if "version" not in body:
            return ""
        return f"; the {self.other} has echo-core {printable(body['version'])}, build {printable(body.get('build', 'unknown'))}"

    def _field(self, body: dict[str, Any], key: str, kind: type[Any], pattern: re.Pattern[str] | None = None) -> Any:
        """A field of the right type and form, or a ProtocolError that names it."""
        value: Any = body.get(key)
        if type(value) is not kind or (pattern and not pattern.fullmatch(value)):
            raise ProtocolError(
                f"the {self.other}'s handshake has no usable {key!r}: {printable(repr(value))}"
            )
        return value

    def _silence(self, body: dict[str, Any]) -> float:
        """The other end's option `silence`, in seconds."""
        seconds = self._field(body, "silence", float)
        if not 0.001 <= seconds <= 86400:
            raise ProtocolError(f"the {self.other}'s handshake has no usable 'silence': {seconds!r}")
        return float(seconds)

    @abstractmethod
    def _wrong_version(self, text: str) -> None:
        """Raise for another protocol version."""

    @abstractmethod
    def _handle(self, kind: Message, body: dict[str, Any], before: bytes) -> bytes:
        """Act on one message, set `_due` or `done`, and return the answer to it."""
