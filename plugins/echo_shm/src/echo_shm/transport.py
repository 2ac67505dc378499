"""Shared memory: `ShmTransport` for a `Server`, `ShmClient` for workers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from echo_core.base.address import Address
from echo_core.base.transport_options import ConnectOptions, ListenOptions
from echo_core.client.client import Client
from echo_core.store.store_memory import StoreMemory
from echo_core.wire.transport import Connection, Transport

from .sockets import UnixAcceptor

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink

    from .listener import ShmListener

__all__ = ["ShmClient", "ShmConnectOptions", "ShmListenOptions", "ShmTransport"]


@dataclass(frozen=True, kw_only=True)
class ShmListenOptions(ListenOptions):
    """Options of `ShmTransport`."""

    path: str = ""  # a name, or the absolute path of a socket; "" draws a name
    mode: Literal["direct", "private"] = "direct"  # "private": workers see nothing of the learner's store, each has a lane of its own
    lane_bytes: int = 4 << 20  # memory of a lane, from which the learner copies; two samples at least
    claim_timeout: float = 2.0  # seconds a worker may hold a slot before it delays no batch any more
    spare_buffers: int = 2  # batches that can be moved away from stopped workers at the same time
    huge_pages: bool = False  # pages of 2 MiB, reserved beforehand (vm.nr_hugepages)
    other_users: bool = False  # let in processes of other users, too; they still need the token

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.001 <= self.claim_timeout <= 86400:
            raise ValueError(f"claim_timeout must be from 0.001 to 86400 seconds, not {self.claim_timeout!r}")
        if not 0 <= self.spare_buffers <= 64:
            raise ValueError(f"spare_buffers must be from 0 to 64, not {self.spare_buffers!r}")
        if not 4096 <= self.lane_bytes <= 1 << 40:
            raise ValueError(f"lane_bytes must be from 4096 to {1 << 40}, not {self.lane_bytes!r}")
        if self.huge_pages and self.mode == "private":
            raise ValueError('huge_pages is about the memory that workers share; leave it out, or mode="private"')


@dataclass(frozen=True, kw_only=True)
class ShmConnectOptions(ConnectOptions):
    """What a shared-memory connection can be told, beside what every connection can."""

    mode: Literal["direct", "private"] = "direct"  # "private": do not map the learner's store
    reservations: int = 4  # slots that `reserve()` may hold at the same time
    patience: float = 0.02  # seconds that `send` itself waits for space before it leaves that to a thread
    uid: int = -1  # user that the learner runs as; -1: this process's own, or root

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.reservations <= 64:
            raise ValueError(f"reservations must be from 0 to 64, not {self.reservations!r}")
        if not 0 <= self.patience <= 10:
            raise ValueError(f"patience must be from 0 to 10 seconds, not {self.patience!r}")


class ShmTransport(Transport):
    """A learner's end in shared memory.

    Args:
        path: a name (`shm://name`, reachable from this network namespace, leaves nothing behind), or the
            absolute path of a socket (`shm:///run/echo/a.sock`, for containers that share the folder).
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

        return ShmListener(UnixAcceptor(self.options.path, self.options.other_users), sink, self.options)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        from .connection import ShmConnection

        return ShmConnection(address, spec, cls.connect_options(address, options))


class ShmClient(Client):
    """A worker's connection through shared memory: `ShmClient("name", example)`.

    Args:
        path: as the `ShmTransport`'s.
        example: a pytree like the server's: one sample.
        **options: as of `echo_core.Client`.

    Raises: as `echo_core.Client`.
    """

    def __init__(self, path: str, example: Any, **options: Any) -> None:
        super().__init__(Address("shm", path=path), example, **options)
