"""How the endpoint reads requests from its connections and writes answers to them."""

from __future__ import annotations

import io
import json
import secrets
import select
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import urlsplit

from echo_rl.serving.connections import Connections, Gone, RequestReader, linger
from echo_rl.serving.errors import ApiError
from echo_rl.serving.protocol import Choice, Job, usage
from echo_rl.serving.sessions.gateway import Gateway
from echo_rl.serving.sessions.session import Call, Session
from echo_rl.serving.worker import EngineWorker

POLL = 0.25
"""Seconds between two looks at whether the client is still there while no token comes."""


class Answering(Protocol):
    """The endpoint whose requests are read here."""

    model: str
    timeout: float
    max_body: int
    worker: EngineWorker
    gateway: Gateway

    def job(self, body: object, chat: bool) -> Job: ...

    def session_job(self, session: Session, body: object, chat: bool) -> tuple[Job, Call]: ...

    def begin(self, job: Job) -> list[Choice]: ...


class EndpointServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], endpoint: Answering, connections: int) -> None:
        self.endpoint, self.connections = endpoint, Connections(connections)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.opened(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.closed(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no event worth a traceback; every other error was answered with 500."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "echo-rl", ""
    server: EndpointServer
    _answering = False
    _refused = False

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.endpoint.timeout)
        self.rfile.close()
        self._incoming = RequestReader(self.connection, self.server.endpoint.timeout)
        self.rfile = io.BufferedReader(self._incoming)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def finish(self) -> None:
        super().finish()
        if self._refused:
            linger(self.connection)

    def _refuse(self) -> None:
        """End the connection after the answer, since the rest of its request is not read."""
        self.close_connection = self._refused = True

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: what a client sends belongs in no log."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the standard library refuses in OpenAI's form, too."""
        self._refuse()
        self._answer(code, ApiError(code, message or "the request is not HTTP").body)

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        self._answering = placed = False
        try:
            if method == "GET" and self.path == "/health":
                self._health()
                return
            placed = self.server.connections.take(self.connection)
            if not placed:
                self._refuse()
                raise ApiError(429, "too many requests at once", "rate_limit_error", code="rate_limit_exceeded", retry_after="1")
            session = self._authorize()
            body = self._body(needed=method == "POST")
            self._incoming.complete()
            self._route(method, body, session)
        except Gone:
            self.close_connection = True
        except ApiError as error:
            if self._answering:
                self.close_connection = True  # A stream that has begun can only be cut.
            else:
                self._answer(error.status, error.body, error.headers)
        except OSError:
            self.close_connection = True
            raise
        except Exception as error:
            self.close_connection = True
            # A stream that has begun can only be cut: its client must not take it for complete.
            if not self._answering:
                self._answer(500, ApiError(500, f"the answer failed: {error}", "server_error").body)
        finally:
            if placed:
                self.server.connections.give_back(self.connection)

    def _health(self) -> None:
        """Say whether the engine can serve. A load balancer has no key, and asks when every place is taken, too."""
        self._body(needed=False)
        self._incoming.complete()
        error = self.server.endpoint.worker.error
        self._answer(200 if error is None else 503, {"status": "ok" if error is None else "failed"})

    def _authorize(self) -> Session | None:
        scheme, _, key = self.headers.get("Authorization", "").partition(" ")
        try:
            return self.server.endpoint.gateway.authorize(key.strip() if scheme.lower() == "bearer" else "", urlsplit(self.path).path)
        except ApiError:
            self._refuse()
            raise

    def _body(self, needed: bool) -> bytes:
        endpoint, length = self.server.endpoint, self.headers.get("Content-Length", "" if needed else "0")
        if self.headers.get("Transfer-Encoding") or not (length.isascii() and length.isdigit()):
            self._refuse()
            raise ApiError(411, "a body needs a Content-Length")
        if len(length) > 12 or int(length) > endpoint.max_body:
            self._refuse()
            raise ApiError(413, f"the body has {length[:20]} bytes; at most {endpoint.max_body} are accepted")
        try:
            body = self.rfile.read(int(length))
        except TimeoutError:
            self._refuse()
            raise ApiError(408, f"the body did not arrive within {endpoint.timeout} s") from None
        if len(body) < int(length):
            raise Gone
        return body

    def _route(self, method: str, body: bytes, session: Session | None) -> None:
        endpoint, path = self.server.endpoint, urlsplit(self.path).path.rstrip("/")
        if session is not None:
            path = path.removeprefix(f"/sessions/{session.id}")
        elif f"{path}/".startswith("/sessions/"):
            self._answer(200, endpoint.gateway.operate(method, path, _parsed(body or b"{}") if method == "POST" else {}))
            return
        known = {"/v1/models": "GET", f"/v1/models/{endpoint.model}": "GET", "/v1/completions": "POST", "/v1/chat/completions": "POST"}
        if path not in known:
            raise ApiError(404, f"unknown request URL: {method} {path[:200]}", code="unknown_url")
        if known[path] != method:
            raise ApiError(405, f"{path} takes {known[path]}, not {method}", code="method_not_allowed", allow=known[path])
        if method == "GET":
            card = {"id": endpoint.model, "object": "model", "created": 0, "owned_by": "echo-rl"}
            self._answer(200, {"object": "list", "data": [card]} if path == "/v1/models" else card)
            return
        found, chat = _parsed(body), path == "/v1/chat/completions"
        if session is None:
            self._complete(endpoint.job(found, chat), None)
            return
        job, call = endpoint.session_job(session, found, chat)
        with call:
            self._complete(job, call)

    def _complete(self, job: Job, call: Call | None) -> None:
        endpoint = self.server.endpoint
        choices = endpoint.begin(job)
        head = {
            "id": f"{'chatcmpl' if job.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "text_completion" if not job.chat else "chat.completion.chunk" if job.stream else "chat.completion",
            "created": int(time.time()),
            "model": endpoint.model,
        }
        requests = [c.request for c in choices]

        def cancel() -> None:
            for request in requests:
                endpoint.worker.cancel(request)

        try:
            if call is not None:
                call.started(cancel)
            if not job.stream:
                for _ in self._progress(choices, call):
                    pass
                if call is not None:
                    for choice in choices:
                        call.record(choice)
                found = [choice.take(whole=True) for choice in choices]
                self._answer(200, {**head, "choices": found, "usage": usage(job, requests)}, call.headers if call else None)
                if call is not None:
                    for choice in choices:
                        call.delivered(choice)
                return
            self._begin_stream(call.headers if call else {})
            left = list(choices)

            def send(choice: Choice) -> None:
                finish = choice.request.finish
                if finish == "abort":
                    return
                ended = finish is not None
                if ended and call is not None:
                    call.record(choice)
                piece = choice.take(last=ended)
                if piece is not None:
                    self._event({**head, "choices": [piece]})
                if ended:
                    left.remove(choice)
                    # From here on the client may know the answer, and go on.
                    if call is not None:
                        call.delivered(choice)

            for _ in self._progress(choices, call):
                for choice in list(left):
                    send(choice)
            for choice in list(left):
                send(choice)
            if job.usage:
                self._event({**head, "choices": [], "usage": usage(job, requests)})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        finally:
            cancel()

    def _progress(self, choices: list[Choice], call: Call | None) -> Iterator[None]:
        """Yield whenever tokens have come, until every choice has ended. Raise Gone if the client leaves, and what the engine failed with."""
        worker, seen = self.server.endpoint.worker, (0, 0)

        def state() -> tuple[int, int]:
            return sum(len(c.request.output) for c in choices), sum(c.request.finish is not None for c in choices)

        def moved() -> bool:
            return state() != seen

        while seen[1] < len(choices):
            with worker.changed:
                worker.changed.wait_for(moved, POLL)
                seen = state()
            self._still_there()
            yield
        if any(c.request.finish == "abort" for c in choices):
            if worker.error is not None:
                raise worker.error
            if call is not None and call.cancelled:
                raise ApiError(403, "the session has ended", "permission_error", code="session_ended") if not self._answering else Gone
            raise ApiError(503, "the endpoint is closing", "server_error") if not self._answering else Gone

    def _still_there(self) -> None:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        # A client that sends its next request early is there, too.
        if poll.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
            raise Gone

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self._answering = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _begin_stream(self, headers: dict[str, str]) -> None:
        self._answering = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        if self.request_version == "HTTP/1.0":
            self.close_connection = True  # It has no chunks, so the stream ends with the connection.
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(data if self.request_version == "HTTP/1.0" else f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}"[:500]) from error
