"""An agent that knows nothing of sessions: OpenAI's own client with the base URL and the key of one."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from echo_rl.rollouts import RolloutSchema
from echo_rl.serving import EndedSession, Endpoint, SessionGroups, SessionLimits, session_records

from .sessions_kit import engine, template, tokenizer_of

openai = pytest.importorskip("openai", reason="openai is not installed")

TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def agent(base_url: str, api_key: str, turns: int, stream: bool = False, tools: Any = openai.NOT_GIVEN) -> list[str]:
    """Talk for some turns, and send each answer back as the client's own object."""
    said: list[Any] = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": [{"type": "text", "text": "Begin."}]}]
    with openai.OpenAI(base_url=base_url, api_key=api_key, timeout=60) as client:
        for turn in range(turns):
            options: dict[str, Any] = {"model": "echo", "messages": said, "max_tokens": 10, "tools": tools}
            if stream:
                pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**options, stream=True)]
                said.append({"role": "assistant", "content": "".join(pieces)})
            else:
                said.append(client.chat.completions.create(**options).choices[0].message)
            said.append({"role": "user", "content": f"observation {turn}"})
    return [m["content"] if isinstance(m, dict) else m.content for m in said if (m["role"] if isinstance(m, dict) else m.role) == "assistant"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [openai.NOT_GIVEN, TOOLS], ids=["plain", "tools"])
def test_an_unchanged_agent_becomes_one_record(tmp_path: Path, stream: bool, tools: Any) -> None:
    """Its session has one branch, and the record says what the agent has read."""
    with Endpoint(engine(), tokenizer_of(tmp_path), template=template()) as endpoint:
        session = endpoint.open_session(task=4)
        answers = agent(session.base_url, session.key, 4, stream, tools)
        ended = session.end(1.0)
        assert ended is not None
        (record,) = session_records(ended, RolloutSchema())
        path = ended.branches[0].path()
        assert [endpoint.tokenizer.decode(turn.tokens.tolist()) for turn in path] == answers
        assert record["turn_counts"].tolist() == [4] and int(record["mask"].sum()) == sum(len(turn.tokens) for turn in path)
        tokens = [*record["prompt"].tolist(), *record["tokens"].tolist()]
        text = endpoint.tokenizer._library.decode(tokens, skip_special_tokens=False)  # type: ignore[attr-defined]
        assert text.count("observation 1") == 1 and ("look" in text) == (tools is TOOLS)


def test_agents_at_the_same_time_make_one_group(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []
    with Endpoint(engine(), tokenizer_of(tmp_path), template=template(), on_end=SessionGroups(RolloutSchema(group=4), sent.append)) as endpoint:

        def attempt(number: int) -> None:
            session = endpoint.open_session(task=1, attempt=number)
            session.end(float(len(agent(session.base_url, session.key, 1 + number))))

        threads = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (record,) = sent
    assert record["turn_counts"].tolist() == [1, 2, 3, 4] and record["rewards"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_refusals_are_the_clients_own_errors_and_are_not_tried_again(tmp_path: Path) -> None:
    """The key is good for one session; a limit and the end of the session are told, and no reward can be written."""
    ended: list[EndedSession] = []
    with Endpoint(engine(), tokenizer_of(tmp_path), template=template(), sessions=SessionLimits(turns=1), on_end=ended.append) as endpoint:
        session, other = endpoint.open_session(), endpoint.open_session()
        said: Any = [{"role": "user", "content": "hi"}]
        with openai.OpenAI(base_url=session.base_url, api_key=session.key, timeout=60) as client:
            assert [model.id for model in client.models.list()] == ["echo"]
            raw = client.chat.completions.with_raw_response.create(model="echo", messages=said, max_tokens=5)
            assert raw.headers["echo-branch-began"] == "start" and raw.headers["echo-session"] == session.id
            with pytest.raises(openai.BadRequestError, match="at most 1 are allowed") as caught:
                client.chat.completions.create(model="echo", messages=said)
            assert caught.value.code == "session_turns_exceeded"
            with pytest.raises(openai.PermissionDeniedError, match="only complete in its own session"):
                client.with_options(base_url=other.base_url).chat.completions.create(model="echo", messages=said)
            with pytest.raises(openai.PermissionDeniedError, match="only complete in its own session"):
                client.post(f"{session.base_url.removesuffix('/v1')}/reward", body={"reward": 1}, cast_to=object)
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="wrong").models.list()
            with pytest.raises(openai.BadRequestError, match="follows no link"):
                image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
                client.chat.completions.create(model="echo", messages=[{"role": "user", "content": [image]}])
            session.end(0.0)
            with pytest.raises(openai.PermissionDeniedError, match="the session has ended"):
                client.chat.completions.create(model="echo", messages=said)
        assert json.dumps(ended[0].describe())  # it is plain JSON
