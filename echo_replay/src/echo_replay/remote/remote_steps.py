"""Accesses a learner's table of items over steps from another process or machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core.base.errors import ConfigError
from echo_core.base.memory.recycled import empty
from echo_core.spec.ragged import ChunkSpec
from echo_core.spec.spec import Spec
from echo_core.store.sampler import Keys
from echo_core.wire.blobs import DRAWN, MAX_BYTES, MAX_KEYS, split

from ..steps.items import Slices
from ..steps.step_layout import Layout, StepSample
from ..tables.replay_info import importance_weights
from .remote_records import RemoteRecordTable
from .remote_table import Drawing, RemoteInfo, RemoteTable, messages_of

if TYPE_CHECKING:
    from echo_core.client.requests import Requests
    from echo_core.spec.leaf import LeafSpec

__all__ = ["RemoteStepTable", "remote_table"]


class RemoteStepTable(RemoteTable):
    """Like `RemoteTable`, but batches are `StepSample`s. The server describes its items once."""

    def __init__(self, requests: Requests, spec: Spec, name: str | None, timeout: float, step: Spec) -> None:
        super().__init__(requests, spec, name, timeout)
        self._step = step
        self._layout: Layout | None = None

    @property
    def layout(self) -> Layout:
        """The layout of a batch."""
        if self._layout is None:
            self._layout = Layout.from_json(self._step, self._ask("layout", 1, b"", None)[0])
        return self._layout

    def sample(self, n: int, timeout: float | None = None, beta: float | None = None) -> StepSample:  # type: ignore[override]
        """Draw n items; see `RemoteTable.sample`."""
        return self._finish(self._begin(n, beta), timeout)

    def _plan(self) -> tuple[int, Sequence[LeafSpec], dict[str, Any]]:
        layout = self.layout
        if layout.item_bytes + DRAWN > MAX_BYTES and not isinstance(layout.items, Slices):
            return MAX_KEYS, (), {"keys_only": True}
        return messages_of(layout.item_bytes), layout.leaves, {}

    def _finish(  # type: ignore[override]
        self, drawing: Drawing, timeout: float | None, answered: Callable[[], None] | None = None
    ) -> StepSample:
        draw = self._draw if drawing.wanted else self._draw_large
        (keys, probabilities, *leaves), info, figures = draw(drawing, timeout, answered)
        return self.layout.from_leaves(leaves, info, keys, probabilities, importance_weights(probabilities, figures["beta"]))

    def _draw_large(
        self, drawing: Drawing, timeout: float | None, answered: Callable[[], None] | None
    ) -> tuple[list[np.ndarray], RemoteInfo, dict[str, Any]]:
        """Like `_draw`, for items that are larger than a message: it draws the keys, then fetches each leaf in parts. If an item is removed
        meanwhile, another one is drawn."""
        drawn, info, figures = self._draw(drawing, timeout, answered)
        leaves = [empty((drawing.n, *leaf.shape), leaf.dtype) for leaf in self.layout.leaves]
        for i in range(drawing.n):
            while not all(self._fetch(int(drawn[0][i]), index, leaf[i : i + 1], timeout) for index, leaf in enumerate(leaves)):
                anew, info, figures = self._draw(Drawing(1, 1, (), drawing.more), timeout)
                drawn[0][i], drawn[1][i] = anew[0][0], anew[1][0]
        return [*drawn, *leaves], info, figures

    def _fetch(self, key: int, leaf: int, to: np.ndarray, timeout: float | None) -> bool:
        """Fill `to` with one leaf of an item; False if the item is gone."""
        data = to.reshape(-1).view(np.uint8)
        for start in range(0, data.size, MAX_BYTES):
            part = data[start : start + MAX_BYTES]
            body, blob = self._ask("item", part.size, b"", timeout, key=key, leaf=leaf, start=start)
            if body.get("gone"):
                return False
            part[:] = split(blob, (np.uint8, (part.size,)))[0]
        return True

    def insert(self, samples: Any, priorities: Any = None, timeout: float | None = None) -> Keys:
        """Steps cannot be inserted: they belong to an episode, and keys belong to items over several steps.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a table of steps has no insert(), because steps must come in order; use send() or send_batch()")


def remote_table(requests: Requests, spec: Spec, name: str | None, timeout: float, step: Spec | None) -> RemoteTable:
    """A table of the server. `step` is the spec of a step if the table stores steps."""
    if isinstance(spec, ChunkSpec):
        return RemoteRecordTable(requests, spec, name, timeout)
    return RemoteTable(requests, spec, name, timeout) if step is None else RemoteStepTable(requests, spec, name, timeout, step)
