"""How long things take: the seconds of a run, and the phases by which a hang is told from work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """``warmup`` seconds are thrown away before ``seconds`` are measured."""

    seconds: float
    warmup: float


#: Called by a mode when it enters a phase: its name, and the seconds it is meant to take. The
#: harness kills a run whose phase is overdue by more than its patience and records it as hung.
Announce = Callable[[str, float], None]

#: Figures of one run by name, e.g. ``{"rate": 4.1e6}``.
Figures = dict[str, float]
