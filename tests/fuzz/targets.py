"""What strangers' bytes reach in pure Python, one function each: it returns, or raises an EchoError. Anything else is a find.

`python tests/fuzz/run.py NAME` fuzzes one for coverage (atheris); test_targets.py runs all of them over seeds and what was found.
"""

from __future__ import annotations

import copy
import json
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from echo_core import MinSize, Server
from echo_core.base.errors import EchoError
from echo_core.server.operations.operation import operation_of
from echo_core.spec.spec import Spec
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import (
    HEADER_BYTES,
    PROTOCOL_VERSION,
    REPLY,
    TO_LEARNER,
    TO_WORKER,
    Kind,
    WeightsAssembler,
    parse_header,
    parse_reply,
    parse_request,
)
from echo_core.wire.weights import pack, unpack, verify
from echo_net.handshake import ClientHandshake, ServerHandshake
from echo_net.handshake.messages import MESSAGE

__all__ = ["TARGETS"]

EXAMPLE = {"x": np.zeros(3, np.float32), "n": np.zeros((), np.int64)}
SPEC = Spec.from_example(EXAMPLE)
TOKEN = b"a-token-of-the-fuzzer"

#: JSON values that break expectations; a mutation puts one of them in some place.
ODD: tuple[Any, ...] = (
    *(None, True, False, "", "x", "0" * 32, "1" * 64, "-1", "<f4", "<i8", "|O", "|V8", "../../x", "/", "\ud800", "\0"),
    *(0, -1, 1, 7, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 0.5, 1e308, float("nan"), float("inf")),
    *([], [[]], [0], [-1], [1 << 40], [[1, 2], [3]], ["x", 1], {}, {"": {}}, {"file": "manifest.json"}),
)


