"""What a server with strategies publishes: the parameters from which workers draw candidates, of all its experiments in one tree of weights."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echo_core import Server

__all__ = ["Published"]


class Published:
    """The weights are `{experiment: {"run", "version", "params"}}`. Thread-safe.

    A server has one stream of weights, so its workers get the parameters of all experiments. The number of the weights is the number of
    experiments plus their versions. It grows with each of them, and a server that goes on from its logs never takes a number back.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._trees: dict[str, dict[str, Any]] = {}

    def publish(self, experiment: str, run: str, version: int, params: Any) -> int:
        """Give workers the parameters of this version of an experiment. `run` tells them from those of another search under the same name.

        Returns the number of the weights.
        """
        with self._lock:
            self._trees[experiment] = {"run": run, "version": version, "params": params}
            number: int = len(self._trees) + sum(tree["version"] for tree in self._trees.values())
            self._server.publish(self._trees, number)
        return number
