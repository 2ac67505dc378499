"""The handshake, without any input or output: bytes go in, bytes to send come out.

A message is a 12-byte header (magic `ECHO`, protocol version u8, kind u8, reserved u16, length
u32, little-endian) and `length` bytes of JSON. The ends take turns:

    HELLO ->  <- CHALLENGE  PROOF ->  <- WELCOME  SPEC ->  <- READY

and the learner may answer anything with REFUSED (a code and a text) and hang up. Both proofs are
HMACs over the digest of every byte exchanged so far, under different labels: the token never
travels, and neither a recorded nor a reflected proof is good for anything, because both ends put
fresh nonces into what is proven. Nothing is buffered beyond the limit of the message that is
due: 4 KiB until its sender has had to prove itself, 1 MiB after. A deadline is the caller's.

    handshake = ServerHandshake(spec, tokens, incarnation)
    while not handshake.done:
        try:
            reply = handshake.receive(connection.recv(65536))
        except EchoError:
            connection.send(handshake.refusal)  # b"" when there is nothing to say
            raise
        connection.send(reply)
    first_bytes_of_the_frames = handshake.leftover
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from . import __version__
from .errors import EchoError, HandshakeRefused, ProtocolError, SecurityError, SpecError
from .labels import LEAF, SUFFIX, UnlabelledError, wants_labels
from .security import EVERYTHING, ROLES
from .wire import MAX_NUMBER, PROTOCOL_VERSION, Buffer, dump_json, parse_json

if TYPE_CHECKING:
    from .spec import Spec

__all__ = ["CONNECTION_ROLES", "ClientHandshake", "ServerHandshake"]

#: What a client is there for, and what its token must permit: a worker sends experience; an
#: observer sends none, and asks for what its token permits.
CONNECTION_ROLES: Final = {"worker": frozenset(("write",)), "observer": EVERYTHING}

MAGIC: Final = b"ECHO"
MESSAGE: Final = Struct("<4sBBHI")
LIMIT_BEFORE: Final = 4 << 10  # bytes of JSON from an end that has proven nothing yet
LIMIT_AFTER: Final = 1 << 20
WORKER_LABEL: Final = b"echo worker"
LEARNER_LABEL: Final = b"echo learner"

_HEX32: Final = re.compile(r"[0-9a-f]{32}")
_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_NAME_LIMIT: Final = 128


class Message(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    SPEC = 5
    READY = 6
    REFUSED = 7


def _pack(kind: Message, body: dict[str, Any]) -> bytes:
    text = dump_json(body)
    return MESSAGE.pack(MAGIC, PROTOCOL_VERSION, kind, 0, len(text)) + text


def _spec_json(spec: Spec) -> dict[str, Any]:
    """`spec` for the wire, refused here rather than by a peer when it is too large for it."""
    described = spec.to_json()
    size = len(dump_json(described)) + 256  # 256: the rest of a WELCOME
    if size > LIMIT_AFTER:
        raise SpecError(
            f"the spec takes {size} bytes to describe, a handshake carries {LIMIT_AFTER};"
            " use fewer leaves or shorter keys"
        )
    return described


def _mac(token: bytes, label: bytes, digest: bytes) -> str:
    return hmac.new(token, label + digest, hashlib.sha256).hexdigest()


def _printable(text: object, limit: int = _NAME_LIMIT) -> str:
    """Peers choose these words and people read them in terminals: no control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:limit])


def _difference(mine: Spec, described: dict[str, Any], other: str) -> str | None:
    """Which leaf of the other end's spec is not ours, in one sentence, or None."""
    try:
        return mine.difference(type(mine).from_json(described), "here", f"at the {other}")
    except SpecError as error:
        return f"the {other}'s spec cannot be used: {error}"
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the {other} described its spec badly: {error!r}") from error


