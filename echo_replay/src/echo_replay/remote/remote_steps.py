"""Accesses a learner's table of items over steps from another process or machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core.base.errors import ConfigError
from echo_core.spec.ragged import ChunkSpec
from echo_core.spec.spec import Spec
from echo_core.store.sampler import Keys
from echo_core.wire.blobs import DRAWN, MAX_BYTES, MAX_KEYS, split

from ..steps.items import Slices
from ..steps.step_layout import Layout, StepSample
from .batch_memory import BatchMemory
from .remote_records import RemoteRecordTable
from .remote_sample import Drawing
from .remote_table import RemoteTable, messages_of

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
        sample: StepSample = self._finish(self._begin(n, beta), timeout)
        return sample

    def _plan(self) -> tuple[int, Sequence[LeafSpec], dict[str, Any]]:
        layout = self.layout
        if layout.item_bytes + DRAWN > MAX_BYTES and not isinstance(layout.items, Slices):
            return MAX_KEYS, (), {"keys_only": True}
        return messages_of(layout.item_bytes), layout.leaves, {}

    def made(self, leaves: list[np.ndarray], info: Any, keys: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> StepSample:
        return self.layout.from_leaves(leaves, info, keys, probabilities, weights)

    def memory(self, n: int) -> BatchMemory:
        return BatchMemory(n, self.layout.leaves)

    def _draw(self, drawing: Drawing, timeout: float | None, answered: Callable[[], None] | None = None) -> tuple[BatchMemory, dict[str, Any]]:
        return super()._draw(drawing, timeout, answered) if drawing.wanted else self._draw_large(drawing, timeout, answered)

    def _draw_large(self, drawing: Drawing, timeout: float | None, answered: Callable[[], None] | None) -> tuple[BatchMemory, dict[str, Any]]:
        """Like `_draw`, for items that are larger than a message: it draws the keys, then fetches each leaf in parts. If an item is removed
        meanwhile, another one is drawn."""
        memory, drawing.memory = drawing.memory or self.memory(drawing.n), None
        drawn, figures = super()._draw(drawing, timeout, answered)
        rows = slice(memory.filled, memory.filled + drawing.n)
        keys, probabilities = memory.keys[rows], memory.probabilities[rows]
        keys[:], probabilities[:] = drawn.keys, drawn.probabilities
        for i in range(drawing.n):
            while not all(self._fetch(int(keys[i]), index, leaf[rows][i : i + 1], timeout) for index, leaf in enumerate(memory.leaves)):
                anew, figures = super()._draw(Drawing(1, 1, (), drawing.more), timeout)
                keys[i], probabilities[i] = anew.keys[0], anew.probabilities[0]
        memory.filled += drawing.n
        return memory, figures

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
