"""Runs an `EchoLink` on a thread, for a `Worker` that is started in an event loop."""

from __future__ import annotations

import asyncio

from .daemon_thread import DaemonThread
from .hooks import Hooks
from .link import EchoLink

__all__ = ["LinkThread"]


class LinkThread:
    """The link of a worker, and the hooks that it calls."""

    def __init__(self, hooks: Hooks, link: EchoLink) -> None:
        self._hooks, self._link = hooks, link

    async def run(self) -> None:
        """As `EchoLink.run`. If it is cancelled, as by Ctrl-C, it leaves the server and does not wait for an evaluation."""
        self._hooks.loop = asyncio.get_running_loop()
        thread = DaemonThread("echo-es-worker")
        try:
            await thread.run(self._link.run)
        except asyncio.CancelledError:
            self._hooks.loop = None
            await self.close()
            raise
        finally:
            thread.end()

    async def close(self) -> None:
        """As `EchoLink.close`."""
        thread = DaemonThread("echo-es-close")
        try:
            await thread.run(self._link.close)
        finally:
            thread.end()
