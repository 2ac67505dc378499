"""The requests that wait for admission, in columns, so that a policy scores all of them in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echo_rl.engine.radix import Node, RadixIndex
from echo_rl.engine.request import Request

COLUMNS: dict[str, Any] = {
    "number": np.int64,
    "value": np.float64,
    "arrived": np.float64,
    "length": np.float64,
    "room": np.float64,
    "hit": np.float64,
    "node": np.int64,
    "following": np.int64,
    "work": np.float64,
}
"""The request's number, value, arrival in seconds, tokens so far, tokens to come, and how many tokens the tree holds; the number of the node in
which these end, and the token after them (-1: there is none); and what the request costs by the scheduler (NaN: it is not known yet)."""


class Waiting:
    """A set of requests. It watches the tree: how many tokens of each request are cached is always right, and no change costs a walk over all of them."""

    def __init__(self, tree: RadixIndex | None = None) -> None:
        self.requests: list[Request] = []
        self._tree, self._rows = tree, dict[Request, int]()
        self._columns = {name: np.zeros(64, kind) for name, kind in COLUMNS.items()}
        if tree is not None:
            tree.watcher = self

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    def __contains__(self, request: object) -> bool:
        return request in self._rows

    def column(self, name: str) -> NDArray[Any]:
        """Return a view of one of ``COLUMNS``, in the order of ``requests``."""
        return self._columns[name][: len(self.requests)]

    def add(self, request: Request) -> None:
        """Add a request."""
        row = len(self.requests)
        if row == len(self._columns["number"]):
            self._columns = {name: np.concatenate([column, np.zeros_like(column)]) for name, column in self._columns.items()}
        self.requests.append(request)
        self._rows[request] = row
        values = {"number": request.number, "value": request.value, "arrived": request.arrived}
        for name, value in (values | {"length": len(request.prompt), "room": request.room}).items():
            self._columns[name][row] = value
        self._match(row)

    def remove(self, request: Request) -> None:
        """Remove a request; the last one takes its row."""
        row, last = self._rows.pop(request), self.requests.pop()
        if last is not request:
            self.requests[row] = last
            self._rows[last] = row
            for column in self._columns.values():
                column[row] = column[len(self.requests)]

    def added(self, node: Node) -> None:
        """Find what the requests hit whose cached tokens ended where the new leaf begins."""
        assert node.parent is not None
        same = self._ending_in(node.parent) & (self.column("hit") == node.start) & (self.column("following") == node.tokens[0])
        for row in np.flatnonzero(same):
            self._match(int(row))

    def split(self, upper: Node, lower: Node) -> None:
        """Requests whose cached tokens ended in the upper part belong to it now."""
        self.column("node")[self._ending_in(lower) & (self.column("hit") <= upper.end)] = upper.number

    def removed(self, node: Node) -> None:
        """The cached tokens end before the leaf now."""
        assert node.parent is not None
        rows = self._ending_in(node)
        for name, value in {"node": node.parent.number, "hit": node.start, "following": node.tokens[0], "work": np.nan}.items():
            self.column(name)[rows] = value

    def _ending_in(self, node: Node) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.column("node") == node.number
        return found

    def _match(self, row: int) -> None:
        node, hit, following = 0, 0, -1
        if self._tree is not None:
            # The last token is never looked up: it is fed by the first decode.
            known = self.requests[row].prompt[:-1]
            end, hit, _ = self._tree.find(known)
            node, following = end.number, known[hit] if hit < len(known) else -1
        for name, value in {"node": node, "hit": hit, "following": following, "work": np.nan}.items():
            self._columns[name][row] = value
