"""Shared memory: `ShmTransport` for a `Server`, `ShmClient` for workers."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from echo_core.base.address import Address
from echo_core.client.client import Client
from echo_core.store.store_memory import StoreMemory
from echo_core.wire.transport import Connection, Transport

from .options import ShmConnectOptions, ShmListenOptions
from .sockets import UnixAcceptor, dial

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink

    from .listener import ShmListener

__all__ = ["ShmClient", "ShmTransport"]


class ShmTransport(Transport):
    """A learner's end in shared memory.

    Args:
        path: a name (`shm://name`: reachable from this network namespace, leaves nothing behind), or the
            absolute path of a socket (`shm:///run/echo/a.sock`: for containers that share the folder).
        mode: "direct", or "private" for workers that are not trusted with the learner's memory.
        **options: see `ShmListenOptions`.

    Raises:
        ConfigError: an option is unknown or unusable.
    """

    scheme = "shm"
    Options = ShmListenOptions
    ConnectOptions = ShmConnectOptions

    def __init__(self, path: str = "", mode: str = "direct", **options: Any) -> None:
        super().__init__(path=path or f"echo-{secrets.token_hex(8)}", mode=mode, **options)
        if self.options.mode == "direct":
            self.store_memory = StoreMemory(self.options.spare_buffers, self.options.huge_pages)

    def listen(self, sink: Sink) -> ShmListener:
        from .listener import ShmListener

        return ShmListener.on(UnixAcceptor(self.options.path, self.options.other_users), sink, self.options)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        from .connection import ShmConnection

        return ShmConnection(dial, address, spec, cls.connect_options(address, options))


class ShmClient(Client):
    """A worker's connection through shared memory: `ShmClient("name", example)`.

    Args:
        path: the path of the `ShmTransport`.
        example: a pytree like the server's: one sample.
        **options: the options of `echo_core.Client`.

    Raises: the errors of `echo_core.Client`.
    """

    def __init__(self, path: str, example: Any, **options: Any) -> None:
        super().__init__(Address("shm", path=path), example, **options)
