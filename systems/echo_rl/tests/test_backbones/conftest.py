"""A server on this machine that speaks every interface of the backbones, and misbehaves when told."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

WORDS = ["one ", "two ", "thr", "ee"]
TEXT = "".join(WORDS)


class Peer(ThreadingHTTPServer):
    """Answers ``TEXT``. ``faults`` are used up one per call; None is a good answer.

    They are ("limit", retry-after), ("status", code), ("answer", JSON), "drop", "half", "garbage", and "stall" (until ``go`` is set).

    ``calls`` keeps path, headers and body of every call.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: deque[Any] = deque()
        self.calls: list[tuple[str, Any, Any]] = []
        self.go = threading.Event()
        self.go.set()
        self.first_seen = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Peer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, self.headers, body))
        fault = self.server.faults.popleft() if self.server.faults else None
        self.close_connection = True
        if isinstance(fault, tuple):
            kind, value = fault
            if kind == "answer":
                return self.send(200, value)
            if kind == "limit":
                return self.send(429, {"error": {"message": "slow down"}}, {"Retry-After": value})
            return self.send(value, {"error": {"message": f"refused with {value}"}})
        if fault == "drop":
            return self.connection.shutdown(socket.SHUT_RDWR)
        if fault == "stall":
            self.server.go.wait(30)
            return self.connection.shutdown(socket.SHUT_RDWR)
        streams = bool(body.get("stream")) or "alt=sse" in self.path
        if streams:
            return self.events(body, half=fault == "half")
        data = json.dumps(self.whole(body)).encode() if fault != "garbage" else b"<html>proxy</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault == "half" else data)

    def send(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def whole(self, body: Any) -> Any:
        n = body.get("n", 1)
        if self.path.endswith("/chat/completions"):
            entries = {"content": [{"token": w, "logprob": -0.5} for w in WORDS]} if body.get("logprobs") else None
            choices = [{"index": i, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop", "logprobs": entries} for i in range(n)]
            return {"choices": choices[::-1], "usage": {"prompt_tokens": 100, "completion_tokens": 4 * n, "prompt_tokens_details": {"cached_tokens": 64}}}
        if self.path.endswith("/messages"):
            usage = {"input_tokens": 30, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10, "output_tokens": 4}
            return {"content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn", "usage": usage}
        if ":generateContent" in self.path:
            usage = {"promptTokenCount": 100, "candidatesTokenCount": 4, "cachedContentTokenCount": 64}
            return {"candidates": [{"content": {"parts": [{"text": TEXT}]}, "finishReason": "MAX_TOKENS"}], "usageMetadata": usage}
        if self.path == "/v1/completions":
            choice = {"text": TEXT, "finish_reason": "length", "token_ids": [1, 2, 3, 4], "logprobs": {"token_logprobs": [-0.1, -0.2, -0.3, -0.4]}}
            return {"choices": [{**choice, "index": i} for i in range(n)], "usage": {"prompt_tokens": 3, "completion_tokens": 4 * n}}
        if self.path == "/generate":
            meta = {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 2, "finish_reason": {"type": "length"}, "weight_version": "7"}
            meta["output_token_logprobs"] = [[-0.1 * i, i, None] for i in range(1, 5)]
            return [{"text": TEXT, "meta_info": meta}] * body["sampling_params"]["n"]
        if self.path == "/update_weights_from_disk":
            return {"success": body["model_path"] == "/weights", "message": "told"}
        return {}

    def events(self, body: Any, half: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        text = ""
        for i, word in enumerate(WORDS):
            text += word
            if self.path.endswith("/chat/completions"):
                event: Any = {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
            elif self.path.endswith("/messages"):
                event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": word}}
            elif "alt=sse" in self.path:
                event = {"candidates": [{"content": {"parts": [{"text": word}]}}]}
            elif self.path == "/generate":
                event = {"text": text, "meta_info": {"finish_reason": None}}
            else:
                event = {"choices": [{"index": 0, "text": word, "finish_reason": None}]}
            self.event(event)
            if half and i == 1:
                return self.connection.shutdown(socket.SHUT_RDWR)
            # The rest comes only when the test has seen the first piece: nothing may be held back until the end.
            self.server.go.wait(30)
        ends: dict[str, Any] = {
            "/messages": {"type": "message_stop"},
            "alt=sse": {"candidates": [{"finishReason": "STOP"}]},
            "/generate": {"text": text, "meta_info": {"finish_reason": {"type": "stop"}}},
        }
        last = next((e for part, e in ends.items() if self.path.endswith(part)), {"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]})
        self.event(last)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, event: object) -> None:
        self.chunk(b": a comment\n\ndata: " + json.dumps(event).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Yield a running server."""
    server = Peer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.go.set()
    server.shutdown()
    thread.join()
    server.server_close()
