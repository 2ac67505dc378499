"""The endpoint over plain HTTP: answers, errors, limits, garbage and clients that leave."""

from __future__ import annotations

import http.client
import json
import select
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from echo_rl.backbones.local import LocalBackbone
from echo_rl.engine import Engine, Model
from echo_rl.engine.batches import BatchEngine
from echo_rl.engine.families.generation import Generation
from echo_rl.serving import Endpoint, EngineWorker

from .conftest import CONFIG

TIMEOUT = 60


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


def call(endpoint: Endpoint, body: object, path: str = "/v1/completions", method: str = "POST", **headers: str) -> tuple[int, Any, Any]:
    port = int(endpoint.url.split(":")[2].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Authorization": f"Bearer {endpoint.token}"} | headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


def raw(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(endpoint.url.split(":")[2].split("/")[0])), timeout=TIMEOUT)


def ask(endpoint: Endpoint, **fields: Any) -> tuple[int, Any, Any]:
    return call(endpoint, {"model": "echo", "prompt": "abc", "max_tokens": 4} | fields)


def test_tokens_in_and_tokens_out(endpoint: Endpoint) -> None:
    """The log-probabilities and versions that training needs come with the tokens."""
    status, answer, _ = ask(endpoint, prompt=[5, 6, 7], logprobs=0, return_token_ids=True, seed=1)
    choice = answer["choices"][0]
    assert status == 200 and choice["prompt_token_ids"] == [5, 6, 7]
    engine = Engine(endpoint.worker.engine.model, slots=1, room=8)
    request = engine.submit([5, 6, 7], 4, seed=1)
    engine.run()
    assert choice["token_ids"] == request.output and choice["versions"] == [0] * 4
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(request.logprobs, abs=1e-4)


