"""What a call asks to continue, as tokens: the whole of it, or only what is new behind a recorded answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from echo_rl.serving.chat import ChatTemplate
from echo_rl.serving.errors import ApiError
from echo_rl.serving.messages import checked_messages, checked_tools
from echo_rl.serving.protocol import Choice
from echo_rl.serving.text import Tokenizer


@dataclass(frozen=True)
class Recorded:
    """The end of a recorded answer.

    Attributes:
        size: The bytes of the history that ends with this answer, as ``History.data`` has them.
        tail: The text of the answer's last tokens that its client did not get, such as a stop string.
        end: The answer's last token, if it is one that ends answers.
    """

    size: int
    tail: str = ""
    end: int | None = None


class History(Protocol):
    """What a call asks to continue.

    Attributes:
        data: The history as bytes. One history continues another one if its bytes begin with those of the other.
    """

    data: bytes

    def whole(self) -> list[int]:
        """Return the tokens of the whole history. Raise ApiError for what cannot be encoded."""
        ...

    def behind(self, answer: Recorded) -> list[int] | None:
        """Return the tokens of what the history has behind a recorded answer that it continues, or None if the template hides where that is."""
        ...

    def answered(self, choice: Choice) -> bytes:
        """Return the bytes of this history and an answer to it."""
        ...


class ChatHistory:
    """Messages and tools of a chat."""

    def __init__(self, body: Mapping[str, Any], tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._messages, self._tools = checked_messages(body), checked_tools(body)
        self.data, self._ends = b"chat" + _line(self._tools), []
        for message in self._messages:
            self.data += _line(message)
            self._ends.append(len(self.data))

    def whole(self) -> list[int]:
        """Return the tokens of the whole prompt."""
        try:
            text = self._template(self._messages, self._tools)
        except ValueError as error:
            raise ApiError(400, str(error), param="tools" if "tools" in str(error) else "messages") from error
        return encode(self._tokenizer, text, "messages")

    def behind(self, answer: Recorded) -> list[int] | None:
        """Return the tokens of the template behind an answer. Tokens that the answer itself has, such as that of its end, are not repeated."""
        try:
            text = self._template.behind(self._messages, self._ends.index(answer.size) + 1, self._tools)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages") from error
        if text is None:
            return None
        tokens = encode(self._tokenizer, text.removeprefix(answer.tail), "messages")
        # Some templates write a space before the end, which the model has not sampled.
        for i, token in enumerate(tokens if answer.end is not None else ()):
            if token == answer.end:
                return tokens[i + 1 :]
            if self._tokenizer.decode([token]).strip():
                break
        return tokens

    def answered(self, choice: Choice) -> bytes:
        """Return the bytes of the messages and the answer."""
        return self.data + _line(checked_messages({"messages": [choice.message()]})[0])


class TextHistory:
    """The text of a completion's prompt."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens = encode(tokenizer, text, "prompt")
        if not self._tokens:
            raise ApiError(400, "the prompt is empty", param="prompt")
        self.data = b"text" + text.encode()

    def whole(self) -> list[int]:
        """Return the tokens of the whole text."""
        return self._tokens

    def behind(self, answer: Recorded) -> list[int]:
        """Return the tokens of the text behind an answer."""
        return self._tokenizer.encode(self.data[answer.size :].decode().removeprefix(answer.tail))

    def answered(self, choice: Choice) -> bytes:
        """Return the bytes of the text and the answer."""
        return self.data + choice.answer()[0].encode()


class TokenHistory:
    """The tokens of a completion's prompt."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self.data = b"tokens" + _bytes(tokens)

    def whole(self) -> list[int]:
        """Return the tokens."""
        return self._tokens

    def behind(self, answer: Recorded) -> list[int]:
        """Return the tokens behind an answer."""
        return self._tokens[self.data.count(b",", 0, answer.size) :]

    def answered(self, choice: Choice) -> bytes:
        """Return the bytes of the tokens and those of the answer."""
        return self.data + _bytes(choice.request.output)


def histories(body: Mapping[str, Any], chat: bool, tokenizer: Tokenizer, template: ChatTemplate) -> list[History]:
    """Return what a call asks to continue: one chat, or each prompt of a completion. Raise ApiError, which names the field."""
    if chat:
        return [ChatHistory(body, tokenizer, template)]
    given = body.get("prompt")
    many = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    found: list[History] = []
    for prompt in many:
        if isinstance(prompt, str) and prompt:
            found.append(TextHistory(prompt, tokenizer))
        elif isinstance(prompt, list) and prompt and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt):
            found.append(TokenHistory(prompt))
        else:
            raise ApiError(400, "prompt must be a text, a list of tokens, or a list of these, none of them empty", param="prompt")
    return found


def encode(tokenizer: Tokenizer, text: str, param: str) -> list[int]:
    """Return the tokens of a text. Raise ApiError, which names the parameter, for what is no Unicode text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # JSON can write half of a surrogate pair, which no tokenizer takes.
        raise ApiError(400, f"{param} is no Unicode text: {error}"[:500], param=param) from error
    return tokenizer.encode(text)


def _line(value: object) -> bytes:
    # No value is the beginning of another one, because JSON writes line breaks of texts as \n.
    return json.dumps(value, sort_keys=True).encode() + b"\n"


def _bytes(tokens: Sequence[int]) -> bytes:
    return "".join(f"{token}," for token in tokens).encode()
