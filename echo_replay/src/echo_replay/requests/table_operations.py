"""The operations that clients can request of a replay table. Each names the roles that it requires (without roles: admin)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from echo_core.security.tokens import needs
from echo_core.server.operations.operation import of_clients

from .draws import item, layout, sample, withdraw
from .items import ack, delete, insert, peek, priority_histogram, top, update_items, update_priorities
from .table_state import TableState

__all__ = ["TableOperations"]


class TableOperations(TableState):
    """How a server answers the requests of clients for one table."""

    by_name: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "update_priorities": needs("read")(of_clients(update_priorities)),
        "delete": needs("admin")(of_clients(delete)),
        "sample": needs("read")(of_clients(sample)),
        "withdraw": needs("write", "read")(of_clients(withdraw)),
        "layout": needs("write", "read")(of_clients(layout)),
        "item": needs("read")(of_clients(item)),
        "peek": needs("read")(of_clients(peek)),
        "update_items": needs("read")(of_clients(update_items)),
        "top": needs("read")(of_clients(top)),
        "priority_histogram": needs("read")(of_clients(priority_histogram)),
        "ack": needs("read")(of_clients(ack)),
        "insert": needs("write")(of_clients(insert)),
    }