class _Handshake(ABC):
    """What both ends share: cutting the stream into messages, and the transcript."""

    other: str  # what the other end is called in errors
    takes_refusal = False

    def __init__(self, spec: Spec) -> None:
        self.done = False
        self.leftover = b""
        self.peer: dict[str, Any] = {}
        self._spec = spec
        self._spec_json = _spec_json(spec)
        self._due = Message.HELLO
        self._buffer = bytearray()
        self._transcript = hashlib.sha256()
        self._failed = False

    def receive(self, data: Buffer) -> bytes:
        """Take bytes as they come, in any portions; return the bytes to send now (maybe none).

        Once `done`, what came beyond the handshake is in `leftover`. Raises ProtocolError,
        SecurityError, HandshakeRefused or SpecError, after which the connection is of no use.
        """
        if self._failed:
            raise ProtocolError("this handshake has failed already")
        self._buffer += data
        replies = []
        try:
            while not self.done and (message := self._next_message()) is not None:
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
                f"the {self.other} does not speak Echo: it began with {bytes(buffer[:16])!r}"
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
        if theirs != PROTOCOL_VERSION and not (
            self.takes_refusal and kind == Message.REFUSED and theirs > PROTOCOL_VERSION
        ):
            self._wrong_version(
                f"the {self.other} speaks Echo protocol {theirs}, this end speaks"
                f" {PROTOCOL_VERSION} (echo-core {__version__}); "
                + (
                    'that is the original protocol: choose it here with protocol="echo1"'
                    if theirs == 1
                    else "install the same echo-core at both ends"
                )
            )

    def _field(self, body: dict[str, Any], key: str, kind: type[Any], pattern: re.Pattern[str] | None = None) -> Any:
        """A field of the right type and form, or a ProtocolError that names it."""
        value: Any = body.get(key)
        if type(value) is not kind or (pattern and not pattern.fullmatch(value)):
            raise ProtocolError(
                f"the {self.other}'s handshake has no usable {key!r}: {_printable(repr(value))}"
            )
        return value

    @abstractmethod
    def _wrong_version(self, text: str) -> None:
        """Raise for another protocol version."""

    @abstractmethod
    def _handle(self, kind: Message, body: dict[str, Any], before: bytes) -> bytes:
        """Act on one message, set `_due` or `done`, and return the answer to it."""


