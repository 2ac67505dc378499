"""Our environments as an OpenEnv server on this machine's loopback, for any client of OpenEnv."""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from echo_rl.environments.adapters.openenv.play import Episode, Refused, action_schema
from echo_rl.environments.adapters.openenv.session import loopback, parsed
from echo_rl.environments.adapters.openenv.websocket import ABNORMAL, NORMAL, WebSocket, WebSocketError, accepted
from echo_rl.environments.base import CheckedEnvironment

__all__ = ["OpenEnvServer"]

_SESSION_ONLY = "a step needs a session, and HTTP has none: open a WebSocket at /ws"
_TEXT = {"type": "string"}
_OBSERVATION = {
    "type": "object",
    "properties": {
        "observation": {"description": "a text, or numbers as nested lists"},
        "done": {"type": "boolean", "default": False},
        "reward": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "metadata": {"type": "object", "description": "admissible, truncated, success and further figures"},
    },
    "required": ["observation"],
}
_STATE = {"type": "object", "properties": {"episode_id": {"anyOf": [_TEXT, {"type": "null"}]}, "step_count": {"type": "integer", "minimum": 0}}}
_PATHS = {"/health": "get", "/metadata": "get", "/schema": "get", "/state": "get", "/reset": "post", "/step": "post", "/mcp": "post"}


