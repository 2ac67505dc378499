"""Server reflection: generic clients (grpcurl, Postman, a mesh's console) get the description of the service from the server itself.

It is off by default and imported only when it is enabled, because it needs `grpcio-reflection` and with it protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echo_core.base.installing import how_to_install

if TYPE_CHECKING:
    import grpc
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

__all__ = ["describe", "enable"]

BYTES, OPTIONAL = 12, 1  # FieldDescriptorProto.TYPE_BYTES, LABEL_OPTIONAL


def enable(server: grpc.Server, service: str, health: str) -> None:
    """Serve the reflection of `service` and `health`, before `server` is started.

    Raises:
        ImportError: grpcio-reflection or grpcio-health-checking is not installed; the message names the extra.
    """
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool
        from grpc_health.v1 import health_pb2
        from grpc_reflection.v1alpha import reflection, reflection_pb2
    except ImportError as error:
        raise ImportError(f"{error}; reflection=True needs echo-grpc[reflection]: {how_to_install('echo-grpc[reflection]')}") from error
    pool = DescriptorPool()
    pool.Add(describe())
    for module in (health_pb2, reflection_pb2):
        served = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(served)
        pool.Add(served)
    reflection.enable_server_reflection((service, health, reflection.SERVICE_NAME), server, pool=pool)


def describe() -> FileDescriptorProto:
    """echo.proto as protoc would describe it, without protoc."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="echo.proto", package="echo.v2", syntax="proto3")
    message = file.message_type.add(name="Bytes")
    message.field.add(name="data", number=1, type=BYTES, label=OPTIONAL, json_name="data")  # type: ignore[arg-type]
    method = file.service.add(name="Experience").method.add(name="Session")
    method.input_type = method.output_type = ".echo.v2.Bytes"
    method.client_streaming = method.server_streaming = True
    return file
