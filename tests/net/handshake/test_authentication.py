"""Tokens: right ones are accepted, wrong ones are refused, and each gives certain roles."""

from __future__ import annotations

import pytest
from talking import INCARNATION, SPEC, body_of, client, message, server, talk

from echo_core.base.errors import HandshakeRefused, ProtocolError, SecurityError
from echo_core.security.tokens import EVERYTHING, find_tokens


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


def test_a_role_that_is_not_served_is_refused() -> None:
    ours, theirs = talk(client(role="learner"), server())
    assert isinstance(ours, HandshakeRefused) and ours.code == "role"
    assert "worker" in str(ours) and isinstance(theirs, ProtocolError)
    assert talk(client(role="learner"), server(roles=("worker", "learner"))) == (None, None)


def test_a_token_gives_the_roles_it_has_at_the_learner() -> None:
    tokens = tuple(find_tokens(["the-key-of-everything", "write:the-key-of-workers", "read:the-key-of-readers"]))
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
    (promoted,) = find_tokens("admin:the-key-of-readers")
    ours, theirs = talk(client(token=promoted, name="w9"), server(tokens=tokens))
    for error in (ours, theirs):
        assert isinstance(error, SecurityError) and "a worker needs a token for write, this one is for read" in str(error)
    open_to_all = server(tokens=())
    assert talk(client(token=None), open_to_all) == (None, None)
    assert open_to_all.peer["permissions"] == EVERYTHING
