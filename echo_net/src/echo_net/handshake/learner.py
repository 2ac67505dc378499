"""The learner's end of a handshake: whom it lets in, what they may do, and what it tells those it refuses."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from echo_core.base.errors import ProtocolError, SecurityError, SpecError
from echo_core.base.transport_options import SILENCE
from echo_core.security.tokens import EVERYTHING, ROLES
from echo_core.wire.protocol import MAX_NUMBER, PROTOCOL_VERSION

from .base import Handshake
from .build import software
from .messages import HEX32, HEX64, LEARNER_LABEL, WORKER_LABEL, Message, describe, difference_of, mac_of, pack, printable

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec

#: The roles of connections, and one of the permissions that the token must give. A worker sends experience. An observer sends none,
#: and may ask for everything that its token permits.
CONNECTION_ROLES: Final = {"worker": frozenset(("write",)), "observer": EVERYTHING}


class ServerHandshake(Handshake):
    """The learner's end.

    Args:
        spec: the spec of the learner's stream or first table.
        tokens: the secrets that a client may hold, which gets the roles of the one it holds; without any, clients are not authenticated.
        incarnation: the identity of this server's run; "" draws a random one.
        roles: the roles of connections that this learner serves.
        tables: the specs of the replay tables, by name.
        labels: the names of those that take labels (wire/labels.py); "" is among them if the first one does.
        silence: this end's option `silence`, in seconds.
        hold: whether the caller decides at the end. `agreed` is then set once the client has proven itself and its spec fits. The handshake
            is done after the caller sends what `accept` returns, and fails after `refuse`.

    Attributes:
        refusal: after an error, the bytes to send before hanging up.
        agreed: whether a handshake with `hold` waits for the caller.
        peer: what the client said. From HELLO on it has `client`, `session`, `silence`, `role`, `base`, `name`, `pid`, `host` and `version`;
            from PROOF on also `permissions`, and `table`, whose spec the worker's must match ("" stands for `spec`).
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
        labels: Collection[str] = (),
        silence: float = SILENCE,
        hold: bool = False,
    ) -> None:
        super().__init__(spec)
        self.refusal = b""
        self.agreed = False
        self._silence_here = silence
        self._hold = hold
        self._tables = tables or {}
        self._labels = labels
        self._tokens = tuple(tokens)
        self._incarnation = incarnation or secrets.token_hex(16)
        self._roles = roles

    def refuse(self, code: str, text: str) -> bytes:
        """End the handshake: the bytes that tell the client why (also kept in `refusal`)."""
        self._failed = True
        self.refusal = pack(Message.REFUSED, {"code": code, "text": text[:2048]})
        return self.refusal

    def _wrong_version(self, text: str) -> None:
        self.refuse(
            "version",
            f"this learner speaks Echo protocol {PROTOCOL_VERSION} ({software()}), not {self._buffer[4]}; install the same at both ends",
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
        self._field(body, "nonce", str, HEX64)
        pid = body.get("pid")
        self.peer = {
            "client": self._field(body, "client", str, HEX32),
            "session": self._field(body, "session", str, HEX32),
            "silence": self._silence(body),
            "role": printable(self._field(body, "role", str)),
            "base": base,
            "name": printable(body.get("name", "")),
            "pid": pid if type(pid) is int and 0 <= pid < 1 << 32 else 0,
            "host": printable(body.get("host", "")),
            "version": printable(body.get("version", "")),
        }
        if self.peer["role"] not in self._roles:
            served = " or ".join(self._roles)
            text = f"this learner serves the role {served}, not {self.peer['role']!r}"
            self.refuse("role", text)
            raise ProtocolError(f"{self._who()} was refused: {text}")
        self._due = Message.PROOF
        return pack(
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
            expected = mac_of(token, WORKER_LABEL, before)
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
        mine = mac_of(proven, LEARNER_LABEL, self._transcript.digest()) if proven else ""
        welcome = {"mac": mine, "spec": self._spec_json, "silence": self._silence_here, "labels": self.peer["table"] in self._labels}
        if self.peer["table"]:
            welcome["table"] = self.peer["table"]
        return pack(Message.WELCOME, welcome)

    def _choose_table(self, body: dict[str, Any]) -> None:
        """From here on the spec is that of the table the worker names, if it names one."""
        name = self.peer["table"] = self._field(body, "table", str) if "table" in body else ""
        if not name:
            return
        spec = self._tables.get(name)
        if spec is None:
            have = ", ".join(map(repr, self._tables)) or "none, it streams"
            text = f"this learner has no table {printable(name)!r} (it has {have})"
            self.refuse("table", text)
            raise ProtocolError(f"{self._who()} was refused: {text}")
        self._spec, self._spec_json = spec, describe(spec)

    def _compare(self, body: dict[str, Any]) -> bytes:
        difference = difference_of(self._spec, self._field(body, "spec", dict), "worker")
        if difference:
            self.refuse("spec", difference)
            raise SpecError(f"{self._who()} was refused: {difference}")
        self.agreed = True
        return b"" if self._hold else self.accept()

    def accept(self) -> bytes:
        """Let the client in, once `agreed`: the last bytes of the handshake, to be sent to it. Then `done` is set."""
        self.done = True
        self.leftover += bytes(self._buffer)
        self._buffer.clear()
        return pack(Message.READY, {})

    def _who(self) -> str:
        return f"worker {self.peer['name']!r} (pid {self.peer['pid']} on {self.peer['host']!r})"
