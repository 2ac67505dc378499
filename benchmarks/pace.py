"""How long things take: the seconds of a run, and the phases by which a hang is told from work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol


@dataclass(frozen=True)
class Pace:
    """``warmup`` seconds are thrown away before ``seconds`` are measured."""

    seconds: float
    warmup: float


class Reporter(Protocol):
    """The way from the measured process to the harness."""

    def phase(self, name: str, seconds: float) -> None:
        """A phase begins that is meant to take ``seconds``.

        The harness kills a run whose phase is overdue by more than its patience: hung.
        """

    def fail(self, reason: str) -> NoReturn:
        """End the run at once, from whatever thread, and record it as failed."""


#: Figures of one run by name, e.g. ``{"rate": 4.1e6}``.
Figures = dict[str, float]
