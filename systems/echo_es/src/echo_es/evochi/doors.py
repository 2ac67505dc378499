"""The metrics over HTTP/1.1: on a port of their own, or on the port of gRPC, as Evochi's server has them.

grpcio speaks HTTP/2 only. On one port, `SharedDoor` looks at the first bytes of each connection: HTTP/2 begins with "PRI *", and such a
connection is passed on to gRPC, which listens at a unix socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from echo_core.base.address import is_loopback_host

from .metrics import CONTENT_TYPE

__all__ = ["MetricsDoor", "SharedDoor"]

_log = logging.getLogger("echo.es")
PREFACE = b"PRI *"
LONGEST = 8192  # bytes of a request for metrics
PATIENCE = 10.0  # seconds for one request
PIECE = 1 << 16


class MetricsDoor:
    """Answers `GET /metrics`.

    Args:
        text: makes the answer.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError if that is impossible."""
        self._server = await asyncio.start_server(self._arrived, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Hang up on everyone and free the port."""
        if self._server is not None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
            _log.debug("metrics: %r", error)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._answer(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE), writer)

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        first, *headers = request.decode("latin-1").split("\r\n")
        method, path = (*first.split(" "), "", "")[:2]
        named = next((line[5:].strip() for line in headers if line.lower().startswith("host:")), None)
        if not _from_here(named, writer):
            status, body = "403 Forbidden", "The request names another host than this machine.\n"
        elif method != "GET":
            status, body = "405 Method Not Allowed", "Only GET is served here.\n"
        elif path.partition("?")[0] != "/metrics":
            status, body = "404 Not Found", "The figures are at /metrics.\n"
        else:
            status, body = "200 OK", self._text()
        data = body.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        await asyncio.wait_for(writer.drain(), PATIENCE)


def _from_here(named: str | None, writer: asyncio.StreamWriter) -> bool:
    """False if this listens on loopback and the request names another host: it comes from a page whose name was made to resolve to this machine."""
    if named is None or not is_loopback_host(str(writer.get_extra_info("sockname")[0])):
        return True
    return is_loopback_host(named[1:].partition("]")[0] if named.startswith("[") else named.partition(":")[0])


class SharedDoor(MetricsDoor):
    """The same, and passes connections of HTTP/2 on.

    Args:
        text: makes the answer.
        behind: the path of the unix socket at which gRPC listens.
    """

    def __init__(self, text: Callable[[], str], behind: str) -> None:
        super().__init__(text)
        self._behind = behind

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun = await asyncio.wait_for(reader.readexactly(len(PREFACE)), PATIENCE)
        if begun != PREFACE:
            rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            await self._answer(begun + rest, writer)
            return
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._behind)
        try:
            inner_writer.write(begun)
            await _both(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            inner_writer.close()


async def _both(one: Awaitable[None], other: Awaitable[None]) -> None:
    """Run both until either ends, then end the other."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