class OpenEnvServer:
    """Serves environments until ``close``, in threads of its own. Use it as a context manager.

    A session is a WebSocket at ``/ws``, and has an environment of its own. ``POST /reset`` begins an episode and forgets it, as openenv's server does. Requests
    with an ``Origin`` are refused, so that no page in a browser reaches the environments.

    Args:
        make: makes an environment, such as ``partial(make_environment, "alfworld")``. It is called once now, and once for each session.
        host: a loopback address of this machine, because nothing is encrypted.
        port: the port; 0 takes a free one.
        token: what clients must send as a bearer token; None asks for none.
        sessions: how many sessions may be open at once.
        timeout: for how many seconds a request may take to arrive.
        idle: for how many seconds a session's client may send nothing, not even a ping.
        max_bytes: the largest accepted message of a client.

    Attributes:
        url: the address for clients, such as ``http://127.0.0.1:8000``.

    Raises:
        ValueError: the host is not of the loopback, or the token is empty.
        ConfigError: the environment cannot be made.
    """

    def __init__(
        self,
        make: Callable[[], CheckedEnvironment],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        sessions: int = 64,
        timeout: float = 30.0,
        idle: float = 3600.0,
        max_bytes: int = 1 << 20,
    ) -> None:
        if not loopback(host):
            raise ValueError(f"host={host!r} is not of this machine's loopback; put a proxy with TLS and a token before the server to serve other machines")
        if token is not None and not (token and token.isascii() and token.isprintable()):
            raise ValueError("token must be printable ASCII, and not empty")
        if min(sessions, timeout, idle, max_bytes) <= 0:
            raise ValueError("sessions, timeout, idle and max_bytes must be greater than 0")
        self.make, self.token, self.sessions, self.timeout, self.idle, self.max_bytes = make, token, sessions, timeout, idle, max_bytes
        first = make()
        self.name, self.actions = first.name, action_schema(first)
        first.close()
        self._server = _Server((host, port), self)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="echo-rl-openenv-server", daemon=True)
        self._thread.start()

    def __enter__(self) -> OpenEnvServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every session, close its environment, and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.end()
        self._server.server_close()

    def documents(self) -> dict[str, Any]:
        """What each path answers that says something about the server."""
        answer = {"responses": {"200": {"description": "JSON"}}}
        return {
            "/health": {"status": "healthy"},
            "/metadata": {"name": self.name, "description": f"the environment {self.name} of echo-rl"},
            "/schema": {"action": self.actions, "observation": _OBSERVATION, "state": _STATE},
            "/state": {"episode_id": None, "step_count": 0},
            "/openapi.json": {
                "openapi": "3.1.0",
                "info": {"title": self.name, "version": "1.0.0"},
                "paths": {path: {method: answer} for path, method in _PATHS.items()},
            },
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], owner: OpenEnvServer) -> None:
        self.owner = owner
        self.places = threading.BoundedSemaphore(owner.sessions)
        # Twice as many connections as sessions may be open; the others are closed at once, so that they use up no threads.
        self._room = 2 * owner.sessions + 8
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._changed:
            if len(self._open) >= self._room:
                return False
            self._open.add(request)
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._open.discard(request)
                self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no event worth a traceback; every other error was answered."""

    def end(self) -> None:
        with self._changed:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # It has ended meanwhile.
            self._changed.wait_for(lambda: not self._open, 30)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "echo-rl", ""
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.owner.timeout)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A request that comes a byte at a time keeps its thread no longer than this.
        self._late = threading.Timer(self.server.owner.timeout, self._cut)
        self._late.daemon = True
        self._late.start()

    def finish(self) -> None:
        self._late.cancel()
        super().finish()

    def _cut(self) -> None:
        try:
            self.connection.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # It has ended meanwhile.

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: what a client sends belongs in no log."""

    def do_GET(self) -> None:
        if not self._allowed():
            return
        if self.path == "/ws" and self.headers.get("Upgrade", "").lower() == "websocket":
            self._session()
            return
        found = self.server.owner.documents().get(self.path)
        self._answer(*((200, found) if found is not None else (404, {"detail": "there is no such path"})))

    def do_POST(self) -> None:
        if not self._allowed():
            return
        try:
            body = self._body()
        except ValueError as error:
            self._answer(400, {"detail": str(error)})
            return
        if self.path == "/reset":
            episode = self._episode()
            try:
                self._answer(200, episode.reset(body))
            except Refused as error:
                self._answer(422 if error.code == "VALIDATION_ERROR" else 500, {"detail": str(error)})
            finally:
                episode.close()
        elif self.path == "/mcp":
            self._answer(200, {"jsonrpc": "2.0", "error": {"code": -32601, "message": "this environment has no tools"}, "id": body.get("id")})
        else:
            self._answer(*((409, {"detail": _SESSION_ONLY}) if self.path == "/step" else (404, {"detail": "there is no such path"})))

    def _allowed(self) -> bool:
        """Whether a request may be served. If not, it is answered."""
        self.close_connection = True
        token = self.server.owner.token
        if self.headers.get("Origin") is not None:
            self._answer(403, {"detail": "requests of browsers are refused"})
            return False
        given = self.headers.get("Authorization", "").encode()
        if token is not None and self.path != "/health" and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            self._answer(401, {"detail": "the token is missing or wrong"})
            return False
        return True

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "0")
        most = self.server.owner.max_bytes
        if self.headers.get("Transfer-Encoding") or not (length.isascii() and length.isdigit()) or len(length) > 12 or int(length) > most:
            raise ValueError(f"a body needs a Content-Length of at most {most} bytes")
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise ValueError("the body did not arrive in time")
        found = parsed(data or b"{}")
        if not isinstance(found, dict):
            raise ValueError("the body is no object")
        return found

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _episode(self) -> Episode:
        return Episode(self.server.owner.make)

    def _session(self) -> None:
        owner, key = self.server.owner, self.headers.get("Sec-WebSocket-Key", "")
        if self.headers.get("Sec-WebSocket-Version") != "13" or not key:
            self._answer(400, {"detail": "a WebSocket needs a key and version 13"})
            return
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accepted(key))):
            self.send_header(name, value)
        self.end_headers()
        self._late.cancel()
        self.connection.settimeout(owner.idle)
        wire = WebSocket(self.connection, self.rfile, client=False, most=owner.max_bytes)
        code = NORMAL
        if not self.server.places.acquire(blocking=False):
            wire.send(_error(Refused(f"all {owner.sessions} sessions are taken", "CAPACITY_REACHED")))
            wire.end(code, linger=1.0)
            return
        try:
            episode = self._episode()
            try:
                serve = partial(_reply, episode)
                while (text := wire.receive()) is not None and (reply := serve(text)) is not None:
                    wire.send(reply)
            finally:
                episode.close()
        except WebSocketError as error:
            code = error.code
        except OSError:
            code = ABNORMAL
        finally:
            self.server.places.release()
            wire.end(code, linger=1.0)


def _reply(episode: Episode, text: str) -> str | None:
    """The answer to one message; None when the client closes the session."""
    try:
        try:
            message = parsed(text)
        except ValueError as error:
            raise Refused(f"the message is no JSON: {error}"[:300], "INVALID_JSON") from None
        kind = message.get("type") if isinstance(message, dict) else None
        data = message.get("data", {}) if isinstance(message, dict) else None
        if kind == "close":
            return None
        if kind not in ("reset", "step", "state"):
            raise Refused(f"unknown type of message {kind!r:.80}", "UNKNOWN_TYPE")
        if not isinstance(data, dict):
            raise Refused("data has to be an object", "VALIDATION_ERROR")
        if kind == "state":
            return json.dumps({"type": "state", "data": episode.state()})
        return json.dumps({"type": "observation", "data": episode.reset(data) if kind == "reset" else episode.step(data)}, allow_nan=False)
    except Refused as error:
        return _error(error)
    except ValueError as error:
        return _error(Refused(f"the observation cannot be written as JSON: {error}", "EXECUTION_ERROR"))


def _error(error: Refused) -> str:
    return json.dumps({"type": "error", "data": {"message": str(error), "code": error.code}})