class ServerHandshake(_Handshake):
    """The learner's end.

    `tokens` empty: no authentication; several: a client may hold any of them (rotation), and has
    the roles of the one it holds. `roles` are those this learner serves. After an error, `refusal`
    is what to send before hanging up. `peer` has client, role, base, name, pid, host and version
    from HELLO on, and from PROOF on what the client may do, `permissions`, and table: the one of
    `tables` whose spec the worker's must match, "" for `spec`.
    """

    other = "worker"

    def __init__(
        self,
        spec: Spec,
        tokens: Sequence[bytes] = (),
        incarnation: str = "",
        *,
        roles: Sequence[str] = tuple(CONNECTION_ROLES),
        tables: Mapping[str, Spec] | None = None,
    ) -> None:
        super().__init__(spec)
        self.refusal = b""
        self._tables = tables or {}
        self._tokens = tuple(tokens)
        self._incarnation = incarnation or secrets.token_hex(16)
        self._roles = roles

    def refuse(self, code: str, text: str) -> bytes:
        """End the handshake: the bytes that tell the client why (also kept in `refusal`)."""
        self._failed = True
        self.refusal = _pack(Message.REFUSED, {"code": code, "text": text[:2048]})
        return self.refusal

    @property
    def offered_labels(self) -> bool:
        """Whether the worker was told a spec with labels, and may hang up to come again with them."""
        return self._due is Message.SPEC and self._spec.leaves[-1:] == (LEAF,)

    def _wrong_version(self, text: str) -> None:
        self.refuse(
            "version",
            f"this learner speaks Echo protocol {PROTOCOL_VERSION} (echo-core"
            f" {__version__}), not {self._buffer[4]}; install the same at both ends",
        )
        raise ProtocolError(text)

    def _handle(self, kind: Message, body: dict[str, Any], before: bytes) -> bytes:
        if kind is Message.HELLO:
            return self._hello(body)
        if kind is Message.PROOF:
            return self._proof(body, before)
        return self._compare(body)

    def _hello(self, body: dict[str, Any]) -> bytes:
        base = self._field(body, "base", int)
        if not 0 <= base < MAX_NUMBER:
            raise ProtocolError(f"the worker's handshake has no usable 'base': {base}")
        self._field(body, "nonce", str, _HEX64)
        pid = body.get("pid")
        self.peer = {
            "client": self._field(body, "client", str, _HEX32),
            "role": _printable(self._field(body, "role", str)),
            "base": base,
            "name": _printable(body.get("name", "")),
            "pid": pid if type(pid) is int and 0 <= pid < 1 << 32 else 0,
            "host": _printable(body.get("host", "")),
            "version": _printable(body.get("version", "")),
        }
        if self.peer["role"] not in self._roles:
            served = " or ".join(self._roles)
            text = f"this learner serves the role {served}, not {self.peer['role']!r}"
            self.refuse("role", text)
            raise ProtocolError(f"{self._who()} was refused: {text}")
        self._due = Message.PROOF
        return _pack(
            Message.CHALLENGE,
            {
                "server": self._incarnation,
                "nonce": secrets.token_hex(32),
                "auth": "token" if self._tokens else "none",
            },
        )

    def _proof(self, body: dict[str, Any], before: bytes) -> bytes:
        mac = self._field(body, "mac", str)
        proven = None
        for token in self._tokens:  # all of them, so that time tells nothing about which
            expected = _mac(token, WORKER_LABEL, before)
            if hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")):
                proven = token
        if self._tokens and proven is None:
            self.refuse(
                "auth",
                "the token is not the learner's; give both ends the same one in ECHO_TOKEN or"
                " ECHO_TOKEN_FILE",
            )
            raise SecurityError(f"{self._who()} was refused: its token is not this learner's")
        held: frozenset[str] = EVERYTHING if proven is None else getattr(proven, "roles", EVERYTHING)
        self.peer["permissions"] = held
        wanted = CONNECTION_ROLES.get(self.peer["role"], EVERYTHING)
        if not held & wanted:
            named = ", ".join(role for role in ROLES if role in held)
            needed = " or ".join(role for role in ROLES if role in wanted)
            text = f"a {self.peer['role']} needs a token for {needed}, this one is for {named}"
            self.refuse("role", text)
            raise SecurityError(f"{self._who()} was refused: {text}")
        self._choose_table(body)
        self._due = Message.SPEC
        mine = _mac(proven, LEARNER_LABEL, self._transcript.digest()) if proven else ""
        welcome = {"mac": mine, "spec": self._spec_json}
        if self.peer["table"]:
            welcome["table"] = self.peer["table"]
        return _pack(Message.WELCOME, welcome)

    def _choose_table(self, body: dict[str, Any]) -> None:
        """From here on the spec is that of the table the worker names, if it names one."""
        name = self.peer["table"] = self._field(body, "table", str) if "table" in body else ""
        if not name:
            return
        spec = self._tables.get(name)
        if spec is None:
            have = ", ".join(map(repr, self._tables)) or "none, it streams"
            text = f"this learner has no table {_printable(name)!r} (it has {have})"
            if name.endswith(SUFFIX):
                text = f"samples with priorities or policy versions need a replay table, and this learner has {have}"
            self.refuse("table", text)
            raise ProtocolError(f"{self._who()} was refused: {text}")
        self._spec, self._spec_json = spec, _spec_json(spec)

    def _compare(self, body: dict[str, Any]) -> bytes:
        difference = _difference(self._spec, self._field(body, "spec", dict), "worker")
        if difference:
            self.refuse("spec", difference)
            raise SpecError(f"{self._who()} was refused: {difference}")
        self.done = True
        return _pack(Message.READY, {})

    def _who(self) -> str:
        return f"worker {self.peer['name']!r} (pid {self.peer['pid']} on {self.peer['host']!r})"


