"""The argument of a worker's function: which worker it is, where the shards are, and when it has to leave."""

from __future__ import annotations

import threading
from typing import Any

from ..client import ClusterClient

__all__ = ["WorkerContext"]


class WorkerContext:
    """The argument of a worker's function.

    ::

        def work(context):
            with context.client(EXAMPLE) as client:
                while not context.leaving:
                    client.send(...)

    Attributes:
        index: the number of this worker. A worker that is started again has the number of the one that died.
        name: of this worker: the cluster's, and the number.
        members: where the shards are; None if the cluster has workers only.
    """

    def __init__(self, index: int, name: str, members: Any, token: bytes) -> None:
        self.index, self.name, self.members = index, name, members
        self._token = token
        self._leaving = threading.Event()

    @property
    def leaving(self) -> bool:
        """Whether this worker has to leave: its function sends what it still has, and returns. If it has not returned after 5 s, it gets a
        KeyboardInterrupt."""
        return self._leaving.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until this worker has to leave. Returns whether it has to."""
        return self._leaving.wait(seconds)

    def leave(self) -> None:
        """Tell the function that it has to leave."""
        self._leaving.set()

    def client(self, example: Any, **options: Any) -> ClusterClient:
        """A `ClusterClient` with the cluster's members and token, and this worker's name."""
        return ClusterClient(self.members, example, **{"token": self._token, "name": self.name, **options})

    def __repr__(self) -> str:
        return f"<WorkerContext {self.name}>"