def test_cached_tokens_are_reported(endpoint: Endpoint) -> None:
    prompt = list(range(40))
    ask(endpoint, prompt=prompt)
    _, answer, _ = ask(endpoint, prompt=[*prompt, 1], n=3)
    # All 40 tokens of the first prompt are there: the last one was fed by its first decode.
    assert answer["usage"] == {"prompt_tokens": 41, "completion_tokens": 12, "total_tokens": 53, "prompt_tokens_details": {"cached_tokens": 40}}
    assert len({c["index"] for c in answer["choices"]}) == 3


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "gpt-9"}, 404, "does not exist; this endpoint serves 'echo'"),
        ({"model": None}, 400, "you must provide model"),
        ({"max_tokens": 0}, 400, "max_tokens=0 must be of type int of at least 1"),
        ({"max_tokens": 9999}, 400, "max_tokens=9999 exceeds the 256 new tokens that fit"),
        ({"temperature": "hot"}, 400, "temperature='hot' must be of type float between 0 and 2"),
        ({"temperature": float("nan")}, 400, "temperature=nan"),
        ({"n": True}, 400, "n=True must be of type int"),
        ({"n": 17}, 400, "n=17 must be of type int between 1 and 16"),
        ({"prompt": [[1]] * 9, "n": 2}, 400, "9 prompts with n=2 ask for 18 choices"),
        ({"prompt": []}, 400, "prompt must be a text, a list of tokens"),
        ({"prompt": ["a", 3]}, 400, "prompt must be a text, a list of tokens"),
        ({"prompt": [1, 260]}, 400, r"the model knows 0 .. 259"),
        ({"prompt": [1, -(10**30)]}, 400, r"the model knows 0 .. 259"),
        ({"prompt": "\ud800"}, 400, "surrogates not allowed"),
        ({"prompt": "a" * 600}, 400, "the prompt has 600 tokens; the context is 512"),
        ({"stop": ["a", ""]}, 400, "stop must be a text"),
        ({"logprobs": 21}, 400, "logprobs=21 must be of type int between 0 and 20"),
        ({"seed": -1}, 400, f"seed=-1 must be of type int between 0 and {2**63 - 1}"),
        ({"top_k": 5}, 400, "top_k=5 is not supported here"),
        ({"min_p": 0.1}, 400, "min_p=0.1 is not supported here"),
        ({"repetition_penalty": 1.1}, 400, "repetition_penalty=1.1 is not supported here"),
        ({"logit_bias": {"5": 3}}, 400, "logit_bias={'5': 3} is not supported here"),
        ({"guided_regex": "a+"}, 400, "unrecognized request argument supplied: guided_regex"),
        ({"stream_options": 3}, 400, "stream_options must be an object"),
    ],
)
def test_what_is_wrong_is_named(endpoint: Endpoint, fields: dict[str, Any], status: int, words: str) -> None:
    """In OpenAI's form of an error."""
    found, answer, _ = ask(endpoint, **fields)
    assert found == status and words in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("messages", [None, [], [3], [{"role": "function", "content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}]])
def test_bad_conversations(endpoint: Endpoint, messages: object) -> None:
    status, answer, _ = call(endpoint, {"model": "echo", "messages": messages}, "/v1/chat/completions")
    assert status == 400 and answer["error"]["param"].startswith("messages")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "echo", "prompt": ' + b"[" * 100_000, b"9" * 5000])
def test_bodies_that_are_no_request(endpoint: Endpoint, body: bytes) -> None:
    status, answer, _ = call(endpoint, body)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"


def test_paths_methods_and_keys(endpoint: Endpoint) -> None:
    assert call(endpoint, b"", "/v1/models", "GET")[1]["data"][0]["id"] == "echo"
    assert call(endpoint, b"", "/v1/models/echo", "GET")[1]["id"] == "echo"
    assert call(endpoint, {}, "/v1/embeddings")[0] == 404
    status, _, headers = call(endpoint, b"", "/v1/completions", "GET")
    assert status == 405 and headers["Allow"] == "POST"
    for key in ("", "Bearer", "Bearer no", f"Basic {endpoint.token}", "Bearer \xe9"):
        status, answer, headers = call(endpoint, b"", "/v1/models", "GET", Authorization=key)
        assert status == 401 and answer["error"]["code"] == "invalid_api_key" and headers["WWW-Authenticate"] == "Bearer"


def test_a_stream_for_a_client_of_http_1_0_ends_with_its_connection(endpoint: Endpoint) -> None:
    body = json.dumps({"model": "echo", "prompt": "abc", "max_tokens": 3, "stream": True}).encode()
    with raw(endpoint) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer {endpoint.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    head, _, events = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert [line[:5] for line in events.split(b"\n") if line] == [b"data:"] * len([line for line in events.split(b"\n") if line])
    assert events.endswith(b"data: [DONE]\n\n")


def test_a_connection_serves_one_request_after_another(endpoint: Endpoint) -> None:
    """Whatever a request carries, the next one on its connection is read from its beginning."""
    connection = http.client.HTTPConnection("127.0.0.1", int(endpoint.url.split(":")[2].split("/")[0]), timeout=TIMEOUT)
    key = {"Authorization": f"Bearer {endpoint.token}"}
    for method, path, body, status in (
        ("GET", "/v1/models", b"GET / HTTP/1.1", 200),
        ("POST", "/v1/nothing", b"GET / HTTP/1.1", 404),
        ("POST", "/v1/completions", b"{", 400),
        ("GET", "/v1/models", b"", 200),
    ):
        connection.request(method, path, body, key)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_a_body_that_is_too_large_is_refused_unread(engine: Engine) -> None:
    with Endpoint(engine, max_body=1000) as endpoint:
        status, answer, headers = call(endpoint, b"x" * 500_000)
        assert status == 413 and "at most 1000" in answer["error"]["message"] and headers["Connection"] == "close"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: 1\r\n" % i for i in range(200)) + b"\r\n",
        b"BREW /pot HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_garbage_is_answered_and_ends_its_connection(endpoint: Endpoint, request_bytes: bytes) -> None:
    """Others are served as before."""
    with raw(endpoint) as connection:
        connection.sendall(request_bytes)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while piece := connection.recv(65536):
                received += piece
        except ConnectionResetError:
            pass  # It was closed with bytes of ours unread.
    assert b'"error"' in received or not received
    assert b"Traceback" not in received
    assert ask(endpoint)[0] == 200


def test_a_client_that_leaves_aborts_its_requests(endpoint: Endpoint) -> None:
    """Waiting for a whole answer, or reading a stream."""
    for stream in (False, True):
        endpoint.worker.pause()
        body = json.dumps({"model": "echo", "prompt": "abc", "max_tokens": 200, "n": 4, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {endpoint.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        with raw(endpoint) as connection:
            connection.sendall(head.encode() + body)
            wait_for(lambda: endpoint.worker.stats()["waiting"] == 4)
        wait_for(lambda: endpoint.worker.stats()["waiting"] == 0)
        endpoint.worker.resume()
    assert endpoint.worker.stats()["made_tokens"] == 0


def test_too_many_requests_are_told_when_to_come_again(endpoint: Endpoint) -> None:
    worker = endpoint.worker
    worker.pause()
    streams = worker.submit([[1]] * 14, 2)
    status, answer, headers = ask(endpoint, n=3)
    assert status == 429 and int(headers["Retry-After"]) >= 1 and answer["error"]["code"] == "rate_limit_exceeded"
    worker.resume()
    assert all(s.result().finish == "length" for s in streams)
    assert ask(endpoint, n=3)[0] == 200


def test_an_engine_that_fails_is_an_error_and_not_an_answer(engine: Engine) -> None:
    with Endpoint(engine) as endpoint:
        engine.model.logits = None  # type: ignore[method-assign, assignment]
        status, answer, _ = ask(endpoint)
        assert status == 500 and answer["error"]["type"] == "server_error"
        assert ask(endpoint)[0] == 503


def test_closing_ends_what_is_under_way(engine: Engine) -> None:
    endpoint = Endpoint(engine)
    endpoint.worker.pause()
    body = json.dumps({"model": "echo", "prompt": "abc", "stream": True}).encode()
    with raw(endpoint) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {endpoint.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for(lambda: endpoint.worker.stats()["waiting"] == 1)
        endpoint.close()
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert b"[DONE]" not in received
    assert endpoint.worker.stats()["waiting"] == 0


def test_a_worker_that_others_use_outlives_the_endpoint(engine: Engine) -> None:
    with EngineWorker(engine) as worker:
        with Endpoint(worker) as endpoint:
            assert ask(endpoint)[0] == 200
        assert len(worker.submit([[1]], 3)[0].result().output) == 3


def test_what_cannot_be_served_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="host='0.0.0.0' is not of this machine's loopback; put a proxy with TLS before"):
        Endpoint(engine, host="0.0.0.0")
    with pytest.raises(ValueError, match="the token is empty"):
        Endpoint(engine, token="")
    with EngineWorker(BatchEngine(lambda states: states, slots=2)) as worker:
        with pytest.raises(ValueError, match="the worker steps a BatchEngine; an endpoint needs a worker of an Engine"):
            Endpoint(worker)
        with pytest.raises(ValueError, match="the worker steps a BatchEngine; this backbone needs a worker of an Engine"):
            LocalBackbone(worker)


def test_a_request_has_one_deadline(engine: Engine) -> None:
    """A header line now and then does not prolong it, and the connection's place is free afterwards."""
    with Endpoint(engine, connections=1, timeout=0.5) as e, socket.create_connection(e._server.server_address) as slow:
        slow.sendall(b"GET /v1/models HTTP/1.1\r\n")
        slow.settimeout(10)
        sent = 0
        while sent < 1000 and not select.select([slow], [], [], 0.05)[0]:
            slow.sendall(b"X-A: b\r\n")
            sent += 1
        try:
            assert slow.recv(1) == b""
        except ConnectionResetError:
            pass
        assert sent < 1000


def test_health_needs_no_key(endpoint: Endpoint) -> None:
    with urllib.request.urlopen(endpoint.url.removesuffix("/v1") + "/health", timeout=30) as answer:
        assert json.load(answer) == {"status": "ok"}


def test_what_asks_for_nothing_is_accepted(endpoint: Endpoint) -> None:
    """Clients of vLLM send these values, so that no default of the model's files applies."""
    plain = ask(endpoint, seed=5)[1]["choices"]
    for top_k in (-1, 0):
        assert ask(endpoint, seed=5, top_k=top_k, min_p=0.0, repetition_penalty=1.0)[1]["choices"] == plain


def test_the_models_files_limit_answers_that_name_no_limit() -> None:
    """A limit of the call holds instead, and a short context bounds both."""
    model = Model.random(CONFIG)
    model.generation = Generation(most=24)
    with Endpoint(Engine(model, slots=8, room=64, seed=3)) as endpoint:
        said = [{"role": "user", "content": "hi"}]
        for path, fields in (("/v1/completions", {"prompt": "abc"}), ("/v1/chat/completions", {"messages": said})):
            for limit, made in (({}, 24), ({"max_tokens": 40}, 40)):
                status, answer, _ = call(endpoint, {"model": "echo", **fields, **limit}, path)
                assert status == 200 and answer["usage"]["completion_tokens"] == made
        assert ask(endpoint, prompt="a" * 502, max_tokens=None)[1]["usage"]["completion_tokens"] == 10
