"""Messages, parts of content, tools and their calls, on their way into the template and out of the answer."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from echo_rl.serving import ApiError, Endpoint
from echo_rl.serving.chat import ChatTemplate
from echo_rl.serving.messages import before_calls, checked_messages, checked_tools, tool_calls

from .sessions_kit import chat, engine, request, say, template, tokenizer_of

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}
CALLED = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "<b> é"}'}}]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "found"}


def test_tools_calls_and_results_pass_through_the_template() -> None:
    """Arguments come as objects, since templates write them as JSON themselves; nothing is escaped for HTML."""
    messages = checked_messages({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, CALLED, RESULT]})
    assert template()(messages, [TOOL]) == (
        f"<|im_start|>system\nTools: {json.dumps(TOOL)}<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "search", "arguments": {"q": "<b> é"}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\nfound<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ChatTemplate()(messages).startswith('user: ab\nassistant: {"name": "search"')
    with pytest.raises(ValueError, match="does not name tools"):
        ChatTemplate()(messages, [TOOL])


def test_templates_of_other_shapes_show_what_is_behind_an_answer() -> None:
    """They take the first message out, set tools themselves, trim, drop thoughts, or write calls instead of the content."""
    llama = """
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}
{%- for m in messages %}{% if 'tool_calls' in m %}{{ '<h>' + (m.tool_calls[0].function.arguments | tojson) + '<eot>' }}
{%- else %}{{ '<h>' + m.role + '</h>' + (m.content.split('</think>')[-1] | trim) + '<eot>' }}{% endif %}{% endfor %}<h>assistant</h>"""
    said = checked_messages({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, CALLED, RESULT]})
    assert ChatTemplate(llama).behind(said, 3, [TOOL]) == "<eot><h>tool</h>found<eot><h>assistant</h>"
    assert ChatTemplate(llama)(said, [TOOL]).startswith('S<h>user</h>U<eot><h>{"q": "<b> é"}<eot>')
    twice = ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}")
    assert twice.behind(said, 3) is None


def test_what_clients_add_to_an_answer_makes_no_other_message() -> None:
    """Such as OpenAI's own class, which writes what is missing as null, and an index from the stream."""
    plain = {"role": "assistant", "content": "x"}
    added = plain | {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    call = CALLED["tool_calls"][0] | {"index": 0}  # type: ignore[index]
    assert checked_messages({"messages": [added]}) == [plain]
    assert checked_messages({"messages": [CALLED | {"content": None, "tool_calls": [call]}]}) == checked_messages({"messages": [CALLED]})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": "a", "reward": 1}, "has the field 'reward'"),
        ({"role": "robot", "content": "a"}, "must have a role of system"),
        ({"role": "user"}, "content of text"),
        ({"role": "user", "content": 3}, "content of text"),
        ({"role": "user", "content": "a", "name": 3}, "name must be a text"),
        ({"role": "user", "content": "a", "tool_calls": [CALLED]}, "in a message of the assistant"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, "arguments that are an object"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, "arguments that are an object"),
        ({"role": "assistant", "tool_calls": [3]}, "arguments that are an object"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "content[0] has the type 'input_audio'"),
    ],
)
def test_wrong_messages_are_named(message: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked_messages({"messages": [message]})
    assert words in str(caught.value) and caught.value.status == 400


@pytest.mark.parametrize("body", [{"tools": [3]}, {"tools": {"a": 1}}, {"tools": [{"type": "web"}]}, {"tools": [TOOL], "tool_choice": "required"}])
def test_wrong_tools_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="tool"):
        checked_tools(body)


def test_links_are_never_fetched(tmp_path: Path) -> None:
    """A part with a link is refused, and a link in a text is text. Nobody connects to where they lead."""
    with socket.create_server(("127.0.0.1", 0)) as listener, Endpoint(engine(), tokenizer_of(tmp_path), template=template()) as endpoint:
        listener.setblocking(False)
        link = f"http://127.0.0.1:{listener.getsockname()[1]}/picture.png"
        session = endpoint.open_session()
        for part in (
            {"type": "image_url", "image_url": {"url": link}},
            {"type": "file", "file": {"file_data": link}},
            {"type": "video_url", "video_url": link},
        ):
            status, answer, _ = chat(session, [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}])
            assert (status, answer["error"]["code"]) == (400, "unsupported_content") and "follows no link" in answer["error"]["message"]
        say(session, [], f"look at {link}")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_calls_are_told_apart_from_text() -> None:
    """What is no call stays in the text, and the numbers are the same for the same answer."""
    text = 'Let me see.\n<tool_call>\n{"name": "search", "arguments": {"q": 1}}\n</tool_call><tool_call>{"name": 3}</tool_call> '
    text += '<tool_call>{"name": "f"}</tool_call><tool_call>{"na'
    rest, calls = tool_calls(text, [1, 2])
    assert rest == 'Let me see.\n<tool_call>{"name": 3}</tool_call> <tool_call>{"na'
    assert [call["function"] for call in calls] == [{"name": "search", "arguments": '{"q": 1}'}, {"name": "f", "arguments": "{}"}]
    assert tool_calls(text, [1, 2]) == (rest, calls) and tool_calls(text, [1])[1][0]["id"] != calls[0]["id"]
    for end in range(len(text) + 1):
        assert rest.startswith(before_calls(text[:end]))


class Scripted:
    """Bytes as tokens, and some more that decode to a whole call of a tool, so that a random model calls tools now and then."""

    vocab, end = 300, None
    call = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Any) -> str:
        return b"".join(self.call.encode() if t >= 256 else bytes([t]) for t in tokens).decode(errors="replace")


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_with_tools_continues_behind_the_call(stream: bool) -> None:
    """The agent sees a call and sends its result; the tokens of the call are those that were sampled."""
    with Endpoint(engine(), Scripted(), template=template()) as endpoint:
        for seed in range(200):
            session, said = endpoint.open_session(), [{"role": "user", "content": "find x"}]
            fields: dict[str, Any] = {"tools": [TOOL], "seed": seed, "max_tokens": 20, "stream": stream}
            body = {"model": "echo", "messages": said} | fields
            message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
            if stream:
                asked = urllib.request.Request(f"{session.base_url}/chat/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {session.key}"})
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    for line in answer:
                        if line.startswith(b"data: {"):
                            delta = json.loads(line[6:])["choices"][0]["delta"]
                            message["content"] += delta.get("content") or ""
                            message["tool_calls"] += delta.get("tool_calls", [])
            else:
                message = request(f"{session.base_url}/chat/completions", session.key, "POST", body)[1]["choices"][0]["message"]
            if message.get("tool_calls"):
                break
            session.end(discard=True)
        assert message["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"q": "x"}'} and "<tool_call>" not in (message["content"] or "")
        said += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x is here"}]
        status, answer, headers = chat(session, said, tools=[TOOL])
        assert status == 200 and headers["Echo-Branch-Began"] == "recorded"
        assert max(answer["choices"][0]["prompt_token_ids"][: int(headers["Echo-Recorded-Tokens"])]) >= 256
        assert session.describe()["branches"][0]["turns"] == 2
