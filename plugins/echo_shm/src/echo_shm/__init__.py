"""Shared memory for Echo. This module only announces the transport; its code is imported when it is selected."""

from __future__ import annotations

from collections.abc import Iterable

from echo_core.plugins.hookspecs import TransportInfo, hookimpl


@hookimpl
def echo_transports() -> Iterable[TransportInfo]:
    return [
        TransportInfo(
            name="shm",
            factory="echo_shm.transport:ShmTransport",
            client="echo_shm.transport:ShmClient",
            api=1,
            summary="shared memory: workers on this machine write straight into the learner's store",
        )
    ]
