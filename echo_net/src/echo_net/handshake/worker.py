"""The worker's end of a handshake: what it says of itself, and which learners it does not trust."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

from echo_core import __version__
from echo_core.base.errors import HandshakeRefused, SecurityError, SpecError
from echo_core.base.transport_options import SILENCE
from echo_core.wire.protocol import PROTOCOL_VERSION

from .base import Handshake
from .build import build, software
from .messages import HEX32, HEX64, LEARNER_LABEL, WORKER_LABEL, Message, difference_of, mac_of, pack, printable

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec


class ClientHandshake(Handshake):
    """The worker's end: send `start()`, then whatever `receive()` returns.

    Args:
        spec: the worker's spec, which must match the learner's.
        token: the worker's token, or None.
        client_id: 32 hex digits.
        base: how many samples of the session the worker knows to be committed.
        role: "worker", or "observer", which sends no samples and accepts any spec of the learner.
        name: the name of this client for people.
        allow_unauthenticated: whether a worker that holds a token accepts a learner that asks for none. Such a learner may be anybody.
        table: the replay table whose spec must match; "" stands for the first one, or the stream.
        session: 32 hex digits, which are new for every connection object and stay the same when it reconnects.
        silence: this end's option `silence`, in seconds.
        labels: whether samples of the session may have labels already (wire/labels.py), so that the learner must take some.

    Attributes:
        peer: what the learner said: `server` (its incarnation), `silence` (its own), `auth` ("token" or "none"), `labels` (whether its table
            takes labels), and for an observer also `spec`, the description of the learner's spec.
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
        session: str = "",
        silence: float = SILENCE,
        labels: bool = False,
    ) -> None:
        super().__init__(spec)
        self._table = table
        self._labels = labels
        self._token = token or None
        self._allow_unauthenticated = allow_unauthenticated
        self._difference: str | None = None
        self._due = Message.CHALLENGE
        host = printable(socket.gethostname())
        self._hello = {
            "client": client_id or secrets.token_hex(16),
            "session": session or secrets.token_hex(16),
            "silence": float(silence),
            "role": role,
            "nonce": secrets.token_hex(32),
            "base": base,
            "name": printable(name) or f"{host}:{os.getpid()}",
            "pid": os.getpid(),
            "host": host,
            "version": __version__,
            "build": build(),
        }

    def start(self) -> bytes:
        """The first message; send it before anything else, once."""
        message = pack(Message.HELLO, self._hello)
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
        code, text, role = printable(body.get("code", ""), 32), printable(body.get("text", ""), 2048), self._hello["role"]
        if code == "auth":
            where = getattr(self._token, "where", "")
            raise SecurityError(f"the learner refused this {role}: {text}{where and f'. This {role} used {where}'}")
        if code == "role" and "token" in text:
            raise SecurityError(f"the learner refused this {role}: {text}")
        if code == "spec":
            raise SpecError(f"Server spec mismatch: {self._difference or text}; give both ends the same example")
        if code == "version":
            text += f" (this end speaks Echo protocol {PROTOCOL_VERSION}, {software()})"
        raise HandshakeRefused(f"the learner refused this {role} ({code}): {text}", code)

    def _challenge(self, body: dict[str, Any]) -> bytes:
        auth = self._field(body, "auth", str)
        self._field(body, "nonce", str, HEX64)
        self.peer = {"server": self._field(body, "server", str, HEX32), "auth": auth}
        if auth == "token" and not self._token:
            raise SecurityError(
                f"the learner asks for a token and this {self._hello['role']} has none; set ECHO_TOKEN or"
                " ECHO_TOKEN_FILE to the learner's"
            )
        if auth == "none" and self._token and not self._allow_unauthenticated:
            raise SecurityError(
                f"this {self._hello['role']} holds a token but the learner asks for none, so it may be anybody;"
                " give the learner the token, or allow it with allow_unauthenticated=True"
            )
        if auth not in ("token", "none"):
            raise SecurityError(
                f"the learner asks for unknown authentication {printable(auth)!r}; install the"
                " same echo-core at both ends"
            )
        self._due = Message.WELCOME
        mac = ""
        if auth == "token" and self._token:
            mac = mac_of(self._token, WORKER_LABEL, self._transcript.digest())
        return pack(Message.PROOF, {"mac": mac, **({"table": self._table} if self._table else {})})

    def _welcome(self, body: dict[str, Any], before: bytes) -> bytes:
        mac = self._field(body, "mac", str)
        if self.peer["auth"] == "token" and self._token:
            expected = mac_of(self._token, LEARNER_LABEL, before)
            if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")):
                raise SecurityError(
                    f"the learner could not prove that it holds this {self._hello['role']}'s token; check the"
                    " address, and ECHO_TOKEN or ECHO_TOKEN_FILE at both ends"
                )
        if self._table and body.get("table") != self._table:
            raise HandshakeRefused(
                f"the learner does not know tables, {self._table!r} among them; install the same"
                " echo-core at both ends",
                "table",
            )
        self.peer["silence"] = self._silence(body)
        self.peer["labels"] = self._field(body, "labels", bool)
        described = self._field(body, "spec", dict)
        if self._hello["role"] == "observer":
            self._spec_json = self.peer["spec"] = described
        else:
            self._difference = difference_of(self._spec, described, "learner")
            if self._labels and not self.peer["labels"]:
                raise SpecError(
                    "samples of this worker may have priorities and policy versions, and this learner takes none; start it with the replay"
                    " table that it had, or this worker again"
                )
        # Sent even when they differ: so the learner can report the same leaf on its side.
        self._due = Message.READY
        return pack(Message.SPEC, {"spec": self._spec_json})

    def _ready(self) -> bytes:
        if self._difference:
            raise SpecError(f"the learner's spec is another: {self._difference}")
        self.done = True
        return b""
