"""What a server keeps for the requests of clients to one table: those that wait, and which were carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echo_core.store.storage_operations import StorageOperations

from .carried_out import CarriedOut
from .waiting_line import TableLines

if TYPE_CHECKING:
    from ..tables.replay_table import ReplayTable

__all__ = ["TableState"]


class TableState(StorageOperations):
    """Base of `TableOperations`, without the operations, which get it as their first argument.

    Attributes:
        table: the table.
        lines: its waiting requests.
        carried_out: the inserts, and the draws of items that are drawn only a few times.
        ended: the requests that end items. There are many, so they must not push out the others.
    """

    def __init__(self, table: ReplayTable) -> None:
        self.table = table
        self.lines = TableLines(table)
        self.carried_out = CarriedOut()
        self.ended = CarriedOut()

    def stats(self) -> dict[str, int]:
        return self.lines.waiting()

    def close(self) -> None:
        self.lines.close()
