"""Conversations as one prompt, and what a conversation adds behind an answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

Message = Mapping[str, Any]
"""``role`` and ``content``, both text, and what else the template knows, such as ``tool_calls``."""

Tool = Mapping[str, Any]


class ChatTemplate:
    """Writes a conversation as the text that the model continues.

    Args:
        source: A template in Jinja as Hugging Face models have it. It runs in Jinja's sandbox. None writes a line ``role: content`` for each message.
        special: What the template may name, such as ``bos_token``.
    """

    def __init__(self, source: str | None = None, special: Mapping[str, str] | None = None) -> None:
        self._special, self._template, self._takes_tools = dict(special or {}), None, False
        if source is not None:
            self._template = _environment().from_string(source)
            self._takes_tools = re.search(r"\btools\b", source) is not None

    @classmethod
    def of(cls, folder: str | Path) -> ChatTemplate:
        """Return the template of a model's folder: ``chat_template.jinja``, or that in ``tokenizer_config.json``, or the plain one."""
        file, own = Path(folder) / "tokenizer_config.json", Path(folder) / "chat_template.jinja"
        found = json.loads(file.read_text()) if file.exists() else {}
        special = {name: value if isinstance(value, str) else value.get("content", "") for name, value in found.items() if name.endswith("_token") and value}
        source = own.read_text() if own.exists() else found.get("chat_template")
        return cls(source if isinstance(source, str) else None, special)

    def __call__(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Return the prompt, up to where the answer begins.

        Raise ValueError for a conversation that the template refuses, and for tools that it would leave out.
        """
        if tools and not self._takes_tools:
            raise ValueError("the chat template does not name tools, so the model would not learn of them; give the endpoint the template of the model")
        if self._template is None:
            return "".join(f"{m['role']}: {_with_calls(m)}\n" for m in messages) + "assistant:"
        from jinja2 import TemplateError

        try:
            given = [_with_arguments(message) for message in messages]
            return str(self._template.render(messages=given, tools=list(tools) or None, add_generation_prompt=True, **self._special))
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template refuses this conversation: {error}") from error

    def behind(self, messages: Sequence[Message], answered: int, tools: Sequence[Tool] = ()) -> str | None:
        """Return only what the prompt has behind the answer ``messages[answered - 1]``: its end, the later messages, and the beginning of the next answer.

        The answer itself and everything before it are not read, so it does not matter whether the template writes old answers in another way. Return None
        if the template does not write an answer's content exactly once: then no such place exists. Raise ValueError as a call does.
        """
        # No message can contain the digest of all messages.
        mark = "answer" + hashlib.sha256(json.dumps([list(messages), answered], default=str).encode()).hexdigest()
        marked = [*messages[: answered - 1], {"role": "assistant", "content": mark}, *messages[answered:]]
        _, found, rest = self(marked, tools).partition(mark)
        return rest if found and mark not in rest else None


def _environment() -> Any:
    """Return a sandbox with what chat templates rely on: these are the names that transformers gives them."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Reads the blocks by which some templates mark answers. They change nothing in the text."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    # The filter that Jinja has escapes for HTML.
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    return environment


def _with_arguments(message: Message) -> Message:
    """Return a message whose calls of tools have their arguments as objects, since templates write them as JSON themselves."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        calls.append({**call, "function": {**function, "arguments": json.loads(function["arguments"] or "{}")}})
    return {**message, "tool_calls": calls}


def _with_calls(message: Message) -> str:
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
    return " ".join([message["content"], *calls] if message["content"] else calls)


def _refuse(message: str) -> Any:
    from jinja2 import TemplateError

    raise TemplateError(message)