class ClientHandshake(_Handshake):
    """The worker's end: send `start()`, then whatever `receive()` returns.

    `client_id` is 32 hex digits, the same for every connection of a session; `base` is how many
    samples of the session the worker knows committed. A worker that holds a token refuses a
    learner that asks for none, who may be anybody, unless `allow_unauthenticated`.
    `peer` has server (its incarnation) and auth ("token" or "none"). An observer, who sends no
    samples, takes over whatever spec the learner has: then `peer` has its description too, as spec.
    """

    other = "learner"
    takes_refusal = True

    def __init__(
        self,
        spec: Spec,
        token: bytes | None = None,
        client_id: str = "",
        base: int = 0,
        role: str = "worker",
        name: str = "",
        *,
        allow_unauthenticated: bool = False,
        table: str = "",
    ) -> None:
        super().__init__(spec)
        self._table = table
        self._token = token or None
        self._allow_unauthenticated = allow_unauthenticated
        self._difference: str | None = None
        self._due = Message.CHALLENGE
        host = _printable(socket.gethostname())
        self._hello = {
            "client": client_id or secrets.token_hex(16),
            "role": role,
            "nonce": secrets.token_hex(32),
            "base": base,
            "name": _printable(name) or f"{host}:{os.getpid()}",
            "pid": os.getpid(),
            "host": host,
            "version": __version__,
        }

    def start(self) -> bytes:
        """The first message; send it before anything else, once."""
        message = _pack(Message.HELLO, self._hello)
        self._transcript.update(message)
        return message

    def _wrong_version(self, text: str) -> None:
        raise HandshakeRefused(text, "version")

    def _handle(self, kind: Message, body: dict[str, Any], before: bytes) -> bytes:
        if kind is Message.REFUSED:
            self._refused(body)
        if kind is Message.CHALLENGE:
            return self._challenge(body)
        if kind is Message.WELCOME:
            return self._welcome(body, before)
        return self._ready()

    def _refused(self, body: dict[str, Any]) -> None:
        code, text = _printable(body.get("code", ""), 32), _printable(body.get("text", ""), 2048)
        if code == "auth":
            raise SecurityError(f"the learner refused this worker: {text}")
        if code == "role" and "token" in text:
            raise SecurityError(f"the learner refused this worker: {text}")
        if code == "spec":
            raise SpecError(f"the learner refused this worker: {self._difference or text}; give both ends the same example")
        raise HandshakeRefused(f"the learner refused this worker ({code}): {text}", code)

    def _challenge(self, body: dict[str, Any]) -> bytes:
        auth = self._field(body, "auth", str)
        self._field(body, "nonce", str, _HEX64)
        self.peer = {"server": self._field(body, "server", str, _HEX32), "auth": auth}
        if auth == "token" and not self._token:
            raise SecurityError(
                "the learner asks for a token and this worker has none; set ECHO_TOKEN or"
                " ECHO_TOKEN_FILE to the learner's"
            )
        if auth == "none" and self._token and not self._allow_unauthenticated:
            raise SecurityError(
                "this worker holds a token but the learner asks for none, so it may be anybody;"
                " give the learner the token, or allow it with allow_unauthenticated=True"
            )
        if auth not in ("token", "none"):
            raise SecurityError(
                f"the learner asks for unknown authentication {_printable(auth)!r}; install the"
                " same echo-core at both ends"
            )
        self._due = Message.WELCOME
        mac = ""
        if auth == "token" and self._token:
            mac = _mac(self._token, WORKER_LABEL, self._transcript.digest())
        return _pack(Message.PROOF, {"mac": mac, **({"table": self._table} if self._table else {})})

    def _welcome(self, body: dict[str, Any], before: bytes) -> bytes:
        mac = self._field(body, "mac", str)
        if self.peer["auth"] == "token" and self._token:
            expected = _mac(self._token, LEARNER_LABEL, before)
            if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")):
                raise SecurityError(
                    "the learner could not prove that it holds this worker's token; check the"
                    " address, and ECHO_TOKEN or ECHO_TOKEN_FILE at both ends"
                )
        if self._table and body.get("table") != self._table:
            raise HandshakeRefused(
                f"the learner does not know tables, {self._table!r} among them; install the same"
                " echo-core at both ends",
                "table",
            )
        described = self._field(body, "spec", dict)
        if self._hello["role"] == "observer":
            self._spec_json = self.peer["spec"] = described
        else:
            self._difference = _difference(self._spec, described, "learner")
            if self._difference and wants_labels(self._spec, described):
                raise UnlabelledError(f"the learner's table keeps policy versions: {self._difference}")
        # Sent even when they differ: so the learner can report the same leaf on its side.
        self._due = Message.READY
        return _pack(Message.SPEC, {"spec": self._spec_json})

    def _ready(self) -> bytes:
        if self._difference:
            raise SpecError(f"the learner's spec is another: {self._difference}")
        self.done = True
        return b""
