"""OpenEnv's protocol, both ends of it ours: episodes over the wire, and servers and clients that break every rule.

test_openenv_real.py has the real package.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl.environments import EnvironmentFailure, make_environment
from echo_rl.environments.adapters.openenv import OpenEnvServer
from echo_rl.environments.adapters.openenv.websocket import WebSocket, WebSocketError, accepted

SCHEMA = {"action": {"properties": {"action": {"type": "string"}, "metadata": {}}, "required": ["action"]}}
SEEN = {"type": "observation", "data": {"observation": {"observation": "a room"}, "reward": None, "done": False}}


@pytest.fixture
def alfworld() -> Iterator[OpenEnvServer]:
    with OpenEnvServer(partial(make_environment, "alfworld", max_steps=6), token="secret") as server:
        yield server


def test_an_episode_over_the_wire_is_that_of_the_environment(alfworld: OpenEnvServer) -> None:
    far, near = make_environment(f"openenv:{alfworld.url}", token="secret"), make_environment("alfworld", max_steps=6)
    ends = set()
    for seed in range(6):
        assert far.reset(seed) == near.reset(seed)
        while True:
            assert far.admissible == near.admissible
            command = near.environment.solve() if seed % 2 else "look"  # type: ignore[attr-defined]
            seen, shown = far.step(command), near.step(command)
            assert seen._replace(info={}) == shown._replace(info={}) and seen.info["success"] == shown.info["success"]
            if shown.terminated or shown.truncated:
                ends.add((shown.terminated, shown.truncated))
                break
    assert ends == {(True, False), (False, True)}
    far.close()


@pytest.mark.needs("gymnasium")
def test_numbers_and_arrays() -> None:
    with OpenEnvServer(partial(make_environment, "gym:CartPole-v1")) as server, OpenEnvServer(partial(make_environment, "gym:Pendulum-v1")) as second:
        far, near = make_environment(f"openenv:{server.url}"), make_environment("gym:CartPole-v1")
        assert np.array_equal(far.reset(5), near.reset(5))
        seen, shown = far.step(np.int64(1)), near.step(1)
        assert np.array_equal(seen.observation, shown.observation) and seen.observation.dtype == np.float32 and seen.reward == 1.0
        for wrong in ("left", 2, -1, True, [1]):
            refused = far.step(wrong)
            assert refused.info["invalid"] and refused.reward == 0 and np.array_equal(refused.observation, seen.observation)
        assert np.array_equal(far.step(0).observation, near.step(0).observation)
        far.close()
        far, near = make_environment(f"openenv:{second.url}"), make_environment("gym:Pendulum-v1")
        assert np.allclose(far.reset(5), near.reset(5)) and far.step([[1.0, 2.0]]).info["invalid"]
        assert far.step(np.ones(1)).reward == pytest.approx(near.step(np.ones(1, np.float32)).reward)
        far.close()


def test_steps_are_bounded_here_too(alfworld: OpenEnvServer) -> None:
    far = make_environment(f"openenv:{alfworld.url}", token="secret", max_steps=2)
    far.reset(0)
    assert [far.step("look").truncated for _ in range(2)] == [False, True]
    far.close()


def test_sessions_are_apart_and_counted() -> None:
    with OpenEnvServer(partial(make_environment, "digits"), sessions=2) as server:
        first, second, third = (make_environment(f"openenv:{server.url}") for _ in range(3))
        one, two = first.reset(1), second.reset(2)
        with pytest.raises(EnvironmentFailure, match="all 2 sessions are taken"):
            third.reset(3)
        answers = ["".join(sorted(text[:-1])) for text in (one, two)]
        assert one != two and first.step(answers[0]).info["success"] and second.step(answers[1]).info["success"]
        first.close()
        second.close()


def get(url: str, data: bytes | None = None, **headers: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_paths_of_http(alfworld: OpenEnvServer) -> None:
    url, key = alfworld.url, {"Authorization": "Bearer secret"}
    assert get(f"{url}/health") == (200, {"status": "healthy"})
    for path in ("/schema", "/metadata", "/state", "/openapi.json"):
        assert get(url + path)[0] == 401 and get(url + path, Authorization="Bearer secre")[0] == 401
        assert get(url + path, **key)[0] == 200 and get(url + path, **key, Origin="http://evil.example")[0] == 403
    assert get(f"{url}/metadata", **key)[1]["name"] == "alfworld"
    status, begun = get(f"{url}/reset", b'{"seed": 3}', **key)
    near = make_environment("alfworld", max_steps=6)
    assert status == 200 and begun["observation"]["observation"] == near.reset(3) and begun["metadata"]["admissible"] == near.admissible
    assert get(f"{url}/reset", b'{"seed": -3}', **key)[0] == 422 and get(f"{url}/reset", b"[1]", **key)[0] == 400 and get(f"{url}/reset", b"{", **key)[0] == 400
    status, refused = get(f"{url}/step", b'{"action": {"action": "look"}}', **key)
    assert status == 409 and refused == {"detail": "a step needs a session, and HTTP has none: open a WebSocket at /ws"}
    assert get(f"{url}/mcp", b"{}", **key)[1]["jsonrpc"] == "2.0" and get(f"{url}/other", **key)[0] == 404 and get(f"{url}/other", b"{}", **key)[0] == 404
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(b"POST /reset HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 9999999\r\n\r\n")
        with connection.makefile("rb") as answer:
            assert b"at most 1048576 bytes" in answer.read()


class Raw:
    """A client that sends what it is told to."""

    def __init__(self, server: OpenEnvServer, most: int = 1 << 20) -> None:
        self.connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)
        self.connection.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a\r\n\r\n")
        self.incoming = self.connection.makefile("rb")
        lines = list(iter(self.incoming.readline, b"\r\n"))
        assert lines[0].split()[1] == b"101" and f"Sec-WebSocket-Accept: {accepted('a')}\r\n".encode() in lines
        self.socket = WebSocket(self.connection, self.incoming, client=True, most=most)

    def ask(self, text: str) -> dict[str, Any]:
        self.socket.send(text)
        answer: dict[str, Any] = json.loads(self.socket.receive() or "null")
        return answer

    def closed(self) -> int:
        """The code with which the server closes."""
        head = self.incoming.read(4)
        assert head[0] == 0x88 and self.incoming.read(1) == b""
        return int.from_bytes(head[2:], "big")

    def close(self) -> None:
        self.socket.close()
        self.incoming.close()


@pytest.fixture
def digits() -> Iterator[OpenEnvServer]:
    with OpenEnvServer(partial(make_environment, "digits"), max_bytes=1 << 12) as server:
        yield server


@pytest.fixture
def raw(digits: OpenEnvServer) -> Iterator[Raw]:
    client = Raw(digits)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ('{"type": "step", "data": {"action": NaN}}', "INVALID_JSON"),
        ("[" * 4000, "INVALID_JSON"),
        ("[]", "UNKNOWN_TYPE"),
        ('{"type": "dance"}', "UNKNOWN_TYPE"),
        ('{"type": "reset", "data": [1]}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": 1.5}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"episode_id": 7}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"answer": "1"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": "1"}}', "EXECUTION_ERROR"),
    ],
)
def test_a_wrong_message_is_answered_and_the_session_goes_on(raw: Raw, message: str, code: str) -> None:
    answer = raw.ask(message)
    assert answer["type"] == "error" and answer["data"]["code"] == code and answer["data"]["message"]
    assert raw.ask('{"type": "reset", "data": {"seed": 1, "episode_id": "one"}}')["type"] == "observation"
    assert raw.ask('{"type": "step", "data": {"action": 7}}')["data"]["code"] == "VALIDATION_ERROR"
    assert raw.ask('{"type": "step", "data": {"action": "7", "metadata": {}}}')["data"]["done"] is True
    assert raw.ask('{"type": "state"}') == {"type": "state", "data": {"episode_id": "one", "step_count": 1}}
    raw.socket.send('{"type": "close"}')
    assert raw.closed() == 1000


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\x02{}", 1002),  # not masked
        (b"\x82\x80aaaa", 1002),  # binary
        (b"\xc1\x80aaaa", 1002),  # compressed
        (b"\x80\x80aaaa", 1002),  # a continuation of nothing
        (b"\x01\x80aaaa\x81\x80aaaa", 1002),  # a message within another
        (b"\x89\xfe\x00\x80aaaa", 1002),  # a long ping
        (b"\x81\xff" + struct.pack("!Q", 1 << 62) + b"aaaa", 1009),
        (b"\x01\xfe\x10\x00aaaa" + b"a" * 4096 + b"\x80\x81aaaab", 1009),  # too large in two parts
        (b"\x81\x81aaaa" + bytes([ord("a") ^ 0xFF]), 1007),  # not UTF-8
    ],
)
def test_a_broken_frame_ends_the_session(raw: Raw, frame: bytes, code: int) -> None:
    raw.connection.sendall(frame)
    assert raw.closed() == code


def test_a_client_that_leaves_frees_its_place() -> None:
    closed = threading.Event()

    class Closing:
        def reset(self, seed: int) -> str:
            return "go"

        def step(self, action: Any) -> Any:
            return "x", float("inf"), False, False, {}

        def close(self) -> None:
            closed.set()

    from echo_rl.environments import CheckedEnvironment

    with OpenEnvServer(lambda: CheckedEnvironment(Closing(), "closing"), sessions=1) as server:
        closed.clear()
        client = Raw(server)
        client.ask('{"type": "reset", "data": {"seed": 1}}')
        assert "a reward has to be finite" in client.ask('{"type": "step", "data": {"action": "1"}}')["data"]["message"]
        client.close()
        assert closed.wait(60)


@pytest.mark.parametrize("fault", [{"host": "0.0.0.0"}, {"host": "example.com"}, {"token": ""}, {"sessions": 0}])
def test_a_server_refuses(fault: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fault))):
        OpenEnvServer(partial(make_environment, "digits"), **fault)


@pytest.mark.parametrize(
    ("url", "options", "fault"),
    [
        ("ftp://127.0.0.1", {}, "url must be an address"),
        ("http://", {}, "url must be an address"),
        ("http://user:word@127.0.0.1", {}, "url must have no user"),
        ("http://127.0.0.1/?a=1", {}, "url must have no user, query"),
        ("http://127.0.0.1\r\nX: y", {}, "url must have no"),
        ("http://example.com", {"token": "secret"}, "token would be sent unencrypted"),
        ("http://127.0.0.1", {"token": "a\nb"}, "token must be"),
        ("http://127.0.0.1", {"timeout": 0}, "timeout must be"),
        ("http://127.0.0.1", {"max_bytes": 1}, "max_bytes must be"),
        ("http://127.0.0.1", {"max_steps": 0}, "max_steps must be"),
        ("http://127.0.0.1", {"steps": 1}, "no option steps; its options are url, token"),
        ("http://127.0.0.1", {"url": "x"}, "leave the option url out"),
    ],
)
def test_a_wrong_setting_is_named(url: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as raised:
        make_environment(f"openenv:{url}", **options)
    assert "secret" not in str(raised.value) and "word" not in str(raised.value)


class Hostile:
    """A server whose schema and whose sessions are functions of a connection."""

    def __init__(self, session: Callable[[WebSocket], object], schema: Callable[[socket.socket], object], context: ssl.SSLContext | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._session, self._schema, self._context = session, schema, context
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection = self._listener.accept()[0]
            if self.over.is_set():
                connection.close()
                return
            try:
                if self._context is not None:
                    connection = self._context.wrap_socket(connection, server_side=True)
                with connection, connection.makefile("rb") as incoming:
                    self._one(connection, incoming)
            except (OSError, WebSocketError):
                connection.close()

    def _one(self, connection: socket.socket, incoming: Any) -> None:
        lines = [line.decode() for line in iter(incoming.readline, b"\r\n") if line]
        if not lines or "/ws " not in lines[0]:
            self._schema(connection)
            return
        key = next(line.split(": ")[1].strip() for line in lines if line.startswith("Sec-WebSocket-Key"))
        connection.sendall(f"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accepted(key)}\r\n\r\n".encode())
        wire = WebSocket(connection, incoming, client=False, most=1 << 20)
        self._session(wire)
        wire.receive()  # until the client leaves

    def close(self) -> None:
        self.over.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listener.close()


def body(data: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)


def good_schema(connection: socket.socket) -> None:
    connection.sendall(body(json.dumps(SCHEMA).encode()))


def answering(*answers: object) -> Callable[[WebSocket], None]:
    def session(wire: WebSocket) -> None:
        for answer in answers:
            if wire.receive() is None:
                return
            wire.send(answer if isinstance(answer, str) else json.dumps(answer))

    return session


@pytest.fixture
def hostile() -> Iterator[Callable[..., Hostile]]:
    servers: list[Hostile] = []

    def made(*arguments: Any, **options: Any) -> Hostile:
        servers.append(Hostile(*arguments, **options))
        return servers[-1]

    yield made
    for server in servers:
        server.close()


def seen(**changes: object) -> dict[str, Any]:
    return {"type": "observation", "data": {**SEEN["data"], **changes}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("no", "the answer is no JSON"),
        ('{"type": "observation", "data": {"observation": {"o": "x"}, "reward": NaN, "done": false}}', "NaN is not a number of JSON"),
        ('{"type": "observation", "data": {"observation": {"o": "x"}, "reward": 1e999, "done": false}}', "the reward has to be a finite number, not inf"),
        (f'{{"type": "observation", "data": {{"observation": {{}}, "reward": 1{"0" * 400}}}}}', "the reward has to be a finite number"),
        (seen(reward="1"), "the reward has to be a finite number, not '1'"),
        (seen(done=1), "the answer is no observation"),
        (seen(observation="text"), "the answer is no observation"),
        ('{"type": "observation", "data": {"observation": {"o": [1, 1e999]}}}', "numbers that are not finite"),
        ([1], "no type and data"),
        ({"type": "state", "data": {}}, "the answer is no observation"),
        ("[" * 100_000, "nested too deeply"),
        ({"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "broken"}}, "answers EXECUTION_ERROR: broken"),
        ("x" * 5000, "a message has more than 4096 bytes"),
    ],
)
def test_a_bad_answer_is_named_and_the_next_reset_begins_anew(hostile: Callable[..., Hostile], answer: object, fault: str) -> None:
    server = hostile(answering(SEEN, answer), good_schema)
    far = make_environment(f"openenv:http://127.0.0.1:{server.port}", max_bytes=4096 if isinstance(answer, str) and len(answer) == 5000 else 1 << 20)
    assert far.reset(0) == "a room"
    with pytest.raises(EnvironmentFailure, match=fault):
        far.step("go")
    assert far.reset(0) == "a room"
    far.close()


def drip(connection: socket.socket, over: threading.Event) -> None:
    """A byte now and then, for ever."""
    try:
        while not over.wait(0.02):
            connection.sendall(b"x")
    except OSError:
        pass  # The client has had enough.


@pytest.mark.parametrize("where", ["schema", "head", "answer", "nothing"])
def test_slow_servers_run_out_of_time(hostile: Callable[..., Hostile], where: str) -> None:
    def schema(connection: socket.socket) -> None:
        if where in ("schema", "head"):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: " if where == "head" else b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
            drip(connection, server.over)
        else:
            good_schema(connection)

    def session(wire: WebSocket) -> None:
        wire.receive()
        if where == "answer":
            wire._connection.sendall(b"\x81\x7e\x40\x00")
            drip(wire._connection, server.over)

    server = hostile(session, schema)
    with pytest.raises(EnvironmentFailure, match="has not been answered in time; raise timeout"):
        make_environment(f"openenv:http://127.0.0.1:{server.port}", timeout=0.3).reset(0)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n", "is a redirect .302., which is never followed"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "status 401: the token is missing or wrong"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "no OpenEnv server at this address"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "the answer has status 500"),
        (b"SSH-2.0-server\r\n", "SSH-2.0-server"),
        (b"", "/schema"),
        (body(b"<html>"), "the answer is no JSON"),
        (body(b"[]"), "/schema describes no action"),
        (body(b'{"action": {"properties": 7}}'), "/schema describes no action"),
        (body(b"x" * 2000), "more than 1024 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "ends in the middle"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200, "headers"),
    ],
)
def test_a_bad_schema_is_named(hostile: Callable[..., Hostile], answer: bytes, fault: str) -> None:
    server = hostile(answering(), lambda connection: connection.sendall(answer))
    with pytest.raises(EnvironmentFailure, match=fault):
        make_environment(f"openenv:http://127.0.0.1:{server.port}", max_bytes=1024).reset(0)


def test_a_redirect_of_the_session_is_not_followed(hostile: Callable[..., Hostile]) -> None:
    server = hostile(answering(), good_schema)
    server._one = lambda connection, incoming: (  # type: ignore[method-assign]
        good_schema(connection)
        if b"/schema" in b"".join(iter(incoming.readline, b"\r\n"))
        else connection.sendall(b"HTTP/1.1 307 Go\r\nLocation: ws://example.com/ws\r\n\r\n")
    )
    with pytest.raises(EnvironmentFailure, match="/ws: the answer is a redirect .307."):
        make_environment(f"openenv:http://127.0.0.1:{server.port}").reset(0)


def test_pings_are_answered_between_two_steps(hostile: Callable[..., Hostile]) -> None:
    answered = threading.Event()

    def session(wire: WebSocket) -> None:
        answering(SEEN)(wire)
        wire._connection.sendall(b"\x89\x04ping")
        assert wire._incoming.read(2) == b"\x8a\x84"  # a masked pong, before the client sends anything else
        wire._incoming.read(8)
        answered.set()
        answering(seen(done=True, reward=1))(wire)

    server = hostile(session, good_schema)
    far = make_environment(f"openenv:http://127.0.0.1:{server.port}")
    far.reset(0)
    assert answered.wait(60) and far.step("go").reward == 1.0
    far.close()


def test_an_answer_to_nothing_is_not_taken_for_the_next_one(hostile: Callable[..., Hostile]) -> None:
    sent = threading.Event()

    def session(wire: WebSocket) -> None:
        answering(SEEN)(wire)
        wire.send(json.dumps(seen(reward=9)))
        sent.set()

    server = hostile(session, good_schema)
    far = make_environment(f"openenv:http://127.0.0.1:{server.port}")
    far.reset(0)
    assert sent.wait(60)
    environment: Any = far.environment
    environment._session._thread.join(60)
    with pytest.raises(EnvironmentFailure, match="a message that nobody asked for"):
        far.step("go")


def test_fields_are_chosen(hostile: Callable[..., Hostile]) -> None:
    heard: list[Any] = []

    def session(wire: WebSocket) -> None:
        while (text := wire.receive()) is not None:
            heard.append(json.loads(text)["data"])
            wire.send(json.dumps(seen(observation={"board": [[0, 1]], "turn": "x", "metadata": {"success": True}}, reward=0.5)))

    schema = {"action": {"properties": {"row": {}, "column": {}, "note": {}, "metadata": {}}, "required": ["row", "column"]}}
    server = hostile(session, lambda connection: connection.sendall(body(json.dumps(schema).encode())))
    url = f"openenv:http://127.0.0.1:{server.port}"
    far = make_environment(url, reset={"split": "test"})
    assert json.loads(far.reset(4)) == {"board": [[0, 1]], "turn": "x"}
    assert far.step('{"row": 1, "column": 2}').info == {"success": True} and far.step({"row": 3}).reward == 0.5
    assert far.step("the middle").info["invalid"] and heard == [{"split": "test", "seed": 4}, {"row": 1, "column": 2}, {"row": 3}]
    far.close()
    far = make_environment(url, action_field="note", observation_field="board")
    assert np.array_equal(far.reset(0), [[0, 1]]) and far.step("a") and heard[-1] == {"note": "a"}
    far.close()
    with pytest.raises(EnvironmentFailure, match="no field action_field='cell'; they have row, column, note"):
        make_environment(url, action_field="cell").reset(0)
    with pytest.raises(EnvironmentFailure, match="no field observation_field='view'; it has board, turn"):
        make_environment(url, observation_field="view").reset(0)


def test_over_tls_only_with_a_certificate_that_is_trusted(hostile: Callable[..., Hostile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = hostile(answering(SEEN), good_schema, context=context)
    url = f"openenv:https://localhost:{server.port}"
    with pytest.raises(EnvironmentFailure, match="certificate verify failed"):
        make_environment(url, token="secret").reset(0)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    far = make_environment(url, token="secret")
    assert far.reset(0) == "a room"
    far.close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    import datetime

    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - datetime.timedelta(1), now + datetime.timedelta(1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    (folder / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"
