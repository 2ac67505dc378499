"""What else may come: refusals, other versions, garbage, messages out of order or without a field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from talking import TOKEN, body_of, client, message, server

from echo_core.base.errors import EchoError, HandshakeRefused, ProtocolError
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import PROTOCOL_VERSION
from echo_net.handshake import ServerHandshake
from echo_net.handshake.build import build, software
from echo_net.handshake.messages import LIMIT_AFTER, LIMIT_BEFORE, MESSAGE, Message


@pytest.mark.parametrize("code", ["busy", "shutdown", "ended", "role", "version", "no such code"])
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


@pytest.mark.parametrize("theirs", [0, 1, 2, 3, 4, 255])
def test_another_version_is_refused_at_both_ends(theirs: int) -> None:
    s = server()
    with pytest.raises(ProtocolError, match=f"protocol {theirs}, this end speaks {PROTOCOL_VERSION}"):
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


def test_both_ends_name_the_protocol_and_the_build_of_each() -> None:
    s, theirs = server(), PROTOCOL_VERSION - 1
    hello = message(1, {"version": "0.0.9", "build": "0123abcd"}, version=theirs)
    with pytest.raises(ProtocolError, match=rf"protocol {theirs}, this end speaks {PROTOCOL_VERSION} \({software()}\)") as caught:
        s.receive(hello)
    assert "the worker has echo-core 0.0.9, build 0123abcd" in str(caught.value)
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused) as refused:
        c.receive(s.refusal)
    assert f"this learner speaks Echo protocol {PROTOCOL_VERSION} ({software()}), not {theirs}" in str(refused.value)
    assert f"this end speaks Echo protocol {PROTOCOL_VERSION}, {software()}" in str(refused.value)
    assert len(build()) == 8


def test_another_end_without_a_build_is_named_all_the_same() -> None:
    with pytest.raises(ProtocolError, match=r"the worker has echo-core 0\.1\.0, build unknown; install the same echo-core"):
        server().receive(message(1, {"version": "0.1.0"}, version=3))


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, 2])
def test_the_refusal_of_an_older_version_is_understood(version: int) -> None:
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused, match="echo-core 0.0.9"):
        c.receive(message(7, {"code": "version", "text": "this learner has echo-core 0.0.9"}, version=version))


def test_the_refusal_of_a_newer_version_is_understood() -> None:
    c = client()
    c.start()
    with pytest.raises(HandshakeRefused, match="buy a newer one"):
        c.receive(message(7, {"code": "version", "text": "buy a newer one"}, version=PROTOCOL_VERSION + 1))


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
    header = MESSAGE.pack(b"ECHO", PROTOCOL_VERSION, Message.HELLO, 0, LIMIT_BEFORE + 1)
    with pytest.raises(ProtocolError, match="4097 bytes, more than 4096"):
        server().receive(header)
    c, s = client(), server()
    s.receive(c.receive(s.receive(c.start())))
    with pytest.raises(ProtocolError, match="more than"):
        s.receive(MESSAGE.pack(b"ECHO", PROTOCOL_VERSION, Message.SPEC, 0, LIMIT_AFTER + 1))
    c = client()
    c.start()
    with pytest.raises(ProtocolError, match="CHALLENGE of 4294967295 bytes"):
        c.receive(MESSAGE.pack(b"ECHO", PROTOCOL_VERSION, Message.CHALLENGE, 0, (1 << 32) - 1))


def test_nothing_is_kept_of_a_message_that_cannot_come() -> None:
    s = server()
    with pytest.raises(ProtocolError, match="message 5 where HELLO was due"):
        s.receive(MESSAGE.pack(b"ECHO", PROTOCOL_VERSION, Message.SPEC, 0, LIMIT_AFTER) + bytes(100))
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
        {"session": "5e"},
        {"session": None},
        {"silence": 0.0},
        {"silence": -1.0},
        {"silence": 1e9},
        {"silence": 5},
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


@pytest.mark.parametrize("missing", ["client", "role", "nonce", "base", "session", "silence"])
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


def test_those_who_knock_do_not_make_a_learner_describe_its_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds where there are thousands of leaves, and a stranger could ask for it as often as he connects."""
    spec = Spec.from_example({f"leaf {number}": np.zeros(2, np.float32) for number in range(500)})
    described: list[Spec] = []
    to_json = Spec.to_json

    def counted(self: Spec) -> dict[str, Any]:
        described.append(self)
        return to_json(self)

    monkeypatch.setattr(Spec, "to_json", counted)
    for _ in range(100):
        with pytest.raises(ProtocolError):
            ServerHandshake(spec, [TOKEN]).receive(b"GET / HTTP/1.1")
    assert len(described) <= 2, "once for its fingerprint, and once for those who are let in"