class Choices:
    """Decisions taken from bytes, one after another; 0 once there are none left."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, below: int) -> int:
        """From 0 to `below` - 1."""
        self._at += 1
        return self._data[self._at - 1] % below if self._at <= len(self._data) else 0

    def rest(self) -> bytes:
        return self._data[self._at :]

    def mutated(self, value: Any, times: int = 3) -> Any:
        """A copy of a JSON value with up to `times` places put out, doubled or made odd."""
        box = [copy.deepcopy(value)]
        for _ in range(self.number(times + 1)):
            inside: Any = box
            key: Any = 0
            while isinstance(inside[key], (dict, list)) and inside[key] and self.number(4):
                inside = inside[key]
                key = (list(inside) if isinstance(inside, dict) else range(len(inside)))[self.number(len(inside))]
            act = self.number(8)
            if act == 0 and inside is not box:
                del inside[key]
            elif act == 1 and isinstance(inside, list) and inside is not box:
                inside.append(copy.deepcopy(inside[key]))
            else:
                inside[key] = copy.deepcopy(ODD[self.number(len(ODD))])
        return box[0]


def _message(kind: int, body: Any) -> bytes:
    text = json.dumps(body).encode()
    return MESSAGE.pack(b"ECHO", PROTOCOL_VERSION, kind, 0, len(text)) + text


def handshake_learner(data: bytes) -> None:
    """The messages of a worker until it is accepted."""
    choose = Choices(data)
    handshake = ServerHandshake(SPEC, () if choose.number(2) else (TOKEN,), tables={"": SPEC, "other": SPEC})
    hello = {"client": "0" * 32, "role": "worker", "nonce": "1" * 64, "session": "5" * 32, "silence": 30.0, "base": 0}
    hello |= {"name": "w", "pid": 1, "host": "h", "table": "other"}
    with suppress(EchoError):
        if choose.number(2):
            handshake.receive(choose.rest())
            return
        for kind, body in ((1, hello), (3, {"mac": ""}), (5, {"spec": SPEC.to_json()})):
            handshake.receive(_message(kind, choose.mutated(body)))


def handshake_worker(data: bytes) -> None:
    """What a learner, or somebody in its place, says to a worker."""
    choose = Choices(data)
    trusting = choose.number(2) == 1
    handshake = ClientHandshake(SPEC, None if trusting else TOKEN, "0" * 32, allow_unauthenticated=True)
    handshake.start()
    challenge = {"server": "0" * 32, "nonce": "1" * 64, "auth": "none" if trusting else "token"}
    refusal = {"code": "spec", "text": "no", "spec": SPEC.to_json()}
    with suppress(EchoError):
        if choose.number(2):
            handshake.receive(choose.rest())
            return
        handshake.receive(_message(2, choose.mutated(challenge)))
        if choose.number(2):
            handshake.receive(_message(7, choose.mutated(refusal)))
        for kind, body in ((4, {"mac": "", "silence": 30.0, "labels": False, "spec": SPEC.to_json()}), (6, {})):
            handshake.receive(_message(kind, choose.mutated(body)))


def frames(data: bytes) -> None:
    """The stream after the handshake, either way, and what its payloads hold."""
    choose = Choices(data)
    allowed = TO_LEARNER if choose.number(2) else TO_WORKER
    stream, assembler = choose.rest(), WeightsAssembler()
    with suppress(EchoError):
        while len(stream) >= HEADER_BYTES:
            header = parse_header(stream, SPEC.sample_bytes, allowed)
            payload, stream = stream[HEADER_BYTES : HEADER_BYTES + header.length], stream[HEADER_BYTES + header.length :]
            if len(payload) < header.length:
                return
            if header.kind is Kind.CONTROL:
                with suppress(EchoError):
                    (parse_reply if header.flags & REPLY else parse_request)(payload)
            elif header.kind is Kind.WEIGHTS and (whole := assembler.add(header, payload)) is not None:
                with suppress(EchoError):
                    verify(*whole[1:])
                    unpack(*whole[1:])


@cache
def _weights() -> tuple[Any, np.ndarray]:
    packed = pack({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": [np.zeros(2, np.int8), 3, "text"]}, 1)
    return json.loads(packed.meta), packed.payload


def weights(data: bytes) -> None:
    """The description of weights: their tree, and where in the payload each array lies."""
    description, payload = _weights()
    meta = json.dumps(Choices(data).mutated(description)).encode()
    for like in (None, {"w": np.zeros((2, 3), np.float32), "b": [np.zeros(2, np.int8), 3, "text"]}):
        with suppress(EchoError):
            unpack(meta, payload, like)


@cache
def _server() -> Server:
    server = Server(EXAMPLE, 2, sampler="prioritized", capacity=16, rate_limiter=MinSize(1), seed=1)
    server.submit_batch({"x": np.zeros((8, 3), np.float32), "n": np.arange(8)})
    return server


REQUESTS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("update_priorities", {"n": 1}, 16),
    ("delete", {"n": 1}, 8),
    ("sample", {"n": 2, "beta": 0.4}, 0),
    ("sample", {"n": 2, "number": 1, "patience": 0.01, "timeout": 0.02}, 0),
    ("withdraw", {"number": 1}, 0),
    ("insert", {"n": 1, "priorities": True}, 8 + SPEC.sample_bytes),
    ("insert", {"n": 1}, SPEC.sample_bytes),
    ("tables", {}, 0),
    ("ping", {}, 0),
)


def operations(data: bytes) -> None:
    """Requests of a client that was let in."""
    choose = Choices(data)
    op, body, size = REQUESTS[choose.number(len(REQUESTS))]
    changed = choose.mutated({**body, "table": None} if choose.number(2) else body)
    blob = choose.rest()
    blob = blob[:size].ljust(size, b"\0") if len(blob) % 4 else blob
    if isinstance(changed, dict):  # as `parse_request` makes sure
        with suppress(EchoError):
            operation_of(_server(), op, changed)[1](_server(), Peer(id="", name="", address=""), changed, blob)


@cache
def _checkpoint() -> tuple[tempfile.TemporaryDirectory[str], Path, Any]:
    directory = tempfile.TemporaryDirectory()
    folder = _server().checkpoint(directory.name)
    return directory, Path(folder), json.loads((Path(folder) / "manifest.json").read_bytes())


def checkpoint(data: bytes) -> None:
    """The manifest of a checkpoint, with a checksum that fits; and LATEST."""
    choose = Choices(data)
    directory, folder, manifest = _checkpoint()
    text = choose.rest() if choose.number(8) == 7 else json.dumps(choose.mutated(manifest)).encode()
    (folder / "manifest.json").write_bytes(text)
    latest = f"{folder.name} {zlib.crc32(text):08x}\n".encode()
    (Path(directory.name) / "LATEST").write_bytes(choose.rest() if choose.number(16) == 15 else latest)
    server = Server(EXAMPLE, 2, sampler="prioritized", capacity=16, rate_limiter=MinSize(1), seed=1)
    with suppress(EchoError):
        server.restore(directory.name)
    server.close()


def grpc_message(data: bytes) -> None:
    """A message of echo.proto, or of a health check."""
    from echo_grpc.protobuf import health_request, unpack

    for read in (unpack, health_request):
        with suppress(EchoError):
            read(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (handshake_learner, handshake_worker, frames, weights, operations, checkpoint, grpc_message)
}
