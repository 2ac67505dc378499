"""Roles: the operator opens, rewards and ends sessions; the key of a session completes in it and does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from echo_rl.serving import EndedSession, Endpoint, Session

from .sessions_kit import chat, engine, operate, request, say
from .test_endpoint import call

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def ended() -> list[EndedSession]:
    """Return what ended sessions leave behind."""
    return []


@pytest.fixture
def endpoint(ended: list[EndedSession]) -> Iterator[Endpoint]:
    with Endpoint(engine(), on_end=ended.append) as running:
        yield running


def opened(endpoint: Endpoint, **fields: Any) -> Any:
    status, answer, _ = operate(endpoint, "/sessions", fields)
    assert status == 200, answer
    return answer


def test_a_session_over_http(endpoint: Endpoint, ended: list[EndedSession]) -> None:
    """From its beginning to its record."""
    session = opened(endpoint, task=17, attempt=3, seed=5, metadata={"answer": "42"})
    assert session["base_url"] == f"{endpoint.url.removesuffix('/v1')}{session['path']}" and session["object"] == "session"
    url, key = f"{session['base_url']}/chat/completions", session["api_key"]
    status, answer, headers = request(url, key, "POST", {"model": "echo", "messages": HI, "max_tokens": 5})
    assert status == 200 and headers["Echo-Session"] == session["id"] and answer["usage"]["completion_tokens"] == 5
    assert request(f"{session['base_url']}/models", key, "GET")[1]["data"][0]["id"] == "echo"
    assert request(f"{session['base_url']}/models/echo", key, "GET")[1]["id"] == "echo"
    status, state, _ = operate(endpoint, f"/sessions/{session['id']}/reward", {"reward": 0.25})
    assert status == 200 and state["reward"] == 0.25 and "api_key" not in state
    assert operate(endpoint, f"/sessions/{session['id']}", method="GET")[1] == state
    assert operate(endpoint, "/sessions", method="GET")[1]["data"] == [state]
    status, last, _ = operate(endpoint, f"/sessions/{session['id']}/end", {"finish": "abort"})
    assert status == 200 and (last["reward"], last["finish"], last["task"], last["attempt"]) == (0.25, "abort", 17, 3)
    assert operate(endpoint, f"/sessions/{session['id']}", method="GET")[1] == last
    assert operate(endpoint, "/sessions", method="GET")[1]["data"] == []
    assert len(ended) == 1 and ended[0].metadata == {"answer": "42"}


@pytest.mark.parametrize("what", ["reward", "end", "read", "list", "open", "other", "outside", "models", "deep"])
def test_the_key_of_a_session_can_only_complete_in_it(endpoint: Endpoint, what: str) -> None:
    """It can neither write its own reward, nor read another session, nor learn whether one exists."""
    own, other = endpoint.open_session(), endpoint.open_session()
    say(other, [], "a secret")
    path, method, body = {
        "reward": (f"/sessions/{own.id}/reward", "POST", {"reward": 1}),
        "end": (f"/sessions/{own.id}/end", "POST", {"reward": 1}),
        "read": (f"/sessions/{own.id}", "GET", None),
        "list": ("/sessions", "GET", None),
        "open": ("/sessions", "POST", {}),
        "other": (f"/sessions/{other.id}/v1/chat/completions", "POST", {"model": "echo", "messages": HI}),
        "outside": ("/v1/chat/completions", "POST", {"model": "echo", "messages": HI}),
        "models": ("/v1/models", "GET", None),
        "deep": (f"/sessions/{own.id}/v1/../../{other.id}/reward", "POST", {"reward": 1}),
    }[what]
    status, answer, _ = operate(endpoint, path, body, method, key=own.key)
    assert (status, answer["error"]["code"]) == ((404, "unknown_url") if what == "deep" else (403, "wrong_key"))
    if what == "other":
        assert operate(endpoint, "/sessions/s0000/v1/chat/completions", body, method, key=own.key)[:2] == (status, answer)
    assert own.reward is None and other.reward is None and len(endpoint.sessions.all()) == 2


@pytest.mark.parametrize("key", ["", "wrong", "é", "x" * 5000])
def test_unknown_keys_are_refused_everywhere(endpoint: Endpoint, key: str) -> None:
    session = endpoint.open_session()
    for path, method in (("/sessions", "POST"), (f"/sessions/{session.id}/end", "POST"), (f"/sessions/{session.id}/v1/models", "GET"), ("/v1/models", "GET")):
        status, answer, headers = call(endpoint, b"{}", path, method, Authorization=f"Bearer {key}")
        assert status == 401 and answer["error"]["code"] == "invalid_api_key" and headers["WWW-Authenticate"] == "Bearer"


def test_the_operators_key_does_not_complete_in_sessions(endpoint: Endpoint) -> None:
    """An agent that got it by mistake could write its own reward, so the mistake shows at once."""
    session = endpoint.open_session()
    status, answer, _ = operate(endpoint, f"/sessions/{session.id}/v1/chat/completions", {"model": "echo", "messages": HI})
    assert status == 403 and "take the key of the session" in answer["error"]["message"]


def test_the_key_ends_with_its_session(endpoint: Endpoint) -> None:
    session = endpoint.open_session()
    session.end(discard=True)
    status, answer, _ = chat(session, HI)
    assert status == 403 and answer["error"]["code"] == "session_ended"


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "words"),
    [
        ("/sessions/s123", "GET", None, 404, "there is no session 's123'"),
        ("/sessions/s123/reward", "POST", {"reward": 1}, 404, "there is no session"),
        ("/sessions/s123/end", "POST", {}, 404, "there is no session"),
        ("/sessions/{id}/nothing", "POST", {}, 404, "unknown request URL"),
        ("/sessions//reward", "POST", {"reward": 1}, 404, "unknown request URL"),
        ("/sessions/{id}/end/more", "POST", {}, 404, "unknown request URL"),
        ("/sessions/{id}/end", "GET", None, 405, "takes POST"),
        ("/sessions", "POST", {"task": 1.5}, 400, "task must be a whole number"),
        ("/sessions", "POST", {"attempt": -1}, 400, "attempt must be a whole number from 0"),
        ("/sessions", "POST", {"seed": True}, 400, "seed must be a whole number"),
        ("/sessions", "POST", {"metadata": [1]}, 400, "metadata must be an object"),
        ("/sessions", "POST", {"metadata": {"a": "x" * 20_000}}, 400, "metadata must be an object of at most 16384 bytes"),
        ("/sessions", "POST", {"tasks": 1}, 400, "unrecognized request argument supplied: tasks"),
        ("/sessions", "POST", b"[", 400, "the body is not JSON"),
        ("/sessions", "POST", [1], 400, "must be a JSON object"),
        ("/sessions/{id}/reward", "POST", {}, 400, "you must provide reward"),
        ("/sessions/{id}/reward", "POST", {"reward": None}, 400, "reward must be a finite number"),
        ("/sessions/{id}/reward", "POST", {"reward": "1"}, 400, "reward must be a finite number"),
        ("/sessions/{id}/reward", "POST", {"reward": True}, 400, "reward must be a finite number"),
        ("/sessions/{id}/reward", "POST", b'{"reward": NaN}', 400, "reward must be a finite number"),
        ("/sessions/{id}/reward", "POST", b'{"reward": -Infinity}', 400, "reward must be a finite number"),
        ("/sessions/{id}/reward", "POST", b'{"reward": 1e999}', 400, "reward must be a finite number"),
        ("/sessions/{id}/reward", "POST", {"reward": 1e39}, 400, "reward must be a finite number"),
        ("/sessions/{id}/end", "POST", b'{"reward": NaN}', 400, "reward must be a finite number"),
        ("/sessions/{id}/end", "POST", {}, 400, "the session has no reward"),
        ("/sessions/{id}/end", "POST", {"reward": 1, "finish": "done"}, 400, "finish must be one of 'stop'"),
        ("/sessions/{id}/end", "POST", {"discard": 1}, 400, "discard must be true or false"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(
    endpoint: Endpoint, ended: list[EndedSession], path: str, method: str, body: object, status: int, words: str
) -> None:
    session = endpoint.open_session()
    say(session, [], "hi")
    found, answer, _ = operate(endpoint, path.format(id=session.id), body, method)
    assert (found, words in answer["error"]["message"]) == (status, True), answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert session.reward is None and ended == [] and len(endpoint.sessions.all()) == 1
    session.end(1.0)
    assert len(ended) == 1


def test_a_session_without_turns_has_no_record(endpoint: Endpoint, ended: list[EndedSession]) -> None:
    session: Session = endpoint.open_session()
    assert operate(endpoint, f"/sessions/{session.id}/end", {"reward": 1})[1]["error"]["code"] == "no_turns"
    assert operate(endpoint, f"/sessions/{session.id}/end", {"discard": True})[0] == 200
    assert operate(endpoint, f"/sessions/{session.id}/end", {"discard": True})[0] == 409
    assert ended == []
