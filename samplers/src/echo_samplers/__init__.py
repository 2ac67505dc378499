"""Samplers for Echo. Each has its own module; importing this package imports none of them."""

from __future__ import annotations

from echo_core.plugins.hookspecs import SamplerInfo, hookimpl

_SAMPLERS = {
    "fifo": ("fifo:Fifo", "every sample exactly once, in order of arrival"),
    "lifo": ("lifo:Lifo", "the newest samples first"),
    "uniform": ("uniform:Uniform", "every sample equally likely, with or without replacement"),
    "prioritized": ("prioritized:Prioritized", "in proportion to a power of the priority"),
    "hot_cold": ("hot_cold:HotCold", "a share from a hot stratum, the rest from a cold one"),
    "min_heap": ("heaps:MinHeap", "the lowest priorities first"),
    "max_heap": ("heaps:MaxHeap", "the highest priorities first"),
}


@hookimpl
def echo_samplers() -> list[SamplerInfo]:
    """The samplers of this distribution."""
    return [
        SamplerInfo(name=name, factory=f"echo_samplers.{factory}", api=1, summary=summary)
        for name, (factory, summary) in _SAMPLERS.items()
    ]
