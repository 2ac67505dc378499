"""How a transport asks for the kind of memory that a stream store uses."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreMemory"]


@dataclass(frozen=True)
class StoreMemory:
    """The memory that a transport needs for a stream store, so that its workers can write to the store themselves."""

    spares: int = 2  # additional buffers, for batches that have to be moved away from a stalled worker
    huge_pages: bool = False  # use pages of 2 MiB; enough of them must be free
