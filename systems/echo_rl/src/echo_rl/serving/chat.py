"""Conversations as one prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Message = Mapping[str, str]
"""``role`` and ``content``, both text."""


class ChatTemplate:
    """Writes a conversation as the text that the model continues.

    Args:
        source: A template in Jinja as Hugging Face models have it. It runs in Jinja's sandbox. None writes a line ``role: content`` for each message.
        special: What the template may name, such as ``bos_token``.
    """

    def __init__(self, source: str | None = None, special: Mapping[str, str] | None = None) -> None:
        self._special, self._template = dict(special or {}), None
        if source is not None:
            from jinja2.sandbox import ImmutableSandboxedEnvironment

            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _refuse
            self._template = environment.from_string(source)

    @classmethod
    def of(cls, folder: str | Path) -> ChatTemplate:
        """Return the template of a model's folder: ``chat_template.jinja``, or that in ``tokenizer_config.json``, or the plain one."""
        file, own = Path(folder) / "tokenizer_config.json", Path(folder) / "chat_template.jinja"
        found = json.loads(file.read_text()) if file.exists() else {}
        special = {name: value if isinstance(value, str) else value.get("content", "") for name, value in found.items() if name.endswith("_token") and value}
        source = own.read_text() if own.exists() else found.get("chat_template")
        return cls(source if isinstance(source, str) else None, special)

    def __call__(self, messages: Sequence[Message]) -> str:
        """Return the prompt, up to where the answer begins. Raise ValueError for a conversation that the template refuses."""
        if self._template is None:
            return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant:"
        from jinja2 import TemplateError

        try:
            return str(self._template.render(messages=list(messages), add_generation_prompt=True, **self._special))
        except TemplateError as error:
            raise ValueError(f"the chat template refuses this conversation: {error}") from error


def _refuse(message: str) -> Any:
    from jinja2 import TemplateError

    raise TemplateError(message)
