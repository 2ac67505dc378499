"""Sessions of agents: each turn continues recorded tokens, and everything else is a branch that one can see."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo_rl.engine import Model
from echo_rl.engine.families.generation import Generation
from echo_rl.serving import ApiError, EndedSession, Endpoint, EngineWorker, Session, SessionLimits
from echo_rl.serving.chat import ChatTemplate

from .sessions_kit import CONFIG, chat, engine, operate, request, say, template, tokenizer_of
from .test_endpoint import wait_for


@pytest.fixture
def ended() -> list[EndedSession]:
    """Return what ended sessions leave behind."""
    return []


@pytest.fixture
def endpoint(tmp_path: Path, ended: list[EndedSession]) -> Iterator[Endpoint]:
    with Endpoint(engine(), tokenizer_of(tmp_path), template=template(), on_end=ended.append) as running:
        yield running


def branches(session: Session) -> list[tuple[int, str, int]]:
    return [(entry["branch"], entry["began"], entry["turns"]) for entry in session.describe()["branches"]]


def drifts(endpoint: Endpoint, sessions: bool, count: int) -> int:
    """Return how many second turns do not begin with the tokens of the first."""
    found = 0
    for i in range(count):
        said: list[dict[str, Any]] = []
        if sessions:
            opened = endpoint.open_session(task=i)
            first, _ = say(opened, said, f"hello {i}", seed=i)
            second, headers = say(opened, said, "and then?", seed=i)
            assert int(headers["Echo-Recorded-Tokens"]) == len(first["prompt_token_ids"]) + len(first["token_ids"])
            assert (headers["Echo-Branch"], headers["Echo-Branch-Began"], headers["Echo-Turn"]) == ("0", "recorded", "1")
        else:
            answers = []
            for text in (f"hello {i}", "and then?"):
                said.append({"role": "user", "content": text})
                body = {"model": "echo", "messages": said, "max_tokens": 12, "seed": i, "return_token_ids": True}
                answers.append(request(f"{endpoint.url}/chat/completions", endpoint.token, "POST", body)[1]["choices"][0])
                said.append(answers[-1]["message"])
            first, second = answers
        before = first["prompt_token_ids"] + first["token_ids"]
        found += second["prompt_token_ids"][: len(before)] != before
    return found


def test_no_turn_is_encoded_again(endpoint: Endpoint) -> None:
    """Without sessions nearly every second turn drifts, since a text has more than one encoding; with them none does, and its prefix is in the cache."""
    assert drifts(endpoint, sessions=False, count=8) > 4
    before = endpoint.worker.stats()
    assert drifts(endpoint, sessions=True, count=20) == 0
    after = endpoint.worker.stats()
    assert (after["hit_tokens"] - before["hit_tokens"]) / (after["asked_tokens"] - before["asked_tokens"]) > 0.6


def test_what_is_new_is_written_by_the_template(endpoint: Endpoint) -> None:
    """Behind the recorded tokens come the end of the answer, the new messages and the beginning of the next answer, and the model sees nothing twice."""
    tokenizer, session, said = endpoint.tokenizer, endpoint.open_session(), []
    first, _ = say(session, said, "hello")
    assert first["finish_reason"] == "length"
    second, _ = say(session, said, "more")
    new = second["prompt_token_ids"][len(first["prompt_token_ids"]) + len(first["token_ids"]) :]
    assert new == tokenizer.encode("<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("how", ["token", "string", "token behind a space"])
def test_the_end_of_an_answer_is_not_repeated(endpoint: Endpoint, how: str) -> None:
    """The tokens of the end or of a stop string are recorded, and the template writes the same behind the answer."""
    tokenizer, said = endpoint.tokenizer, []
    made = say(endpoint.open_session(), said, "hello", seed=1, max_tokens=40)[0]["token_ids"]
    # An end that the model samples, after some other tokens.
    end = next(t for i, t in enumerate(made) if i > 3 and t not in made[:i] and tokenizer.encode(text := tokenizer.decode([t])) == [t] and text.isascii())
    text, space, fields = tokenizer.decode([end]), " " if "space" in how else "", {}
    if how != "string":
        endpoint.worker.engine.model.generation = Generation(ends=(end,))
    else:
        fields = {"stop": [text]}
    session, said = endpoint.open_session(), []
    first, _ = say(session, said, "hello", seed=1, max_tokens=40, **fields)
    assert first["finish_reason"] == "stop" and first["token_ids"] == made[: made.index(end) + 1] and text not in first["message"]["content"]

    endpoint.template = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}" + space + text + "{% endfor %}<|im_start|>")
    second, headers = say(session, said, "more")
    before = first["prompt_token_ids"] + first["token_ids"]
    assert second["prompt_token_ids"][: len(before)] == before and headers["Echo-Branch-Began"] == "recorded"
    assert second["prompt_token_ids"][len(before) :] == tokenizer.encode(f"<|im_start|>more{space}{text}<|im_start|>")


def test_an_edited_history_begins_a_branch(endpoint: Endpoint, ended: list[EndedSession]) -> None:
    """It continues what is left of the recorded history, or begins anew, and the answer says so. What was recorded stays."""
    session, said = endpoint.open_session(), []
    say(session, said, "one")
    first, _ = say(session, said, "two")
    edited = [*said[:3], {"role": "assistant", "content": "another answer"}]
    second, headers = say(session, edited, "three")
    assert (headers["Echo-Branch"], headers["Echo-Branch-Began"]) == ("1", "edited")
    kept = first["prompt_token_ids"]  # up to the edited answer
    shared = int(headers["Echo-Recorded-Tokens"])
    assert second["prompt_token_ids"][:shared] == kept[:shared] and 0 < shared < len(kept)
    other = [{"role": "user", "content": "another beginning"}]
    _, headers = say(session, other, "four")
    assert (headers["Echo-Branch"], headers["Echo-Branch-Began"], headers["Echo-Recorded-Tokens"]) == ("2", "edited", "0")
    _, headers = say(session, said, "five")
    assert (headers["Echo-Branch"], headers["Echo-Branch-Began"]) == ("0", "recorded")
    assert branches(session) == [(0, "start", 3), (1, "edited", 2), (2, "edited", 1)]
    session.end(1.0)
    assert [leaf.branch for leaf in ended[0].branches] == [0, 1, 2]


def test_other_tools_begin_a_branch(endpoint: Endpoint) -> None:
    """The recorded tokens have the old ones."""
    session, said = endpoint.open_session(), []
    tools = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
    say(session, said, "one", tools=tools)
    assert say(session, said, "two", tools=tools)[1]["Echo-Branch-Began"] == "recorded"
    assert say(session, said, "three")[1]["Echo-Branch-Began"] == "edited"


def test_the_same_history_once_more_and_several_answers(endpoint: Endpoint) -> None:
    session, said = endpoint.open_session(), [{"role": "user", "content": "hi"}]
    assert chat(session, said)[2]["Echo-Branch-Began"] == "start"
    _, answer, headers = chat(session, said, n=2)
    assert headers["Echo-Branch-Began"] == "resampled, choice" and headers["Echo-Branch"] == "1, 2"
    second = [*said, answer["choices"][1]["message"]]
    choice, headers = say(session, second, "go on")
    made, recorded = answer["choices"][1]["token_ids"], int(headers["Echo-Recorded-Tokens"])
    assert headers["Echo-Branch"] == "2" and choice["prompt_token_ids"][recorded - len(made) : recorded] == made


def test_a_template_that_hides_the_answer_begins_a_branch(tmp_path: Path) -> None:
    """It is not guessed where the answer ends."""
    hides = ChatTemplate("{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}>")
    with Endpoint(engine(), tokenizer_of(tmp_path), template=hides) as endpoint:
        session, said = endpoint.open_session(), []
        say(session, said, "one")
        _, headers = say(session, said, "two")
        assert headers["Echo-Branch-Began"] == "template" and headers["Echo-Recorded-Tokens"] == "0"


def test_completions_of_texts_and_tokens_continue_too(endpoint: Endpoint) -> None:
    for start, joined in (("Once", lambda p, c: p + c["text"] + " and"), ([5, 6, 7], lambda p, c: p + c["token_ids"] + [8])):
        session = endpoint.open_session()
        body = {"model": "echo", "prompt": start, "max_tokens": 9, "return_token_ids": True, "seed": 4}
        first = request(f"{session.base_url}/completions", session.key, "POST", body)[1]["choices"][0]
        status, answer, headers = request(f"{session.base_url}/completions", session.key, "POST", body | {"prompt": joined(start, first)})
        assert status == 200 and headers["Echo-Branch-Began"] == "recorded"
        before = first["prompt_token_ids"] + first["token_ids"]
        assert answer["choices"][0]["prompt_token_ids"][: len(before)] == before
        status, answer, _ = request(f"{session.base_url}/completions", session.key, "POST", body | {"prompt": ["a", "b"]})
        assert status == 400 and "has one prompt, not 2" in answer["error"]["message"]


def test_streams_are_recorded_before_their_end_is_known(endpoint: Endpoint) -> None:
    """The next turn continues what the stream has said, and its headers say where it stands."""
    session, said = endpoint.open_session(), [{"role": "user", "content": "hi"}]
    for turn in range(3):
        body = {"model": "echo", "messages": said, "max_tokens": 20, "stream": True}
        port, path = session.base_url.split(":", 2)[2].split("/", 1)
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("POST", f"/{path}/chat/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {session.key}"})
        response = connection.getresponse()
        assert response.headers["Echo-Branch-Began"] == ("recorded" if turn else "start") and response.headers["Echo-Turn"] == str(turn)
        text = ""
        while True:  # The client hangs up as soon as it knows the reason of the end.
            line = response.readline()
            if line.startswith(b"data: "):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["delta"]["content"]
                if choice["finish_reason"]:
                    break
        connection.close()
        said += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
    assert branches(session) == [(0, "start", 3)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_killed_leaves_no_turn(endpoint: Endpoint, stream: bool) -> None:
    """It may ask again, and that is no new branch."""
    session, said = endpoint.open_session(), []
    say(session, said, "one")
    said.append({"role": "user", "content": "two"})
    endpoint.worker.pause()
    body = json.dumps({"model": "echo", "messages": said, "max_tokens": 200, "stream": stream}).encode()
    port, path = session.base_url.split(":", 2)[2].split("/", 1)
    head = f"POST /{path}/chat/completions HTTP/1.1\r\nAuthorization: Bearer {session.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        wait_for(lambda: endpoint.worker.stats()["waiting"] == 1)
        assert session.describe()["calls"] == 1
    wait_for(lambda: session.describe()["calls"] == 0)
    endpoint.worker.resume()
    assert branches(session) == [(0, "start", 1)]
    assert chat(session, said)[2]["Echo-Branch-Began"] == "recorded"
    assert branches(session) == [(0, "start", 2)]


def test_32_sessions_at_once(endpoint: Endpoint, ended: list[EndedSession]) -> None:
    """Each has its own turns, each of which continues the tokens of the one before."""
    failed: list[BaseException] = []

    def agent(i: int) -> None:
        try:
            session, said, before = endpoint.open_session(task=i), [], []
            for turn in range(4):
                choice, headers = say(session, said, f"{i} {turn}", max_tokens=8)
                assert choice["prompt_token_ids"][: len(before)] == before and headers["Echo-Session"] == session.id
                before = choice["prompt_token_ids"] + choice["token_ids"]
            session.end(float(i))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=agent, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(one.task for one in ended) == list(range(32))
    for one in ended:
        path = one.branches[0].path()
        assert len(one.branches) == 1 and len(path) == 4 and one.reward == one.task
        assert endpoint.tokenizer.decode(path[2].given.tolist()).count(f"user\n{one.task} 2") == 1


def test_calls_of_one_session_at_the_same_time_are_branches(endpoint: Endpoint) -> None:
    session, said = endpoint.open_session(), []
    say(session, said, "one")
    endpoint.worker.pause()
    began: list[str] = []

    def ask(text: str) -> None:
        began.append(chat(session, [*said, {"role": "user", "content": text}])[2]["Echo-Branch-Began"])

    threads = [threading.Thread(target=ask, args=(f"{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: session.describe()["calls"] == 3)
    endpoint.worker.resume()
    for thread in threads:
        thread.join()
    assert sorted(began) == ["edited", "edited", "recorded"] and len(branches(session)) == 3


def test_weights_change_between_turns_and_within_one(endpoint: Endpoint, ended: list[EndedSession]) -> None:
    """Each token has the version that has sampled it, and the recorded tokens of older versions stay as they are."""
    session, said = endpoint.open_session(), []
    first, _ = say(session, said, "one")
    endpoint.worker.update_weights(Model.random(CONFIG, seed=1, scale=0.3), version=5)
    second, _ = say(session, said, "two")
    before = first["prompt_token_ids"] + first["token_ids"]
    assert second["prompt_token_ids"][: len(before)] == before
    assert first["versions"] == [0] * 12 and second["versions"] == [5] * 12

    endpoint.worker.pause()
    long = threading.Thread(target=say, args=(session, said, "three"), kwargs={"max_tokens": 200})
    long.start()
    wait_for(lambda: endpoint.worker.stats()["waiting"] == 1)
    endpoint.worker.resume()
    wait_for(lambda: endpoint.worker.stats()["made_tokens"] > 60)
    endpoint.worker.update_weights(Model.random(CONFIG, seed=2, scale=0.3), version=6)
    long.join()
    session.end(0.5)
    turns = ended[0].branches[0].path()
    assert [set(turn.versions.tolist()) for turn in turns[:2]] == [{0}, {5}]
    third = turns[2].versions.tolist()
    assert third == sorted(third) and set(third) <= {5, 6} and len(third) == len(turns[2].tokens)


def test_a_seed_makes_a_session_repeatable(endpoint: Endpoint) -> None:
    def texts(seed: int) -> list[str]:
        session, said = endpoint.open_session(seed=seed), []
        for text in ("one", "two"):
            say(session, said, text)
        return [message["content"] for message in said]

    assert texts(7) == texts(7) != texts(8)
    session, said = endpoint.open_session(seed=7), [{"role": "user", "content": "one"}]
    assert chat(session, said)[1] != chat(session, said)[1]  # another draw of the same history


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (SessionLimits(turns=2), "session_turns_exceeded"),
        (SessionLimits(branches=2), "session_branches_exceeded"),
        (SessionLimits(bytes=3000), "session_bytes_exceeded"),
    ],
)
def test_limits_are_refused_in_openais_form(limits: SessionLimits, code: str) -> None:
    """A status that clients do not try again. What is recorded stays, and the rollout says that a limit ended it."""
    ended: list[EndedSession] = []
    with Endpoint(engine(), sessions=limits, on_end=ended.append) as endpoint:
        session, said = endpoint.open_session(), []
        say(session, said, "one")
        say(session, said if code != "session_branches_exceeded" else [], "two")
        more = [*said, {"role": "user", "content": "three"}] if code != "session_branches_exceeded" else [{"role": "user", "content": "three"}]
        status, answer, _ = chat(session, more, max_tokens=200)
        assert status == 400 and answer["error"]["code"] == code and "are allowed" in answer["error"]["message"]
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert sum(entry["turns"] - entry["recorded_turns"] for entry in session.describe()["branches"]) == 2
        session.end(1.0)
        assert all(entry["finish"] == "length" for entry in ended[0].describe()["branches"])


def test_the_number_of_sessions_is_limited(ended: list[EndedSession]) -> None:
    with Endpoint(engine(), sessions=SessionLimits(sessions=2)) as endpoint:
        first = endpoint.open_session()
        endpoint.open_session()
        status, answer, headers = operate(endpoint, "/sessions", {})
        assert status == 429 and answer["error"]["code"] == "too_many_sessions" and headers["Retry-After"] == "1"
        first.end(discard=True)
        assert operate(endpoint, "/sessions", {})[0] == 200


@pytest.mark.parametrize("wrong", [{"turns": 0}, {"sessions": 1.5}, {"idle": float("nan")}, {"idle": 0}, {"bytes": True}])
def test_wrong_limits_name_their_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SessionLimits(**wrong)


def test_an_idle_session_ends_without_a_record() -> None:
    """A session with a call under way is not idle. Its key is told what has happened."""
    ended: list[EndedSession] = []
    with EngineWorker(engine()) as worker, Endpoint(worker, sessions=SessionLimits(idle=0.4), on_end=ended.append) as endpoint:
        busy, left = endpoint.open_session(), endpoint.open_session()
        worker.pause()
        waits = threading.Thread(target=chat, args=(busy, [{"role": "user", "content": "hi"}]))
        waits.start()
        wait_for(lambda: busy.describe()["calls"] == 1)
        wait_for(lambda: endpoint.sessions.expired == 1)
        assert [session.id for session in endpoint.sessions.all()] == [busy.id]
        status, answer, _ = chat(left, [{"role": "user", "content": "hi"}])
        assert status == 403 and "it was idle for 0.4 s" in answer["error"]["message"]
        assert operate(endpoint, f"/sessions/{left.id}/end", {"reward": 1})[0] == 409
        worker.resume()
        waits.join()
        wait_for(lambda: endpoint.sessions.expired == 2)
    assert ended == []


def test_the_end_aborts_what_is_under_way(endpoint: Endpoint, ended: list[EndedSession]) -> None:
    session, said, answers = endpoint.open_session(), [], []
    say(session, said, "one")
    endpoint.worker.pause()
    waits = threading.Thread(target=lambda: answers.append(chat(session, [*said, {"role": "user", "content": "two"}], max_tokens=200)))
    waits.start()
    wait_for(lambda: endpoint.worker.stats()["waiting"] == 1)
    session.end(1.0)
    waits.join()
    assert answers[0][0] == 403 and answers[0][1]["error"]["code"] == "session_ended"
    assert len(ended[0].branches[0].path()) == 1
    with pytest.raises(ApiError, match="the session has ended: it was ended"):
        session.end()
    with pytest.raises(ApiError, match="the session has ended"):
        session.set_reward(2.0)
    endpoint.worker.resume()


def test_a_record_that_is_not_taken_can_be_handed_over_again() -> None:
    """The caller that ends a session learns that nobody has its record."""
    taken: list[EndedSession] = []

    def take(one: EndedSession) -> None:
        if not taken:
            taken.append(one)
            raise ConnectionError("the learner is away")
        taken.append(one)

    with Endpoint(engine(), on_end=take) as endpoint:
        session = endpoint.open_session(task=3)
        say(session, [], "hi")
        status, answer, _ = operate(endpoint, f"/sessions/{session.id}/end", {"reward": 1})
        assert status == 500 and "the learner is away; end the session again" in answer["error"]["message"]
        assert chat(session, [{"role": "user", "content": "hi"}])[0] == 403
        status, answer, _ = operate(endpoint, f"/sessions/{session.id}/end", {})
        assert status == 200 and (answer["reward"], answer["task"]) == (1.0, 3)
        assert operate(endpoint, f"/sessions/{session.id}/end", {})[1] == answer  # asked once more, it is the same answer
        assert len(taken) == 2


def test_closing_the_endpoint_ends_its_sessions() -> None:
    endpoint = Endpoint(engine())
    session = endpoint.open_session()
    endpoint.close()
    with pytest.raises(ApiError, match="closing"):
        endpoint.open_session()
    with pytest.raises(ApiError, match="the session has ended"):
        session.set_reward(1.0)
