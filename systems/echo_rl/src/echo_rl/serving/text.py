"""Texts and tokens: tokenizers, texts that grow token by token, and stop strings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Tokenizer(Protocol):
    """Turns text into tokens and back.

    Attributes:
        vocab: The number of tokens.
        end: The token that ends an answer, or None.
    """

    vocab: int
    end: int | None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become U+FFFD."""
        ...


class ByteTokenizer:
    """The bytes of UTF-8 as tokens 0 .. 255. It needs no file, and any model with at least 256 tokens can use it; higher tokens decode to nothing."""

    def __init__(self, end: int | None = None) -> None:
        self.vocab, self.end = 256, end

    def encode(self, text: str) -> list[int]:
        """Return the bytes."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens below 256."""
        return bytes(t for t in tokens if 0 <= t < 256).decode(errors="replace")


class FileTokenizer:
    """The tokenizer of a ``tokenizer.json``. It needs the library ``tokenizers``.

    Args:
        path: The file.
        end: The text of the token that ends an answer, such as ``"</s>"``.

    Raises:
        ValueError: If the vocabulary has no token ``end``.
    """

    def __init__(self, path: str | Path, end: str | None = None) -> None:
        from tokenizers import Tokenizer as Library

        self._library = Library.from_file(str(path))
        self.vocab = self._library.get_vocab_size()
        self.end = None if end is None else self._library.token_to_id(end)
        if end is not None and self.end is None:
            raise ValueError(f"{path}: no token {end!r} is in the vocabulary")

    def encode(self, text: str) -> list[int]:
        """Return the tokens, without special ones that the text does not contain."""
        found: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text without special tokens."""
        found: str = self._library.decode(list(tokens), skip_special_tokens=True)
        return found


class TextStream:
    """The text of one answer while its tokens come.

    A character that consists of several tokens appears once it is whole. A possible beginning of a stop string is held back until the next tokens decide,
    so a stop string never appears in the text, however the tokens cut it.

    Args:
        tokenizer: Decodes the tokens.
        stop: Strings that end the answer. The text ends before the first of them.
        ends: Further tokens that end the answer, beside the tokenizer's own; a model's files name them.

    Attributes:
        tokens: All tokens so far.
        text: The part of the text that can no longer change.
        stopped: Whether a stop string was found.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), ends: Sequence[int] = ()) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty")
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._ends = frozenset(ends) | ({tokenizer.end} if tokenizer.end is not None else set())
        self.tokens: list[int] = []
        self.text, self.stopped = "", False
        # Only the newest tokens are decoded at each step; the tokens before `_begin` gave `_settled` characters of whole text.
        self._begin = self._read = 0
        self._whole = ""

    def push(self, token: int) -> bool:
        """Add a token and return whether the answer ends here."""
        self.tokens.append(token)
        if token in self._ends:
            self.finish()
            return True
        before = self._tokenizer.decode(self.tokens[self._begin : self._read])
        now = self._tokenizer.decode(self.tokens[self._begin :])
        if len(now) > len(before) and not now.endswith("\ufffd"):
            self._whole += now[len(before) :]
            # One piece of context stays, because some tokenizers write a space only between two tokens.
            self._begin, self._read = self._read, len(self.tokens)
        return self._settle(last=False)

    def finish(self) -> str:
        """Give up waiting for further tokens, and return the final text."""
        if not self.stopped:
            rest = self.tokens[:-1] if self.tokens and self.tokens[-1] in self._ends else self.tokens
            before = self._tokenizer.decode(self.tokens[self._begin : self._read])
            self._whole += self._tokenizer.decode(rest[self._begin :])[len(before) :]
            self._begin = self._read = len(self.tokens)
            self._settle(last=True)
        return self.text

    @property
    def end(self) -> int | None:
        """The last token, if it is one that ends answers."""
        return self.tokens[-1] if self.tokens and self.tokens[-1] in self._ends else None

    @property
    def tail(self) -> str:
        """What the tokens say behind the final text: a stop string, and what the last token has behind it."""
        whole = self._tokenizer.decode(self.tokens[:-1] if self.end is not None else self.tokens)
        return whole[len(self.text) :] if whole.startswith(self.text) else ""

    def _settle(self, last: bool) -> bool:
        if self.stopped:
            return True
        # A possible beginning of a stop string was held back, so none begins in the text that is out already.
        found = [at for s in self._stop if (at := self._whole.find(s, len(self.text))) >= 0]
        if found:
            self.text, self.stopped = self._whole[: min(found)], True
            return True
        held = 0 if last else max((n for s in self._stop for n in range(1, len(s)) if self._whole.endswith(s[:n])), default=0)
        self.text = self._whole[: max(len(self.text), len(self._whole) - held)]
        return False


def tokenizer_of(folder: Path | None) -> Tokenizer:
    """Return the tokenizer of a model's folder: its ``tokenizer.json``, whose end token ``tokenizer_config.json`` names, or bytes without that file."""
    file = folder / "tokenizer.json" if folder else None
    if folder is None or file is None or not file.exists():
        return ByteTokenizer()
    config = folder / "tokenizer_config.json"
    end = json.loads(config.read_text()).get("eos_token") if config.exists() else None
    return FileTokenizer(file, end["content"] if isinstance(end, dict) else end)
