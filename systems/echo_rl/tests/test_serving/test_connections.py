"""Which connections take a place of the endpoint, and answers that arrive although a request was not read."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from echo_rl.engine import Engine
from echo_rl.serving import Endpoint

TIMEOUT = 60


def head(endpoint: Endpoint, method: str, path: str, length: int = 0, key: str | None = None) -> bytes:
    key = endpoint.token if key is None else key
    return f"{method} {path} HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n".encode()


@contextmanager
def connected(endpoint: Endpoint, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(endpoint.url.split(":")[2].split("/")[0])), timeout=TIMEOUT) as connection:
        connection.sendall(data)
        yield connection


def read_answer(connection: socket.socket) -> bytes:
    """Read one answer with a Content-Length."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    before, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in before.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    return before + b"\r\n\r\n" + body


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


@contextmanager
def taken(endpoint: Endpoint) -> Iterator[socket.socket]:
    """Hold one place with a request that waits for a paused engine."""
    endpoint.worker.pause()
    body = json.dumps({"model": "echo", "prompt": "abc", "max_tokens": 2, "stream": True}).encode()
    with connected(endpoint, head(endpoint, "POST", "/v1/completions", len(body)) + body) as connection:
        assert connection.recv(1) == b"H"  # The head of the stream; the tokens wait.
        yield connection
        endpoint.worker.resume()


@pytest.mark.parametrize("before", ["silent", "half a head", "idle after an answer"])
def test_idle_connections_take_no_place(before: str, engine: Engine) -> None:
    """With one place, a request is served beside three connections that wait for their clients."""
    with Endpoint(engine, connections=1) as endpoint, ExitStack() as stack:
        whole = head(endpoint, "GET", "/v1/models")
        data = {"silent": b"", "half a head": whole[:-2], "idle after an answer": whole}[before]
        idle = []
        for _ in range(3):
            idle.append(stack.enter_context(connected(endpoint, data)))
            if before == "idle after an answer":
                assert read_answer(idle[-1]).startswith(b"HTTP/1.1 200")
        with connected(endpoint, whole) as another:
            assert read_answer(another).startswith(b"HTTP/1.1 200")
        for connection in idle:
            connection.sendall(whole[len(data) % len(whole) :])
            assert read_answer(connection).startswith(b"HTTP/1.1 200")


def test_the_connection_that_is_idle_for_the_longest_time_is_closed(engine: Engine) -> None:
    """Four connections may be open for one place. The fifth ends the first one, and a connection that serves a request stays."""
    with Endpoint(engine, connections=1) as endpoint, ExitStack() as stack:
        serving = stack.enter_context(taken(endpoint))
        idle = [stack.enter_context(connected(endpoint)) for _ in range(3)]
        with connected(endpoint, head(endpoint, "GET", "/health")) as fifth:
            assert read_answer(fifth).startswith(b"HTTP/1.1 200")
            assert idle[0].recv(1) == b""
            for connection in idle[1:]:
                connection.sendall(head(endpoint, "GET", "/health"))
                assert read_answer(connection).startswith(b"HTTP/1.1 200")
        endpoint.worker.resume()
        received = b""
        while b"[DONE]" not in received:
            piece = serving.recv(65536)
            assert piece
            received += piece


@pytest.mark.parametrize("size", [0, 100, 8 << 20])
def test_too_many_requests_are_told_so_whatever_they_carry(size: int, engine: Engine) -> None:
    """The client sends its whole body before it reads; health is told meanwhile."""
    with Endpoint(engine, connections=1) as endpoint, taken(endpoint):
        for _ in range(3):
            with connected(endpoint, head(endpoint, "POST", "/v1/completions", size) + b"x" * size) as connection:
                answer = read_all(connection)
                assert answer.startswith(b"HTTP/1.1 429 ") and b"\r\nretry-after: 1\r\n" in answer and b"\r\nConnection: close\r\n" in answer
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "rate_limit_exceeded"
        with urllib.request.urlopen(endpoint.url.removesuffix("/v1") + "/health", timeout=TIMEOUT) as health:
            assert health.status == 200


def test_a_place_is_free_as_soon_as_its_answer_is_read(engine: Engine) -> None:
    with Endpoint(engine, connections=1) as endpoint:
        for _ in range(50):
            with connected(endpoint, head(endpoint, "GET", "/v1/models")) as connection:
                assert read_answer(connection).startswith(b"HTTP/1.1 200")


def test_refusals_arrive_although_the_body_is_not_read(engine: Engine) -> None:
    """A wrong key, a body that is too large, and one in chunks."""
    body = b"x" * (4 << 20)
    with Endpoint(engine) as endpoint:
        chunked = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {endpoint.token}\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode()
        for begin, status in (
            (head(endpoint, "POST", "/v1/completions", len(body), key="wrong"), b"401"),
            (head(endpoint, "POST", "/v1/completions", len(body)), b"413"),
            (chunked, b"411"),
        ):
            with connected(endpoint, begin + body) as connection:
                assert read_all(connection).startswith(b"HTTP/1.1 " + status)


def test_no_place_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="connections=0 must be at least 1"):
        Endpoint(engine, connections=0)
