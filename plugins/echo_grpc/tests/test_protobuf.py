"""Hand-made messages equal those of protobuf, and all other input is either an error or data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import echo_grpc
from echo_core.base.errors import ProtocolError
from echo_core.wire.protocol import PROTOCOL_VERSION
from echo_grpc.protobuf import ENVELOPE_BYTES, MAX_MESSAGE_BYTES, PIECE_BYTES, EncodedMessage, envelope, health_request, pack, unpack

PROTO = Path(echo_grpc.__file__).with_name("echo.proto")


@given(st.lists(st.binary(max_size=300)))
def test_what_is_packed_is_unpacked(buffers: list[bytes]) -> None:
    assert b"".join(bytes(unpack(message)) for message in pack(buffers)) == b"".join(buffers)


@pytest.mark.parametrize("sizes", [[PIECE_BYTES], [PIECE_BYTES + 1], [24, 5 * PIECE_BYTES], [PIECE_BYTES - 1, 1, 1]])
def test_large_frames_travel_in_pieces(sizes: list[int]) -> None:
    buffers = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    messages = list(pack(buffers))
    assert all(len(message) <= MAX_MESSAGE_BYTES for message in messages)
    assert b"".join(bytes(unpack(message)) for message in messages) == b"".join(buffers)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300_000, PIECE_BYTES])
def test_an_envelope_makes_a_message(size: int, generated: Any) -> None:
    """The envelope's number has leading zeros, which protobuf accepts as well."""
    message = envelope(size) + bytes(size)
    assert len(message) == ENVELOPE_BYTES + size <= MAX_MESSAGE_BYTES
    assert len(unpack(message)) == size == len(generated[0].Bytes.FromString(message).data)
    assert list(pack([EncodedMessage(message)])) == [message]


@given(st.binary(max_size=60))
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
@example(b"\x0a\xff\xff\xff\xff\x0f")
@example(b"\x09abc")
@example(b"\x0b")
@example(b"\x02\x00")
def test_anything_is_data_or_a_protocol_error(message: bytes) -> None:
    try:
        data = unpack(message)
        health_request(message)
    except ProtocolError:
        return
    assert bytes(data) in message


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module that protobuf generates from echo.proto."""
    pytest.importorskip("grpc_tools")
    out = tmp_path_factory.mktemp("generated")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", f"--python_out={out}", f"--grpc_python_out={out}"]
    command.append(PROTO.name)
    subprocess.run(command, check=True)
    sys.path.insert(0, str(out))
    try:
        import echo_pb2
        import echo_pb2_grpc
    finally:
        sys.path.remove(str(out))
    return echo_pb2, echo_pb2_grpc


def test_protobuf_reads_ours_and_we_read_protobufs(generated: Any) -> None:
    messages, _ = generated
    for data in (b"x", b"y" * 127, b"z" * 128, b"w" * 70_000):
        (ours,) = pack([data])
        assert messages.Bytes.FromString(ours).data == data
        theirs = messages.Bytes(data=data)
        assert theirs.SerializeToString() == ours
        extended = b"\x10\x05" + theirs.SerializeToString() + b"\x1d\0\0\0\0" + b"\x22\x02hi"  # fields of a later version
        assert messages.Bytes.FromString(extended).data == data == bytes(unpack(extended))
    assert bytes(unpack(messages.Bytes().SerializeToString())) == b""
    twice = messages.Bytes(data=b"first").SerializeToString() + messages.Bytes(data=b"last").SerializeToString()
    assert messages.Bytes.FromString(twice).data == bytes(unpack(twice)) == b"last"


def test_a_generated_client_is_a_worker(generated: Any) -> None:
    """A client that uses only echo.proto, as in another language: handshake, samples, an acknowledgement."""
    import hashlib
    import hmac
    import json
    import queue
    import struct

    import grpc
    import numpy as np

    from echo_core import Server

    messages, stubs = generated
    outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
    heard, transcript = bytearray(), hashlib.sha256()
    example = {"n": np.zeros((), np.int64), "x": np.zeros(2, np.float32)}
    with Server(example, 2, "grpc://127.0.0.1:0", token="a-token-for-other-languages") as server:
        host, port = server.address.endpoint
        with grpc.insecure_channel(f"{host}:{port}") as channel:
            answers = stubs.ExperienceStub(channel).Session(iter(outgoing.get, None))

            def read(count: int) -> bytes:
                while len(heard) < count:
                    heard.extend(next(answers).data)
                taken = bytes(heard[:count])
                del heard[:count]
                return taken

            def say(kind: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                whole = struct.pack("<4sBBHI", b"ECHO", PROTOCOL_VERSION, kind, 0, len(text)) + text
                transcript.update(whole)
                outgoing.put(messages.Bytes(data=whole))

            def hear(kind: int) -> dict[str, Any]:
                head = read(12)
                magic, version, got, _, length = struct.unpack("<4sBBHI", head)
                text = read(length)
                assert (magic, version, got) == (b"ECHO", PROTOCOL_VERSION, kind), text
                transcript.update(head + text)
                return json.loads(text)

            def mac(label: bytes) -> str:
                return hmac.new(b"a-token-for-other-languages", label + transcript.digest(), hashlib.sha256).hexdigest()

            session = {"session": "5" * 32, "silence": 30.0}
            say(1, {"client": "0" * 32, "role": "worker", "nonce": "1" * 64, **session, "base": 0, "name": "from afar", "pid": 0, "host": "h"})
            assert hear(2)["auth"] == "token"
            say(3, {"mac": mac(b"echo worker")})
            expected = mac(b"echo learner")
            welcome = hear(4)
            assert welcome["mac"] == expected
            say(5, {"spec": welcome["spec"]})
            hear(6)
            assert struct.unpack("<BBHIQQ", read(24)) == (2, 0, 0, 0, 0, 0)
            payload = struct.pack("<2q", 7, 8) + struct.pack("<4f", 1, 2, 3, 4)
            outgoing.put(messages.Bytes(data=struct.pack("<BBHIQQ", 1, 0, 0, 2, 1, len(payload)) + payload))
            assert struct.unpack("<BBHIQQ", read(24)) == (2, 0, 0, 0, 2, 0)
            batch = server.sample(timeout=20).batch
            assert batch["n"].tolist() == [7, 8] and batch["x"].tolist() == [[1, 2], [3, 4]]
            assert [peer.name for peer in server.peers()] == ["from afar"]
            outgoing.put(None)
