"""A learner's table of items over steps from another process or machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import ConfigError
from .operations import DRAWN, MAX_BYTES
from .remote_table import RemoteTable, weights_of
from .sampler import Keys
from .spec import Spec
from .step_layout import Layout, StepSample

__all__ = ["RemoteStepTable", "remote_table"]

Request = Callable[..., tuple[dict[str, Any], bytes]]


class RemoteStepTable(RemoteTable):
    """As `RemoteTable`; batches are `StepSample`s. The server says once what its items are."""

    def __init__(self, request: Request, spec: Spec, name: str | None, timeout: float, step: Spec) -> None:
        super().__init__(request, spec, name, timeout)
        self._step = step
        self._layout: Layout | None = None

    @property
    def layout(self) -> Layout:
        """What a batch looks like."""
        if self._layout is None:
            self._layout = Layout.from_json(self._step, self._ask("layout", 1, b"", None)[0])
        return self._layout

    def sample(self, n: int, timeout: float | None = None, beta: float | None = None) -> StepSample:  # type: ignore[override]
        """Draw n items; see `RemoteTable.sample`.

        Raises:
            ConfigError: one item is larger than a message; sample where the server is, or make items shorter.
        """
        layout = self.layout
        fit = MAX_BYTES // (layout.item_bytes + DRAWN)
        if fit < 1:
            raise ConfigError(
                f"one item of {layout.items} has {layout.item_bytes:,} bytes, and a message carries {MAX_BYTES:,}; sample in the server's "
                f"process, or make items shorter"
            )
        (keys, probabilities, *leaves), info, beta = self._draw(n, timeout, beta, fit, layout.leaves)
        return layout.from_leaves(leaves, info, keys, probabilities, weights_of(probabilities, beta))

    def insert(self, samples: Any, priorities: Any = None, timeout: float | None = None) -> Keys:
        """Not of steps: they belong to an episode, and what gets a key is an item over several of them.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("steps are sent in order, by send() and send_batch(); a table of steps has no insert()")


def remote_table(request: Request, spec: Spec, name: str | None, timeout: float, step: Spec | None) -> RemoteTable:
    """A table of the server; `step` is given where it is one of steps."""
    return RemoteTable(request, spec, name, timeout) if step is None else RemoteStepTable(request, spec, name, timeout, step)
