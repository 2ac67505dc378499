"""Options of shared memory, at either end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from echo_core.base.transport_options import ConnectOptions, ListenOptions

__all__ = ["ShmConnectOptions", "ShmListenOptions"]


@dataclass(frozen=True, kw_only=True)
class ShmListenOptions(ListenOptions):
    """Options of `ShmTransport`."""

    path: str = ""  # a name, or the absolute path of a socket; "" chooses a random name
    mode: Literal["direct", "private"] = "direct"  # "private": workers do not see the learner's store; each has a lane of its own
    lane_bytes: int = 4 << 20  # memory of a lane, from which the learner copies; at least two samples
    claim_timeout: float = 2.0  # seconds that a worker may hold a slot; after that it delays no batch any more
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
    """Options of a shared-memory connection, beside those of every connection."""

    mode: Literal["direct", "private"] = "direct"  # "private": do not map the learner's store
    reservations: int = 4  # slots that `reserve()` may hold at the same time
    patience: float = 0.02  # seconds that `send` itself waits for space before a thread takes over the wait
    uid: int = -1  # the user that runs the learner; -1: this process's user, or root

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.reservations <= 64:
            raise ValueError(f"reservations must be from 0 to 64, not {self.reservations!r}")
        if not 0 <= self.patience <= 10:
            raise ValueError(f"patience must be from 0 to 10 seconds, not {self.patience!r}")
