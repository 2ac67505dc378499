"""A client that knows nothing but the address."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import echo_grpc
from echo_core import Server
from echo_core.wire.protocol import PROTOCOL_VERSION
from echo_grpc.transport import GrpcTransport

pytest.importorskip("grpc_reflection")
pytest.importorskip("grpc_health")

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

EXAMPLE = {"x": np.zeros(4, np.float32)}
TOKEN = "the-token-of-these-tests-long-enough"


def test_a_generic_client_finds_and_calls_everything() -> None:
    with Server(EXAMPLE, 2, GrpcTransport(port=0, reflection=True), token=TOKEN) as server:
        host, port = server.address.endpoint
        with grpc.insecure_channel(f"{host}:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert {"echo.v2.Experience", "grpc.health.v1.Health"} <= set(database.get_services())
            pool = DescriptorPool(database)

            def method(service: str, name: str) -> tuple[str, Any, Any]:
                found = pool.FindServiceByName(service).methods_by_name[name]
                return f"/{service}/{name}", *map(message_factory.GetMessageClass, (found.input_type, found.output_type))

            path, request, answer = method("grpc.health.v1.Health", "Check")
            check = channel.unary_unary(path, request.SerializeToString, answer.FromString)
            assert check(request(service="echo.v2.Experience"), timeout=20).status == 1
            path, request, answer = method("echo.v2.Experience", "Session")
            session = channel.stream_stream(path, request.SerializeToString, answer.FromString)

            def first_answer(data: bytes) -> bytes:
                said: queue.SimpleQueue[Any] = queue.SimpleQueue()
                said.put(request(data=data))
                try:
                    return bytes(next(session(iter(said.get, None), timeout=20)).data)
                finally:
                    said.put(None)

            with pytest.raises((grpc.RpcError, StopIteration)):
                first_answer(b"this is no handshake")
            hello = b'{"client":"%s","role":"worker","nonce":"%s","session":"%s","silence":30.0,"base":0}' % (b"0" * 32, b"1" * 64, b"5" * 32)
            assert b'"auth":"token"' in first_answer(b"ECHO" + bytes([PROTOCOL_VERSION, 1, 0, 0]) + len(hello).to_bytes(4, "little") + hello)


def test_it_is_not_served_unasked() -> None:
    with Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN) as server:
        host, port = server.address.endpoint
        with grpc.insecure_channel(f"{host}:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_reflection.v1alpha", None)
    with pytest.raises(ImportError, match=r"echo-grpc\[reflection\]"):
        Server(EXAMPLE, 2, GrpcTransport(port=0, reflection=True), token=TOKEN).start()


def test_the_description_is_that_of_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    from echo_grpc.reflection import describe

    proto = Path(echo_grpc.__file__).with_name("echo.proto")
    out = tmp_path / "echo.bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto.parent}", f"--descriptor_set_out={out}", proto.name]
    subprocess.run(command, check=True)
    assert descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0] == describe()
