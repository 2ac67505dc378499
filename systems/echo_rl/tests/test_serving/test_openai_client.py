"""The endpoint with OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from echo_rl.serving import Endpoint

openai = pytest.importorskip("openai", reason="openai is not installed")


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Any]:
    with openai.OpenAI(base_url=endpoint.url, api_key=endpoint.token, max_retries=0, timeout=60) as found:
        yield found


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["echo"]


def test_chat_and_its_stream_are_the_same(client: Any) -> None:
    """The same seed gives the same text, whole or in pieces, and the same counts."""
    options = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "seed": 5, "n": 2, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**options)
    texts, entries, roles, last = ["", ""], [[], []], [None, None], None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        last = chunk
        for choice in chunk.choices:
            roles[choice.index] = roles[choice.index] or choice.delta.role
            texts[choice.index] += choice.delta.content
            entries[choice.index] += choice.logprobs.content
    assert texts == [choice.message.content for choice in whole.choices] and roles == ["assistant"] * 2
    assert [c.finish_reason for c in whole.choices] == ["length"] * 2
    for choice, streamed in zip(whole.choices, entries, strict=True):
        assert [e.token for e in choice.logprobs.content] == [e.token for e in streamed]
        assert len(streamed) == 30 and all(len(e.top_logprobs) == 2 and e.top_logprobs[0].logprob >= e.top_logprobs[1].logprob for e in streamed)
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 60
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens == len("user: hi\nassistant:")


def test_stop_strings(client: Any) -> None:
    """The text ends before the stop string, in a stream too, and no further token is made."""
    options = {"model": "echo", "prompt": "abc", "max_tokens": 100, "seed": 2}
    free = client.completions.create(**options).choices[0].text
    stop = free[20:23]
    expected = free[: free.index(stop)]
    stopped = client.completions.create(**options, stop=stop)
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (expected, "stop")
    assert stopped.usage.completion_tokens < 100
    pieces = list(client.completions.create(**options, stop=[stop], stream=True))
    assert "".join(p.choices[0].text for p in pieces) == expected
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_completions_of_several_prompts(client: Any) -> None:
    answer = client.completions.create(model="echo", prompt=["ab", "cd"], n=2, max_tokens=3, logprobs=1, temperature=0)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    for choice in answer.choices:
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset) == 3
        assert [max(top.values()) for top in choice.logprobs.top_logprobs] == choice.logprobs.token_logprobs


def test_errors_are_the_clients_own(client: Any, endpoint: Endpoint) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "a"}], tools=[{"type": "function"}])
    with pytest.raises(openai.AuthenticationError, match="incorrect API key"):
        client.with_options(api_key="wrong").models.list()
    endpoint.worker.pause()
    endpoint.worker.submit([[1]] * 16, 2)
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="echo", prompt="a")
    assert int(caught.value.response.headers["retry-after"]) >= 1
    endpoint.worker.resume()


def test_a_stream_that_is_closed_aborts_the_request(client: Any, endpoint: Endpoint) -> None:
    stream = client.completions.create(model="echo", prompt="abc", max_tokens=256, stream=True)
    next(iter(stream))
    stream.close()
    assert endpoint.worker.submit([[1]], 1)[0].result().finish == "length"
