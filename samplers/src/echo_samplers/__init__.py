"""Samplers for Echo, one module each; importing this package imports none of them."""

from __future__ import annotations

from echo_core.hookspecs import SamplerInfo, hookimpl


@hookimpl
def echo_samplers() -> list[SamplerInfo]:
    """The samplers of this distribution."""
    return [
        SamplerInfo(
            name="fifo",
            factory="echo_samplers.fifo:Fifo",
            api=1,
            summary="every sample exactly once, in order of arrival",
        ),
    ]
