"""Finds workers whose state is not that of the others. Their rewards would belong to other candidates, and nobody would notice."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Digests"]

_KEPT = 64  # versions


class Digests:
    """The digests of the states that were shared, by version. Only a version whose digest is known can be compared."""

    def __init__(self) -> None:
        self._shared: OrderedDict[int, str] = OrderedDict()

    def shared(self, version: int, digest: str | None) -> None:
        """A worker has shared the state of this version."""
        if digest is not None:
            self._shared[version] = digest
            if len(self._shared) > _KEPT:
                self._shared.popitem(last=False)

    def differs(self, version: int, digest: str | None) -> bool:
        """Whether a worker that has this digest has another state than the one that was shared."""
        return digest is not None and self._shared.get(version, digest) != digest
