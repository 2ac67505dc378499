"""The messages and tools of a chat: which of them are accepted, and the calls of tools that an answer makes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from echo_rl.serving.errors import ApiError

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_TOOLS = 128
CALL = "<tool_call>"
"""What begins a call of a tool in an answer, as in the models of Hermes, Qwen and SmolLM."""

_TEXTS = ("name", "tool_call_id", "reasoning_content")
_BLOCK = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.S)


def checked_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat, each with the fields that templates know and a content of text.

    Parts of text become one text. Nothing that a message links to is fetched, and parts that are not text are refused, because the model reads text only.
    Raise ApiError, which names the message.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not given or not all(isinstance(m, dict) for m in given):
        raise ApiError(400, "messages must be a list of at least one object", param="messages")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(given)]


def checked_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of a chat. Raise ApiError for what is no tool, and for a choice that nobody here can enforce."""
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS or not all(_is_tool(tool) for tool in tools):
        need = f'at most {MOST_TOOLS} objects such as {{"type": "function", "function": {{"name": "search"}}}}'
        raise ApiError(400, f"tools must be a list of {need}", param="tools")
    if choice not in (None, "auto", "none"):
        raise ApiError(400, f"tool_choice={choice!r} is not supported here; auto and none are"[:500], param="tool_choice", code="unsupported_value")
    return tools


def wants_calls(body: Mapping[str, Any]) -> bool:
    """Whether calls of tools in the answer are to be told apart from its text."""
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


def tool_calls(text: str, seed: Sequence[int] = ()) -> tuple[str, list[dict[str, Any]]]:
    """Take the calls of tools out of an answer, and return the rest and the calls.

    A block that is no call, such as one that was cut off or has no JSON, stays in the text. The numbers of the calls follow from ``seed`` and the text, so
    that the same answer to the same prompt is the same message.
    """
    calls: list[dict[str, Any]] = []

    def take(found: re.Match[str]) -> str:
        try:
            call = json.loads(found[1])
        except (ValueError, RecursionError):
            return found[0]
        arguments = call.get("arguments", {})
        if not isinstance(call.get("name"), str) or not isinstance(arguments, dict):
            return found[0]
        number = hashlib.sha256(repr((list(seed), text, len(calls))).encode()).hexdigest()[:24]
        calls.append({"id": f"call_{number}", "type": "function", "function": {"name": call["name"], "arguments": json.dumps(arguments)}})
        return ""

    rest = _BLOCK.sub(take, text)
    return rest, calls


def before_calls(text: str) -> str:
    """Return how much of a growing answer is certainly not part of a call."""
    begin = text.find(CALL)
    if begin >= 0:
        return text[:begin]
    held = max((n for n in range(1, len(CALL)) if text.endswith(CALL[:n])), default=0)
    return text[: len(text) - held]


def _message(where: str, given: dict[str, Any]) -> dict[str, Any]:
    # Clients send answers back with everything that they had, and their own classes write what is missing as null or as an empty list.
    message = {name: value for name, value in given.items() if value is not None and value != []}
    if unknown := sorted(set(message) - {"role", "content", "tool_calls", *_TEXTS}):
        raise ApiError(400, f"{where} has the field {unknown[0][:100]!r}, which no chat template of this endpoint reads", param=where, code="unknown_parameter")
    if message.get("role") not in ROLES:
        raise ApiError(400, f"{where} must have a role of {', '.join(ROLES[:-1])} or {ROLES[-1]}", param=where)
    for name in _TEXTS:
        if not isinstance(message.get(name, ""), str):
            raise ApiError(400, f"{where}.{name} must be a text", param=where)
    if "tool_calls" in message:
        _check_calls(where, message)
    message["content"] = _content(where, message)
    return message


def _content(where: str, message: dict[str, Any]) -> str:
    content = message.get("content", "" if message["role"] == "assistant" else None)
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ApiError(400, f"{where} must have a content of text, or of parts of text", param=where)
    for i, part in enumerate(content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            what = f"{where}.content[{i}] has the type {str(part.get('type'))[:100]!r}"
            need = "this model reads text only, and the endpoint follows no link; write what the part says as text"
            raise ApiError(400, f"{what}; {need}", param=where, code="unsupported_content")
    return "".join(part["text"] for part in content)


def _check_calls(where: str, message: dict[str, Any]) -> None:
    calls = message["tool_calls"]
    if message["role"] != "assistant" or not isinstance(calls, list):
        raise ApiError(400, f"{where}.tool_calls must be a list, in a message of the assistant", param=where)
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        try:
            right = isinstance(function, dict) and isinstance(function["name"], str) and isinstance(json.loads(function["arguments"] or "{}"), dict)
        except (KeyError, TypeError, ValueError, RecursionError):
            right = False
        if not right:
            raise ApiError(400, f"{where}.tool_calls[{i}] must have a function with a name, and with arguments that are an object as JSON", param=where)
    # What a client adds, such as the index that a call has in a stream, does not make another message of it.
    message["tool_calls"] = [
        {"id": call.get("id"), "type": "function", "function": {name: call["function"][name] for name in ("name", "arguments")}} for call in calls
    ]


def _is_tool(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
