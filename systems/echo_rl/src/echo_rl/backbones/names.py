"""The names of models that the seed used, and where each of them is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Known:
    """A model's adapter, its id there, the environment variable of its key, and options of the adapter."""

    adapter: str
    model: str
    variable: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def _like_openai(model: str, variable: str, url: str, many: bool = False) -> Known:
    return Known("openai", model, variable, MappingProxyType({"url": url, "limit": "max_tokens", "many": many}))


NAMES: Mapping[str, Known] = MappingProxyType(
    {
        "gpt-4o": Known("openai", "gpt-4o", "OPENAI_API_KEY"),
        "claude-3.5-sonnet": Known("anthropic", "claude-3-5-sonnet-20241022", "ANTHROPIC_API_KEY"),
        "gemini-1.5-pro": Known("google", "gemini-1.5-pro", "GEMINI_API_KEY"),
        "llama-4": _like_openai("Llama-4-Maverick-17B-128E-Instruct-FP8", "LLAMA_API_KEY", "https://api.llama.com/compat/v1"),
        "qwen": _like_openai("qwen-plus", "DASHSCOPE_API_KEY", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
        "qwen-7b": _like_openai("qwen2.5-7b-instruct", "DASHSCOPE_API_KEY", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
        "deepseek-r1": _like_openai("deepseek-reasoner", "DEEPSEEK_API_KEY", "https://api.deepseek.com/v1"),
        "mistral": _like_openai("mistral-large-latest", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    }
)
"""The one table. A provider may retire an id: ``backbone("openai:ID")`` and the like take any other."""
