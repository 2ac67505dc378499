"""The requests of clients that a storage answers itself, such as the draws from a replay table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

__all__ = ["StorageOperations"]


class StorageOperations:
    """What clients may request of one storage, and what belongs to these requests, such as those that wait.

    A server gets one from each of its storages (`Storage.operations`), keeps it, and closes it. It must not refer to the server, because a
    dropped server would then stay alive.

    Attributes:
        by_name: functions `operation(self, server, peer, body, blob)`, which return what a handler of `Server.serve` returns. They have the
            roles that they require (`security.tokens.needs`). The body's `table` has the name of the storage; None is the first one.
    """

    by_name: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    def stats(self) -> dict[str, int]:
        """Return figures for `Server.stats()`, beside those of the storage."""
        return {}

    def close(self) -> None:
        """The server closes, and all parked requests were answered. Idempotent."""
