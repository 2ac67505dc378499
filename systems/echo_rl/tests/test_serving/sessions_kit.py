"""What the tests of sessions share: a model with a real tokenizer, a chat template with tools, and agents that speak HTTP."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.serving import Endpoint, FileTokenizer, Session
from echo_rl.serving.chat import ChatTemplate

TIMEOUT = 60
VOCAB = 320
CONFIG = ModelConfig("gpt2", vocab=VOCAB, layers=2, heads=4, width=32, inner=64, context=768)
END = "<|im_end|>"
CHATML = """
{%- if tools %}{{ '<|im_start|>system\nTools:' }}{% for tool in tools %}{{ ' ' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}{% generation %}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}{% endgeneration %}{{ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def tokenizer_of(folder: Path) -> FileTokenizer:
    """Train a byte-level tokenizer, as those of GPT-2 and Qwen are."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer, library.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    special, alphabet = ["<|im_start|>", END], tokenizers.pre_tokenizers.ByteLevel.alphabet()
    text = ["the cat and the other cat sat on the mat, and then they went together to the market\n", "user assistant system tool result"] * 20
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(text, trainer)
    library.save(str(folder / "tokenizer.json"))
    return FileTokenizer(folder / "tokenizer.json", end=END)


def engine(config: ModelConfig = CONFIG, seed: int = 3, **options: Any) -> Engine:
    return Engine(Model.random(config, scale=0.3), slots=32, room=256, seed=seed, **options)


def template() -> ChatTemplate:
    return ChatTemplate(CHATML)


def request(url: str, key: str, method: str, body: object = None, timeout: float = TIMEOUT) -> tuple[int, Any, Any]:
    """Return the status, the object and the headers of an answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        connection.request(method, parts.path, data, {"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


def chat(session: Session, messages: list[dict[str, Any]], **fields: Any) -> tuple[int, Any, Any]:
    body = {"model": "echo", "messages": messages, "max_tokens": 12, "return_token_ids": True} | fields
    return request(f"{session.base_url}/chat/completions", session.key, "POST", body)


def say(session: Session, messages: list[dict[str, Any]], text: str, **fields: Any) -> tuple[Any, Any]:
    """Say something, and put it and the answer behind the messages. Return the choice and the headers."""
    messages.append({"role": "user", "content": text})
    status, answer, headers = chat(session, messages, **fields)
    assert status == 200, answer
    messages.append(answer["choices"][0]["message"])
    return answer["choices"][0], headers


def operate(endpoint: Endpoint, path: str, body: object = None, method: str = "POST", key: str | None = None) -> tuple[int, Any, Any]:
    """Ask as the operator, or with another key."""
    return request(endpoint.url.removesuffix("/v1") + path, endpoint.token if key is None else key, method, body)
