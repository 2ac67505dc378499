"""The client's side of the wire: calls of an OpenEnv server whose sizes and times are bounded, whatever the server does."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import os
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from echo_rl.environments.adapters.openenv.websocket import WebSocket, WebSocketError, accepted
from echo_rl.environments.base import EnvironmentFailure

__all__ = ["Address", "Session", "fetch", "loopback", "parsed"]

_BROKEN = (OSError, EOFError, ValueError, WebSocketError, http.client.HTTPException)


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        url: as errors show it, without a slash at the end.
        host, port: of the server.
        secure: whether the connection is encrypted.
        path: what stands before the paths of the protocol.
        token: the token that is sent, or None.
    """

    url: str
    host: str
    port: int
    secure: bool
    path: str
    token: str | None

    @classmethod
    def of(cls, url: str, token: str | None) -> Address:
        """Read a URL. Raise ValueError if it cannot be the address of a server, or if a token would be sent in the clear."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
            raise ValueError(f"url must be an address such as http://127.0.0.1:8000, got {url!r}")
        if parts.username is not None or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("url must have no user, query, fragment or space, got another; a token is an option of its own")
        secure = parts.scheme in ("https", "wss")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
            raise ValueError("token must be printable ASCII without spaces around it, got another")
        if token is not None and not secure and not loopback(parts.hostname):
            raise ValueError(f"token would be sent unencrypted to {parts.hostname}; use https://")
        return cls(url.rstrip("/"), parts.hostname, parts.port or (443 if secure else 80), secure, parts.path.rstrip("/"), token)

    @property
    def head(self) -> str:
        """The headers of every request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"Host: {host}:{self.port}\r\n" + (f"Authorization: Bearer {self.token}\r\n" if self.token else "")


def loopback(host: str) -> bool:
    """Whether a host is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parsed(data: str | bytes) -> Any:
    """JSON without NaN and infinities. Raise ValueError."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a number of JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def fetch(address: Address, path: str, seconds: float, most: int) -> Any:
    """Get JSON by HTTP. Raise EnvironmentFailure."""
    with _told(address, f"GET {path}"), _dialled(address, seconds) as (connection, late):
        connection.sendall(f"GET {address.path}{path} HTTP/1.1\r\n{address.head}Accept: application/json\r\nConnection: close\r\n\r\n".encode())
        response = http.client.HTTPResponse(connection, method="GET")
        try:
            response.begin()
            _expect(response.status, 200)
            data = response.read(most + 1)
            if late.is_set():
                raise TimeoutError
            if len(data) > most:
                raise ValueError(f"the answer has more than {most} bytes")
            if response.length:
                raise ValueError("the answer ends in the middle")
        finally:
            response.close()
        return _json(data)


