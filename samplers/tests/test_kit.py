"""The samplers of this distribution keep the contract of `echo_core.sampler`."""

from __future__ import annotations

from typing import Any

from echo_core.testing import SamplerContract
from echo_samplers.fifo import Fifo


class TestFifo(SamplerContract):
    def sampler(self, **options: Any) -> Fifo:
        return Fifo(**options)
