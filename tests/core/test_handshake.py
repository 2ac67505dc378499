"""Both ends of the handshake against each other and against what strangers send."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core.errors import EchoError, HandshakeRefused, ProtocolError, SecurityError, SpecError
from echo_core.handshake import ClientHandshake, ServerHandshake
from echo_core.handshake.messages import LIMIT_AFTER, LIMIT_BEFORE, MESSAGE, Message
from echo_core.security import EVERYTHING, find_tokens
from echo_core.spec import Spec

SPEC = Spec.from_example({"obs": np.zeros(4, np.float32), "reward": np.float32(0)})
OTHER = Spec.from_example({"obs": np.zeros(4, np.float64), "reward": np.float32(0)})
TOKEN = b"a secret"
CLIENT = "c" * 32
INCARNATION = "5" * 32


def server(spec: Spec = SPEC, tokens: tuple[bytes, ...] = (TOKEN,), **options: Any) -> ServerHandshake:
    return ServerHandshake(spec, tokens, INCARNATION, **options)


def client(spec: Spec = SPEC, token: bytes | None = TOKEN, **options: Any) -> ClientHandshake:
    return ClientHandshake(spec, token, CLIENT, **options)


def message(kind: int, body: Any, version: int = 2, reserved: int = 0) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return MESSAGE.pack(b"ECHO", version, kind, reserved, len(text)) + text


def body_of(data: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(data[MESSAGE.size :])
    return body


def talk(c: ClientHandshake, s: ServerHandshake) -> tuple[EchoError | None, EchoError | None]:
    """Pass bytes to and fro until both are done or have failed: (client's error, server's)."""
    ours: EchoError | None = None
    theirs: EchoError | None = None
    to_server = c.start()
    while to_server and not (c.done and s.done):
        try:
            to_client = s.receive(to_server)
        except EchoError as error:
            theirs, to_client = error, s.refusal
        try:
            to_server = c.receive(to_client)
        except EchoError as error:
            return error, theirs
    return ours, theirs


# ----------------------------------------------------------------------------------- agreement


@pytest.mark.parametrize("tokens", [(), (TOKEN,), (b"older", TOKEN), (TOKEN, b"newer")])
def test_both_ends_agree(tokens: tuple[bytes, ...]) -> None:
    c, s = client(token=TOKEN if tokens else None, base=17, name="w0"), server(tokens=tokens)
    assert talk(c, s) == (None, None)
    assert c.done and s.done and c.leftover == s.leftover == s.refusal == b""
    assert c.peer == {"server": INCARNATION, "auth": "token" if tokens else "none"}
    assert s.peer["client"] == CLIENT and s.peer["base"] == 17 and s.peer["name"] == "w0"
    assert s.peer["pid"] == os.getpid() and s.peer["role"] == "worker"


def test_the_token_never_travels() -> None:
    c, s = client(), server()
    heard = hello = c.start()
    heard += (challenge := s.receive(hello))
    heard += (proof := c.receive(challenge))
    heard += (welcome := s.receive(proof))
    heard += (spec := c.receive(welcome))
    heard += s.receive(spec)
    assert TOKEN not in heard and TOKEN.hex().encode() not in heard


def test_names_of_strangers_cannot_control_a_terminal() -> None:
    s = server()
    hello = body_of(client().start()) | {"name": "\x1b[2Jx" + "y" * 999, "host": 3, "pid": "4"}
    s.receive(message(1, hello))
    assert s.peer["name"].startswith("?[2Jxyyy") and len(s.peer["name"]) == 128
    assert s.peer["host"] == "3" and s.peer["pid"] == 0


@given(st.data())
def test_any_split_of_the_bytes_gives_the_same_result(data: st.DataObject) -> None:
    c, s = client(), server()
    beyond = b"frames of the worker", b"frames of the learner"
    pending, ends = {s: c.start(), c: b""}, {s: c, c: s}
    while pending[s] or pending[c]:
        for end in (s, c):
            n = data.draw(st.integers(0, len(pending[end])), label="bytes")
            if not n and not pending[ends[end]]:
                n = len(pending[end])
            portion, pending[end] = pending[end][:n], pending[end][n:]
            was_done = end.done
            pending[ends[end]] += end.receive(portion)
            if end.done and not was_done:
                pending[ends[end]] += beyond[end is s]
    assert c.done and s.done
    assert s.leftover == beyond[0] and c.leftover == beyond[1]


def test_bytes_beyond_the_handshake_are_left_over() -> None:
    c, s = client(), server()
    to_client = s.receive(c.receive(s.receive(c.receive(s.receive(c.start())))) + b"frames")
    assert s.leftover == b"frames"
    c.receive(to_client + b"more frames")
    assert c.done and c.leftover == b"more frames"
    c.receive(b", and more")
    assert c.leftover == b"more frames, and more"


# -------------------------------------------------------------------------------- authentication


def test_a_wrong_token_is_refused_with_the_way_out() -> None:
    ours, theirs = talk(client(token=b"wrong", name="w3"), server())
    assert isinstance(theirs, SecurityError) and "'w3'" in str(theirs)
    assert isinstance(ours, SecurityError) and "ECHO_TOKEN" in str(ours)


def test_a_worker_without_a_token_says_so_itself() -> None:
    ours, theirs = talk(client(token=None), server())
    assert theirs is None
    assert isinstance(ours, SecurityError) and "asks for a token" in str(ours)


def test_a_worker_with_a_token_refuses_a_learner_that_asks_for_none() -> None:
    ours, _ = talk(client(), server(tokens=()))
    assert isinstance(ours, SecurityError) and "it may be anybody" in str(ours)
    assert talk(client(allow_unauthenticated=True), server(tokens=())) == (None, None)


def test_a_learner_that_does_not_know_the_token_is_found_out() -> None:
    impostor = server(tokens=(b"guess",))
    c = client()
    challenge = impostor.receive(c.start())
    proof = c.receive(challenge)
    with pytest.raises(SecurityError):
        impostor.receive(proof)
    for mac in ("", "0" * 64, body_of(proof)["mac"], "\ud800"):
        c = client()
        c.receive(server().receive(c.start()))
        with pytest.raises(SecurityError, match="could not prove"):
            c.receive(message(4, {"mac": mac, "spec": SPEC.to_json()}))


def test_a_recorded_proof_is_worth_nothing() -> None:
    c, s = client(), server()
    hello = c.start()
    proof = c.receive(s.receive(hello))
    s.receive(proof)  # this one was let in
    again = server()
    again.receive(hello)
    with pytest.raises(SecurityError):
        again.receive(proof)


def test_the_learners_proof_cannot_be_sent_back_to_it() -> None:
    s = server()
    c = client()
    hello = c.start()
    challenge = s.receive(hello)
    welcome = body_of(s.receive(c.receive(challenge)))
    thief = server()
    thief.receive(hello)
    with pytest.raises(SecurityError):
        thief.receive(message(3, {"mac": welcome["mac"]}))


def test_a_changed_byte_in_between_is_noticed() -> None:
    c, s = client(), server()
    hello = body_of(c.start())
    challenge = s.receive(message(1, hello | {"base": 1_000_000}))
    with pytest.raises(SecurityError):
        s.receive(c.receive(challenge))


@pytest.mark.parametrize("auth", ["tls", "", "TOKEN", "\x1b[0m"])
def test_unknown_authentication_is_refused(auth: str) -> None:
    c = client()
    c.start()
    with pytest.raises(SecurityError, match="unknown authentication"):
        c.receive(message(2, {"server": INCARNATION, "nonce": "0" * 64, "auth": auth}))


# -------------------------------------------------------------------------------------- the spec


def test_another_spec_is_refused_at_both_ends_naming_the_leaf() -> None:
    ours, theirs = talk(client(OTHER, name="w7"), server())
    assert isinstance(ours, SpecError) and isinstance(theirs, SpecError)
    for error in (ours, theirs):
        assert "obs" in str(error) and "float32" in str(error) and "float64" in str(error)
    assert "'w7'" in str(theirs)
    mine, learners = str(ours).split(" here ")
    assert "float64" in mine and "float32" in learners and "at the learner" in learners
    mine, workers = str(theirs).split(" here ")
    assert "float32" in mine and "float64" in workers and "at the worker" in workers


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"leaves": 3, "structure": 0},
        {"leaves": [{"path": "obs", "shape": [-1], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "obs", "shape": [1 << 61, 1 << 61], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "obs", "shape": [4], "dtype": "O"}], "structure": 0},
        {"leaves": [{"path": "obs", "shape": [4], "dtype": [[1]]}], "structure": 0},
        {"leaves": [{}] * 5000, "structure": 0},
        {"leaves": [], "structure": json.loads("[" * 200 + "]" * 200)},
    ],
)
def test_a_spec_that_is_none_is_refused_at_either_end(spec: dict[str, Any]) -> None:
    c, s = client(), server()
    s.receive(c.receive(s.receive(c.start())))
    with pytest.raises((SpecError, ProtocolError)):
        s.receive(message(5, {"spec": spec}))
    c = client(token=None)
    c.receive(server(tokens=()).receive(c.start()))
    to_server = c.receive(message(4, {"mac": "", "spec": spec}))
    assert body_of(to_server) == {"spec": SPEC.to_json()}  # so that the learner can say why too
    with pytest.raises(SpecError, match="learner"):
        c.receive(message(6, {}))


def test_a_spec_too_large_to_describe_is_refused_where_it_is_used() -> None:
    big = Spec.from_example({f"{i:04}" * 99: np.zeros(1, np.int8) for i in range(3000)})
    with pytest.raises(SpecError, match="fewer leaves"):
        server(big)
    with pytest.raises(SpecError, match="fewer leaves"):
        client(big)


def test_a_large_spec_travels() -> None:
    big = Spec.from_example({f"key {i:0100}": np.zeros((i, 2), np.int8) for i in range(1, 3000)})
    assert talk(client(big), server(big)) == (None, None)


# ------------------------------------------------------------------------------ what else may come


@pytest.mark.parametrize("code", ["busy", "shutdown", "role", "version", "no such code"])
def test_a_refusal_reaches_the_worker_with_its_code(code: str) -> None:
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused, match="come back later") as caught:
        c.receive(server().refuse(code, "come back later"))
    assert caught.value.code == code


def test_a_refusal_ends_the_handshake() -> None:
    s = server()
    assert s.refuse("busy", "too many") == s.refusal
    with pytest.raises(ProtocolError, match="failed already"):
        s.receive(client().start())


def test_a_role_that_is_not_served_is_refused() -> None:
    ours, theirs = talk(client(role="learner"), server())
    assert isinstance(ours, HandshakeRefused) and ours.code == "role"
    assert "worker" in str(ours) and isinstance(theirs, ProtocolError)
    assert talk(client(role="learner"), server(roles=("worker", "learner"))) == (None, None)


def test_a_token_gives_the_roles_it_has_at_the_learner() -> None:
    tokens = tuple(find_tokens(["the key of everything", "write:the key of workers", "read:the key of readers"]))
    for role, token, held in [
        ("worker", tokens[0], EVERYTHING),
        ("worker", tokens[1], {"write"}),
        ("observer", tokens[1], {"write"}),
        ("observer", tokens[2], {"read"}),
    ]:
        s = server(tokens=tokens)
        assert talk(client(role=role, token=token), s) == (None, None)
        assert s.peer["permissions"] == held
    # What a worker says of its own token does not count.
    (promoted,) = find_tokens("admin:the key of readers")
    ours, theirs = talk(client(token=promoted, name="w9"), server(tokens=tokens))
    for error in (ours, theirs):
        assert isinstance(error, SecurityError) and "a worker needs a token for write, this one is for read" in str(error)
    open_to_all = server(tokens=())
    assert talk(client(token=None), open_to_all) == (None, None)
    assert open_to_all.peer["permissions"] == EVERYTHING


@pytest.mark.parametrize("theirs", [0, 1, 3, 255])
def test_another_version_is_refused_at_both_ends(theirs: int) -> None:
    s = server()
    with pytest.raises(ProtocolError, match=f"protocol {theirs}, this end speaks 2"):
        s.receive(message(1, {}, version=theirs))
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused, match=f"not {theirs}; install the same") as caught:
        c.receive(s.refusal)
    assert caught.value.code == "version"
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused, match=f"protocol {theirs}") as caught:
        c.receive(message(2, {}, version=theirs))
    assert caught.value.code == "version"


def test_the_refusal_of_a_newer_version_is_understood() -> None:
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused, match="buy a newer one"):
        c.receive(message(7, {"code": "version", "text": "buy a newer one"}, version=3))


def test_the_original_protocol_is_recognised() -> None:
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused, match="echo1"):
        c.receive(b"ECHO\x01\x07\x00\x00\x00\x04\x00\x00\x00")  # of seven arrays


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0", b"ECHQ", b"echo", b"\x16\x03\x01", b"E\0"])
def test_garbage_is_refused_at_its_first_byte(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not speak Echo"):
        server().receive(data)
    c = client()
    c.start()
    with pytest.raises(ProtocolError, match="does not speak Echo"):
        c.receive(data)


def test_too_long_a_message_is_refused_by_its_header() -> None:
    header = MESSAGE.pack(b"ECHO", 2, Message.HELLO, 0, LIMIT_BEFORE + 1)
    with pytest.raises(ProtocolError, match="4097 bytes, more than 4096"):
        server().receive(header)
    c, s = client(), server()
    s.receive(c.receive(s.receive(c.start())))
    with pytest.raises(ProtocolError, match="more than"):
        s.receive(MESSAGE.pack(b"ECHO", 2, Message.SPEC, 0, LIMIT_AFTER + 1))
    c = client()
    c.start()
    with pytest.raises(ProtocolError, match="CHALLENGE of 4294967295 bytes"):
        c.receive(MESSAGE.pack(b"ECHO", 2, Message.CHALLENGE, 0, (1 << 32) - 1))


def test_nothing_is_kept_of_a_message_that_cannot_come() -> None:
    s = server()
    with pytest.raises(ProtocolError, match="message 5 where HELLO was due"):
        s.receive(MESSAGE.pack(b"ECHO", 2, Message.SPEC, 0, LIMIT_AFTER) + bytes(100))
    with pytest.raises(ProtocolError, match="failed already"):
        s.receive(client().start())


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 5, 6, 7, 8, 255])
def test_a_learner_takes_messages_in_order_only(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"message {kind} where HELLO was due"):
        server().receive(message(kind, {}))


def test_the_reserved_field_is_zero() -> None:
    with pytest.raises(ProtocolError):
        server().receive(message(1, {}, reserved=1))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{", b"\xff", b'{"client":', b"[" * 4096, b'{"a":' * 800, b"9" * 4096],
)
def test_a_message_that_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="HELLO message"):
        server().receive(message(1, text))


@pytest.mark.parametrize(
    "change",
    [
        {"client": "x" * 32},
        {"client": "c" * 31},
        {"client": "c" * 32 + "\n"},
        {"client": 5},
        {"client": None},
        {"role": []},
        {"nonce": "ab"},
        {"base": -1},
        {"base": 1 << 63},
        {"base": True},
        {"base": 1.0},
        {"base": "0"},
    ],
)
def test_a_hello_with_a_bad_field_is_refused(change: dict[str, Any]) -> None:
    hello = body_of(client().start()) | change
    with pytest.raises(ProtocolError, match=f"'{next(iter(change))}'"):
        server().receive(message(1, hello))


@pytest.mark.parametrize("missing", ["client", "role", "nonce", "base"])
def test_a_hello_without_a_field_is_refused(missing: str) -> None:
    hello = body_of(client().start())
    del hello[missing]
    with pytest.raises(ProtocolError, match=f"'{missing}'"):
        server().receive(message(1, hello))


def test_fields_that_nobody_knows_yet_are_ignored() -> None:
    s = server(tokens=())
    hello = body_of(client().start()) | {"compression": ["zstd"]}
    assert body_of(s.receive(message(1, hello)))["auth"] == "none"


@given(st.binary(max_size=300), st.integers(0, 3))
def test_whatever_comes_is_an_echo_error_or_waits_for_more(data: bytes, steps: int) -> None:
    c, s = client(), server()
    to_server = c.start()
    for _ in range(steps):
        to_client = s.receive(to_server)
        to_server = c.receive(to_client)
    for end in (c, s):
        if not end.done:
            try:
                end.receive(data)
            except EchoError:
                with pytest.raises(ProtocolError):
                    end.receive(b"")


@given(st.integers(0, 2), st.integers(0, 1 << 16), st.integers(1, 255))
def test_a_damaged_message_lets_nobody_in(victim: int, where: int, change: int) -> None:
    """One bit or more of one byte of HELLO, CHALLENGE or PROOF is changed on the way."""
    c, s = client(), server()

    def carry(number: int, data: bytes) -> bytes:
        if number != victim or not data:
            return data
        damaged = bytearray(data)
        damaged[where % len(data)] ^= change
        return bytes(damaged)

    try:
        challenge = s.receive(carry(0, c.start()))
        proof = c.receive(carry(1, challenge))
        welcome = s.receive(carry(2, proof))
        assert not welcome, "the proof covers every byte before it"
    except EchoError:
        pass
    assert not s.done and not c.done


@pytest.mark.parametrize("table", [[], {}, 0, None, False, ["a"]])
def test_a_table_is_named_by_text(table: Any) -> None:
    """What is said there becomes a key of the transport's dictionaries."""
    c, s = client(), server(tokens=())
    s.receive(c.start())
    with pytest.raises(ProtocolError, match="table"):
        s.receive(message(Message.PROOF, {"mac": "", "table": table}))