class Session:
    """One session of an environment. A thread of its own reads, so that pings are answered between two steps, too.

    Args:
        address: of the server.
        seconds: for how long connecting may take.
        most: the largest accepted message, in bytes.

    Raises EnvironmentFailure if the server refuses.
    """

    def __init__(self, address: Address, seconds: float, most: int) -> None:
        self._address = address
        self._answers: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()
        self._asked = False
        with _told(address, "/ws"), _dialled(address, seconds, keep=True) as (connection, late):
            incoming = connection.makefile("rb")
            try:
                _upgrade(connection, incoming, address)
                if late.is_set():
                    raise TimeoutError
            except BaseException:
                incoming.close()
                raise
        self._connection, self._incoming = connection, incoming
        self._socket = WebSocket(connection, incoming, client=True, most=most)
        self._thread = threading.Thread(target=self._read, name="echo-rl-openenv", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the session has ended by itself, or can no longer be used."""
        return not self._answers.empty()

    def ask(self, kind: str, data: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a message and return the answer, an object with ``type`` and ``data``.

        Raises EnvironmentFailure. The session is then closed, because a late answer would be taken for that of the next message.
        """
        try:
            with _told(self._address, kind), _limited(self._connection, seconds) as late:
                if self.ended:
                    answer = self._answers.get()
                    raise answer if isinstance(answer, BaseException) else WebSocketError("the server has sent two answers")
                self._asked = True
                text = json.dumps({"type": kind, "data": data}, allow_nan=False)
                try:
                    self._socket.send(text)
                except OSError:
                    pass  # The connection has ended, and the thread that reads knows why.
                answer = self._answers.get()
                self._asked = False
                if late.is_set():
                    raise TimeoutError
                if isinstance(answer, BaseException):
                    raise answer
                found = _json(answer)
                if not isinstance(found, dict) or not isinstance(found.get("type"), str) or not isinstance(found.get("data"), dict):
                    raise ValueError(f"the answer has no type and data: {answer[:200]!r}")
                return found
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session. The server closes its environment."""
        self._socket.end()
        self._thread.join()

    def _read(self) -> None:
        try:
            while True:
                text = self._socket.receive()
                if text is None:
                    raise WebSocketError("the server has ended the session")
                if not self._asked or not self._answers.empty():
                    raise WebSocketError(f"the server has sent a message that nobody asked for: {text[:300]}")
                self._answers.put(text)
        except _BROKEN as error:
            self._answers.put(error)
            self._socket.close()
        finally:
            self._incoming.close()


def _json(text: str | bytes) -> Any:
    try:
        return parsed(text)
    except ValueError as error:
        raise ValueError(f"the answer is no JSON: {error}; it begins with {text[:120]!r}") from None


def _upgrade(connection: socket.socket, incoming: BinaryIO, address: Address) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        (
            f"GET {address.path}/ws HTTP/1.1\r\n{address.head}Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
    )
    line = incoming.readline(1 << 12)
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError(f"the answer is no HTTP: {line[:80]!r}" if line else "the server has closed the connection")
    _expect(int(words[1]), 101)
    headers = http.client.parse_headers(incoming)
    if headers.get("Sec-WebSocket-Accept", "") != accepted(key) or headers.get("Sec-WebSocket-Extensions") or headers.get("Sec-WebSocket-Protocol"):
        raise ValueError("the server's handshake is not that of a WebSocket without extensions")


def _expect(status: int, wanted: int) -> None:
    if 300 <= status < 400:
        raise ValueError(f"the answer is a redirect ({status}), which is never followed; give the address to which it leads")
    if status != wanted:
        why = {401: ": the token is missing or wrong", 403: ": the server refuses this client", 404: ": there is no OpenEnv server at this address"}.get(
            status, ""
        )
        raise ValueError(f"the answer has status {status}{why}")


@contextmanager
def _told(address: Address, call: str) -> Iterator[None]:
    """Turn every failure of a call into one that names the server."""
    try:
        yield
    except TimeoutError:
        raise EnvironmentFailure(f"openenv {address.url}: {call} has not been answered in time; raise timeout if the server is slow") from None
    except _BROKEN as error:
        raise EnvironmentFailure(f"openenv {address.url}: {call}: {error or type(error).__name__}") from error


@contextmanager
def _limited(connection: socket.socket, seconds: float) -> Iterator[threading.Event]:
    """Shut a connection down after some seconds, however slowly bytes come until then. The event says that this has happened."""
    late = threading.Event()

    def cut() -> None:
        late.set()
        try:
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # That of TLS would forget the encryption, and read on in the clear.
        except OSError:
            pass  # It has ended meanwhile.

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield late
    except _BROKEN:
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def _dialled(address: Address, seconds: float, *, keep: bool = False) -> Iterator[tuple[socket.socket, threading.Event]]:
    """A connection that is shut down after some seconds, and closed in the end unless it is to be kept."""
    connection = socket.create_connection((address.host, address.port), timeout=seconds)
    try:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.secure:
            context = ssl.create_default_context()
            connection = context.wrap_socket(connection, server_hostname=address.host, do_handshake_on_connect=False)
        with _limited(connection, seconds) as late:
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            yield connection, late
    except BaseException:
        connection.close()
        raise
    if not keep:
        connection.close()
