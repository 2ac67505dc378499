"""How a transport asks for the memory of a stream store."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreMemory"]


@dataclass(frozen=True)
class StoreMemory:
    """How a transport wants the memory of a stream store to be, so that its workers can write to it themselves."""

    spares: int = 2  # further buffers, for batches that have to be moved away from a stalled worker
    huge_pages: bool = False  # pages of 2 MiB; as many must be free
