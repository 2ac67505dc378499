"""Both ends of a handshake, what each says, and a conversation of the two."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from echo_core.base.errors import EchoError
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import PROTOCOL_VERSION
from echo_net.handshake import ClientHandshake, ServerHandshake
from echo_net.handshake.messages import MESSAGE

SPEC = Spec.from_example({"obs": np.zeros(4, np.float32), "reward": np.float32(0)})
OTHER = Spec.from_example({"obs": np.zeros(4, np.float64), "reward": np.float32(0)})
TOKEN = b"a secret"
CLIENT = "c" * 32
INCARNATION = "5" * 32


def server(spec: Spec = SPEC, tokens: tuple[bytes, ...] = (TOKEN,), **options: Any) -> ServerHandshake:
    return ServerHandshake(spec, tokens, INCARNATION, **options)


def client(spec: Spec = SPEC, token: bytes | None = TOKEN, **options: Any) -> ClientHandshake:
    return ClientHandshake(spec, token, CLIENT, **options)


def message(kind: int, body: Any, version: int = PROTOCOL_VERSION, reserved: int = 0) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return MESSAGE.pack(b"ECHO", version, kind, reserved, len(text)) + text


def body_of(data: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(data[MESSAGE.size :])
    return body


def talk(c: ClientHandshake, s: ServerHandshake) -> tuple[EchoError | None, EchoError | None]:
    """Pass bytes to and fro until both are done or have failed: (client's error, server's)."""
    ours: EchoError | None = None
    theirs: EchoError | None = None
    to_server = c.start()
    while to_server and not (c.done and s.done):
        try:
            to_client = s.receive(to_server)
        except EchoError as error:
            theirs, to_client = error, s.refusal
        try:
            to_server = c.receive(to_client)
        except EchoError as error:
            return error, theirs
    return ours, theirs
