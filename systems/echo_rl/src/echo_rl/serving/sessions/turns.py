"""The turns of a session: each continues the recorded tokens of the one before, and turns that go apart are branches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_rl.serving.protocol import Choice
from echo_rl.serving.sessions.histories import History, Recorded

ENTRY = 512
"""Bytes that a turn is counted with besides its tokens."""

Ints = npt.NDArray[np.int32]


@dataclass(eq=False)
class Turn:
    """One sampled answer, and what was new in the prompt that it answers.

    Attributes:
        number: Counts the turns of the session, in the order in which they ended.
        parent: The turn whose recorded tokens this one continues, or None.
        branch: The number of its branch. A turn that is the first to continue its parent has the branch of the parent.
        began: Why the turn stands where it does: ``"start"`` of the session, ``"recorded"`` (it continues the newest turn of its branch), or the reason for
            a new branch: ``"edited"`` history, ``"resampled"`` (the same history once more), ``"choice"`` (a further one of ``n``), or ``"template"`` (the
            chat template hides where an answer ends).
        given: The tokens that the prompt has behind the parent's, int32.
        tokens, logprobs, versions: The answer: int32, float32 and int32 of the same length, which is at least 1.
        finish: ``"stop"`` or ``"length"``.
        limited: Whether a further turn was refused because of a limit.
    """

    number: int
    parent: Turn | None
    branch: int
    began: str
    given: Ints
    tokens: Ints
    logprobs: npt.NDArray[np.float32]
    versions: Ints
    finish: str
    asked: bytes
    """The digest of the history that it answers."""
    recorded: Recorded
    digest: bytes
    """That of the history with the answer."""
    children: int = 0
    claimed: bool = False
    """Whether a later turn continues its branch, or is about to."""
    limited: bool = False

    def path(self) -> list[Turn]:
        """Return the turns from the first one to this one."""
        found: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            found.append(turn)
            turn = turn.parent
        return found[::-1]

    @property
    def bytes(self) -> int:
        """How many bytes the turn is counted with."""
        return turn_bytes(len(self.given), len(self.tokens))


def turn_bytes(given: int, made: int) -> int:
    """Return how many bytes a turn with as many new tokens of the prompt and of the answer is counted with."""
    return ENTRY + 4 * given + 12 * made


@dataclass(frozen=True)
class Continuation:
    """Where a call continues a session.

    Attributes:
        history: What the call asks to continue.
        parent: The turn whose recorded tokens the prompt begins with, or None.
        given: The tokens behind them.
        hidden: Whether a recorded turn could not be continued because of the chat template.
    """

    history: History
    parent: Turn | None
    given: Sequence[int]
    hidden: bool = False

    @cached_property
    def prompt(self) -> list[int]:
        """The tokens that the model continues."""
        turns = self.parent.path() if self.parent else []
        parts = [part for turn in turns for part in (turn.given, turn.tokens)]
        return [*(np.concatenate(parts).tolist() if parts else ()), *self.given]


class Turns:
    """The recorded turns of one session. Not thread-safe."""

    def __init__(self) -> None:
        self.all: list[Turn] = []
        self.bytes = self._count = 0
        self._at: dict[int, dict[bytes, Turn]] = {}

    def find(self, history: History) -> Continuation:
        """Return the longest recorded history that a history continues, and the tokens behind it. Raise ApiError for what cannot be encoded."""
        digest, at, found, data = hashlib.sha256(), 0, None, history.data
        for size in sorted(self._at):
            if size > len(data):
                break
            digest.update(data[at:size])
            at = size
            found = self._at[size].get(digest.digest(), found)
        given = None if found is None else history.behind(found.recorded)
        if found is None or given is None:
            return Continuation(history, None, history.whole(), found is not None)
        return Continuation(history, found, given)

    def add(self, where: Continuation, branch: int, began: str, choice: Choice) -> Turn:
        """Record an answer that has ended."""
        request, history, data = choice.request, where.history, where.history.answered(choice)
        self._count += 1
        turn = Turn(
            self._count,
            where.parent,
            branch,
            began,
            np.array(where.given, np.int32),
            np.array(request.output, np.int32),
            np.array(request.logprobs, np.float32),
            np.array(request.versions, np.int32),
            str(request.finish),
            _digest(history.data),
            Recorded(len(data), choice.text.tail, choice.text.end),
            _digest(data),
        )
        self.all.append(turn)
        self.bytes += turn.bytes
        if turn.parent is not None:
            turn.parent.children += 1
        # A text with an empty answer is the text itself, so a caller that sends it may as well ask for another answer.
        if len(data) > len(history.data):
            self._at.setdefault(len(data), {})[turn.digest] = turn
        return turn

    def remove(self, turn: Turn) -> None:
        """Forget a turn that nobody continues."""
        self.all.remove(turn)
        self.bytes -= turn.bytes
        if turn.parent is not None:
            turn.parent.children -= 1
        same = self._at.get(turn.recorded.size, {})
        if same.get(turn.digest) is turn:
            del same[turn.digest]

    def was_answered(self, history: History) -> bool:
        """Whether an answer to the same history is recorded."""
        digest = _digest(history.data)
        return any(turn.asked == digest for turn in self.all)

    def leaves(self) -> list[Turn]:
        """Return the last turn of each branch, in the order of the branches."""
        return sorted((turn for turn in self.all if not turn.children), key=lambda turn: turn.branch)


def describe(turn: Turn) -> dict[str, Any]:
    """Return what there is to say about the branch that ends with a turn."""
    path = turn.path()
    own = [t for t in path if t.branch == turn.branch]
    return {
        "branch": turn.branch,
        "began": own[0].began,
        "parent": None if own[0].parent is None else own[0].parent.branch,
        "turns": len(path),
        "recorded_turns": len(path) - len(own),
        "tokens": sum(len(t.given) + len(t.tokens) for t in path),
        "sampled_tokens": sum(len(t.tokens) for t in path),
        "finish": "length" if turn.limited else turn.finish,
    }


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
