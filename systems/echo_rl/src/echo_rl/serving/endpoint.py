"""An HTTP endpoint on an engine that speaks OpenAI's protocol, for this machine only.

``GET /v1/models``, ``POST /v1/completions`` and ``POST /v1/chat/completions``; any client of OpenAI's interface can use it.
"""

from __future__ import annotations

import hmac
import io
import ipaddress
import json
import math
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from echo_rl.engine import Engine
from echo_rl.serving.chat import ChatTemplate
from echo_rl.serving.connections import Connections, Gone, RequestReader, linger
from echo_rl.serving.protocol import ApiError, Choice, Job, parse, usage
from echo_rl.serving.text import ByteTokenizer, TextStream, Tokenizer
from echo_rl.serving.worker import Busy, EngineWorker

POLL = 0.25
"""Seconds between two looks at whether the client is still there while no token comes."""


class Endpoint:
    """Serves one engine until ``close``, in threads of its own. Use it as a context manager.

    Args:
        engine: An engine, or a worker. The endpoint steps an engine itself. A worker may have other users, and the endpoint does not close it.
        tokenizer: The tokenizer of texts. By default each byte is a token.
        model: The name that clients ask for.
        host: A loopback address of this machine, because the endpoint does not encrypt anything.
        port: The port. 0 takes a free port.
        token: The API key that clients send. By default it is random.
        template: The template that turns conversations into prompts.
        most: The largest number of choices that are served at once. Further calls get the status 429 with retry-after. If a worker is given, its own limit
            holds.
        max_body: The largest accepted body of a request, in bytes.
        connections: The largest number of requests at the same time, each on its own connection. Further ones get the status 429 with retry-after. A
            connection that waits for its client's next request does not count. Four times as many may be open; beyond that, the one that has been idle for
            the longest time is closed.
        timeout: For how many seconds a client may send one request, from its first byte to its last, stay idle between two requests, or take to receive a
            piece of the answer.

    Attributes:
        url: The base URL for clients, such as ``http://127.0.0.1:8000/v1``.
        token: The key.
        worker: The engine's worker.

    Raises:
        ValueError: If the host is not of the loopback, if the worker steps something else than an ``Engine``, if ``connections`` is less than 1, or if the
            tokenizer has more tokens than the model.
    """

    def __init__(
        self,
        engine: Engine | EngineWorker,
        tokenizer: Tokenizer | None = None,
        *,
        model: str = "echo",
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        template: ChatTemplate | None = None,
        most: int = 256,
        max_body: int = 1 << 20,
        connections: int = 128,
        timeout: float = 30.0,
    ) -> None:
        if not (host == "localhost" or _loopback(host)):
            raise ValueError(f"host={host!r} is not of this machine's loopback; put a proxy with TLS before the endpoint to serve other machines")
        inner = engine.engine if isinstance(engine, EngineWorker) else engine
        if not isinstance(inner, Engine):
            raise ValueError(f"the worker steps a {type(inner).__name__}; an endpoint needs a worker of an Engine")
        self._engine = inner
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        if self.tokenizer.vocab > inner.model.config.vocab:
            raise ValueError(f"the tokenizer has {self.tokenizer.vocab} tokens and the model only {inner.model.config.vocab}")
        if token == "":
            raise ValueError("the token is empty")
        self.model, self.template, self.max_body, self.timeout = model, template or ChatTemplate(), max_body, timeout
        self.token = secrets.token_urlsafe(24) if token is None else token
        self._server = _Server((host, port), self, connections)
        self._own = not isinstance(engine, EngineWorker)
        self.worker = engine if isinstance(engine, EngineWorker) else EngineWorker(engine, most)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="echo-rl-endpoint", daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection and request."""
        self._server.shutdown()
        self._thread.join()
        self._server.connections.end()
        if self._own:
            self.worker.close()
        self._server.server_close()

    def job(self, body: object, chat: bool) -> Job:
        """Check what a call asks for; raise ApiError."""
        engine = self._engine
        context = min(engine.model.config.context, engine.kv_tokens)
        return parse(body, chat, self.model, self.tokenizer, self.template, engine.room, context, self.worker.most, engine.model.generation.most)

    def begin(self, job: Job) -> list[Choice]:
        """Queue a job's requests; raise ApiError if the engine refuses them, or if too many live."""
        prompts = job.all_prompts()
        texts = [TextStream(self.tokenizer, job.stop, self._engine.model.generation.ends) for _ in prompts]
        watches = [t.push for t in texts]
        try:
            streams = self.worker.submit(prompts, job.max_new, watches=watches, seed=job.seed, temperature=job.temperature, top_p=job.top_p, top=job.top or 0)
        except Busy as error:
            after = str(max(1, math.ceil(error.retry_after)))
            raise ApiError(429, str(error), "rate_limit_error", code="rate_limit_exceeded", retry_after=after) from error
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        except RuntimeError as error:
            raise ApiError(503, "the endpoint is closing", "server_error") from error
        return [Choice(job, i, s.request, t, self.tokenizer) for i, (s, t) in enumerate(zip(streams, texts, strict=True))]


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], endpoint: Endpoint, connections: int) -> None:
        self.endpoint, self.connections = endpoint, Connections(connections)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "echo-rl", ""
    server: _Server
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
            self._authorize()
            body = self._body(needed=method == "POST")
            self._incoming.complete()
            self._route(method, body)
        except Gone:
            self.close_connection = True
        except ApiError as error:
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

    def _authorize(self) -> None:
        scheme, _, key = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self.server.endpoint.token.encode()):
            self._refuse()
            raise ApiError(401, "incorrect API key provided", code="invalid_api_key", www_authenticate="Bearer")

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

    def _route(self, method: str, body: bytes) -> None:
        endpoint, path = self.server.endpoint, urlsplit(self.path).path.rstrip("/")
        known = {"/v1/models": "GET", f"/v1/models/{endpoint.model}": "GET", "/v1/completions": "POST", "/v1/chat/completions": "POST"}
        if path not in known:
            raise ApiError(404, f"unknown request URL: {method} {path[:200]}", code="unknown_url")
        if known[path] != method:
            raise ApiError(405, f"{path} takes {known[path]}, not {method}", code="method_not_allowed", allow=known[path])
        if method == "GET":
            card = {"id": endpoint.model, "object": "model", "created": 0, "owned_by": "echo-rl"}
            self._answer(200, {"object": "list", "data": [card]} if path == "/v1/models" else card)
            return
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {error}"[:500]) from error
        self._complete(endpoint.job(found, chat=path == "/v1/chat/completions"))

    def _complete(self, job: Job) -> None:
        endpoint = self.server.endpoint
        choices = endpoint.begin(job)
        head = {
            "id": f"{'chatcmpl' if job.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "text_completion" if not job.chat else "chat.completion.chunk" if job.stream else "chat.completion",
            "created": int(time.time()),
            "model": endpoint.model,
        }
        requests = [c.request for c in choices]
        try:
            if not job.stream:
                for _ in self._progress(choices):
                    pass
                found = [c.take(whole=True) for c in choices]
                self._answer(200, {**head, "choices": found, "usage": usage(job, requests)})
                return
            self._begin_stream()
            left = list(choices)
            for _ in self._progress(choices):
                for choice in list(left):
                    piece = None if choice.request.finish == "abort" else choice.take()
                    if piece is not None:
                        self._event({**head, "choices": [piece]})
                    if piece is not None and piece["finish_reason"]:
                        left.remove(choice)
            for choice in left:
                self._event({**head, "choices": [choice.take()]})
            if job.usage:
                self._event({**head, "choices": [], "usage": usage(job, requests)})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        finally:
            for request in requests:
                endpoint.worker.cancel(request)

    def _progress(self, choices: list[Choice]) -> Iterator[None]:
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

    def _begin_stream(self) -> None:
        self._answering = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        if self.request_version == "HTTP/1.0":
            self.close_connection = True  # It has no chunks, so the stream ends with the connection.
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(data if self.request_version == "HTTP/1.0" else f"{len(data):x}\r\n".encode() + data + b"\r\n")
