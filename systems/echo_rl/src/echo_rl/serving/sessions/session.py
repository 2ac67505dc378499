"""One session of an agent: its turns, its reward and its end."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echo_rl.checks import check, check_fields, one_of, optional, real, whole
from echo_rl.rollouts.schema import FINISH_REASONS
from echo_rl.serving.errors import ApiError
from echo_rl.serving.protocol import Choice
from echo_rl.serving.sessions.histories import History
from echo_rl.serving.sessions.turns import Continuation, Turn, Turns, describe, turn_bytes

ENDED = "it was ended"


@dataclass(frozen=True)
class SessionLimits:
    """What sessions may use. A request that goes beyond is refused, and the session stays as it is.

    Attributes:
        sessions: Open sessions of an endpoint.
        turns: Answers of one session, those under way included.
        branches: Branches of one session.
        bytes: Bytes that the record of one session takes. A call is counted with as many new tokens as it may make.
        idle: For how many seconds a session may be without a call. It then ends without a record.
    """

    sessions: int = 256
    turns: int = 64
    branches: int = 16
    bytes: int = 4 << 20
    idle: float = 600.0

    def __post_init__(self) -> None:
        check_fields(self, sessions=whole(1), turns=whole(1), branches=whole(1), bytes=whole(1), idle=real(above=0))


@dataclass(frozen=True)
class EndedSession:
    """What an ended session leaves behind.

    Attributes:
        id: The number of the session.
        task, attempt: As the session was opened with.
        reward: Of the whole session.
        finish: One of ``FINISH_REASONS``, if the end gave one. None: each branch has its own.
        branches: The last turn of each branch; ``path()`` has the others.
        metadata: As the session was opened with.
    """

    id: str
    task: int
    attempt: int
    reward: float
    finish: str | None
    branches: tuple[Turn, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return all but the tokens, as JSON has it."""
        found = {name: getattr(self, name) for name in ("id", "task", "attempt", "reward", "finish")}
        return {**found, "branches": [describe(turn) for turn in self.branches]}


class Session:
    """An open session. ``Endpoint.open_session`` makes it; all methods may be called by several threads.

    Attributes:
        id: Its number, which is part of ``base_url``.
        key: The key that can complete in this session and do nothing else.
        base_url: The base URL for the agent.
        task, attempt, seed, metadata: As it was opened with.
        reward: The reward, or None before there is one.
    """

    def __init__(
        self,
        id: str,
        key: str,
        base_url: str,
        limits: SessionLimits,
        close: Callable[[Session, EndedSession | None, str], None],
        *,
        task: int = 0,
        attempt: int = 0,
        seed: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        check("task", task, whole(-(2**63), 2**63 - 1))
        check("attempt", attempt, whole(0, 2**31 - 1))
        check("seed", seed, optional(whole(0, 2**63 - 1)))
        self.id, self.key, self.base_url, self.task, self.attempt, self.seed = id, key, base_url, task, attempt, seed
        self.metadata = dict(metadata or {})
        self.reward: float | None = None
        self._limits, self._close = limits, close
        self._turns = Turns()
        self._changed = threading.Condition()
        self._ending = threading.Lock()
        self._calls: set[Call] = set()
        self._reserved = self._reserved_bytes = self._asked = self._branches = self._next_branch = 0
        self._closed = self._over = False
        self._used = time.monotonic()

    def continuation(self, history: History) -> Continuation:
        """Return where a call continues the session. Raise ApiError if the session has ended, and for what cannot be encoded."""
        with self._changed:
            self._refuse_closed()
            self._used = time.monotonic()
            return self._turns.find(history)

    def call(self, where: Continuation, n: int, max_new: int) -> Call:
        """Reserve the turns of a call for ``n`` answers. Raise ApiError if the session has ended, or a limit would be exceeded."""
        with self._changed:
            self._refuse_closed()
            parent, limits = where.parent, self._limits
            fresh = parent is None or parent.claimed
            began = self._began(where) if fresh else "recorded"
            cost = n * turn_bytes(len(where.given), max_new)
            for name, asked, most in (
                ("turns", len(self._turns.all) + self._reserved + n, limits.turns),
                ("branches", self._branches + n - 1 + fresh, limits.branches),
                ("bytes", self._turns.bytes + self._reserved_bytes + cost, limits.bytes),
            ):
                if asked > most:
                    if parent is not None:
                        parent.limited = True
                    raise ApiError(400, f"this call would make {asked} {name} of the session; at most {most} are allowed", code=f"session_{name}_exceeded")
            if parent is not None:
                parent.claimed = True
            places = []
            for i in range(n):
                if i or fresh:
                    places.append((self._next_branch, "choice" if i else began))
                    self._next_branch += 1
                else:
                    assert parent is not None
                    places.append((parent.branch, began))
            self._branches += n - 1 + fresh
            self._reserved += n
            self._reserved_bytes += cost
            self._asked += 1
            call = Call(self, where, places, not fresh, cost, self._asked)
            self._calls.add(call)
            return call

    def _began(self, where: Continuation) -> str:
        """Say why a call begins a branch."""
        if where.hidden:
            return "template"
        if self._turns.was_answered(where.history):
            return "resampled"
        return "edited" if self._turns.all or self._calls else "start"

    def limited(self, where: Continuation) -> None:
        """Note that the branch could not go on because of the model's context."""
        with self._changed:
            if where.parent is not None:
                where.parent.limited = True

    def set_reward(self, reward: float) -> None:
        """Give the reward of the whole session, in the place of an earlier one. Raise ApiError for what is no finite number, and if the session has ended."""
        need = real(-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
        try:
            check("reward", reward, need)
        except ValueError as error:
            raise ApiError(400, str(error), param="reward", code="invalid_value") from error
        with self._changed:
            if self._over:
                raise ApiError(409, "the session has ended", code="session_ended")
            self._used = time.monotonic()
            self.reward = float(reward)

    def end(self, reward: float | None = None, *, finish: str | None = None, discard: bool = False, timeout: float = 30.0) -> EndedSession | None:
        """End the session: its key can do nothing more, and calls that are under way are aborted and not recorded.

        Args:
            reward: As ``set_reward`` takes it.
            finish: Why the session ended, one of ``FINISH_REASONS``. None says it for each branch: ``"length"`` if its last answer or a limit ended it.
            discard: Whether there shall be no record.
            timeout: For how many seconds to wait for the calls under way.

        Returns:
            What the session leaves behind, after ``on_end`` of the endpoint has taken it; None if it is discarded.

        Raises:
            ApiError: The session has no reward or no turn, which only ``discard`` accepts; it has ended already; or ``on_end`` has failed. The session can
                then be ended again.
            TimeoutError: A call did not end.
        """
        try:
            check("finish", finish, optional(one_of(*FINISH_REASONS)))
        except ValueError as error:
            raise ApiError(400, str(error), param="finish", code="invalid_value") from error
        if reward is not None:
            self.set_reward(reward)
        with self._ending:
            with self._changed:
                if self.reward is None and not discard:
                    raise ApiError(400, "the session has no reward; give reward, or discard=true to end it without a record", param="reward", code="no_reward")
                if not discard:
                    self._refuse_empty()
                self._closed = True
                calls = list(self._calls)
            for call in calls:
                call.cancel()
            with self._changed:
                if not self._changed.wait_for(lambda: not self._calls, timeout):
                    raise TimeoutError(f"{len(self._calls)} calls of the session {self.id} did not end within {timeout} s")
                ended = None
                if not discard and self.reward is not None:
                    self._refuse_empty()
                    leaves = tuple(self._turns.leaves())
                    ended = EndedSession(self.id, self.task, self.attempt, self.reward, finish, leaves, self.metadata)
            self._close(self, ended, ENDED)
            self._over = True
            return ended

    def end_if_idle(self, seconds: float) -> bool:
        """End the session without a record if no call was made for as many seconds. Return whether it has ended."""
        if not self._ending.acquire(blocking=False):
            return False  # Somebody ends it, and may have to wait for the code that takes the record.
        try:
            with self._changed:
                if self.idle(time.monotonic()) < seconds:
                    return False
                self._closed = True
            self._close(self, None, f"it was idle for {seconds} s")
            self._over = True
            return True
        finally:
            self._ending.release()

    def idle(self, now: float) -> float:
        """Return for how many seconds no call was made or under way."""
        with self._changed:
            return 0.0 if self._calls else now - self._used

    def describe(self) -> dict[str, Any]:
        """Return the state of the session, without its key."""
        with self._changed:
            return {
                "id": self.id,
                "object": "session",
                "task": self.task,
                "attempt": self.attempt,
                "reward": self.reward,
                "calls": len(self._calls),
                "bytes": self._turns.bytes,
                "branches": [describe(turn) for turn in self._turns.leaves()],
                "metadata": self.metadata,
            }

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ApiError(403, "the session has ended", "permission_error", code="session_ended")

    def _refuse_empty(self) -> None:
        if not self._turns.all:
            raise ApiError(400, "the session has no turn; end it with discard=true", code="no_turns")

    def _record(self, call: Call, index: int, choice: Choice) -> Turn:
        with self._changed:
            self._refuse_closed()
            branch, began = call.places[index]
            self._reserved -= 1
            return self._turns.add(call.where, branch, began, choice)

    def _leave(self, call: Call, lost: list[int], undone: list[Turn]) -> None:
        """Give back what a call has reserved: ``lost`` are the places of answers that were not made, ``undone`` the turns that their client did not get."""
        with self._changed:
            for turn in undone:
                if turn.children or turn.claimed:
                    continue  # Somebody continues it, so its client has it.
                self._turns.remove(turn)
                lost = [*lost, next(i for i, (branch, _) in enumerate(call.places) if branch == turn.branch)]
                self._reserved += 1
            for index in lost:
                self._reserved -= 1
                if index == 0 and call.inherits:
                    assert call.where.parent is not None
                    call.where.parent.claimed = False
                else:
                    self._branches -= 1
            self._reserved_bytes -= call.cost
            self._calls.discard(call)
            self._used = time.monotonic()
            self._changed.notify_all()


class Call:
    """The turns of a session that one call is about to make. Use it as a context manager: turns that were not made, or not delivered, leave no trace."""

    def __init__(self, session: Session, where: Continuation, places: list[tuple[int, str]], inherits: bool, cost: int, number: int) -> None:
        self.session, self.where, self.places, self.inherits, self.cost = session, where, places, inherits, cost
        self._number = number
        self._made: dict[int, Turn] = {}
        self._delivered: set[int] = set()
        self._cancel: Callable[[], None] | None = None
        self._cancelled = False

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        lost = [i for i in range(len(self.places)) if i not in self._made]
        self.session._leave(self, lost, [turn for i, turn in self._made.items() if i not in self._delivered])

    @property
    def headers(self) -> dict[str, str]:
        """What the answer says about where it stands in the session, one value for each choice."""
        depth = len(self.where.parent.path()) if self.where.parent else 0
        return {
            "Echo-Session": self.session.id,
            "Echo-Turn": str(depth),
            "Echo-Branch": ", ".join(str(branch) for branch, _ in self.places),
            "Echo-Branch-Began": ", ".join(began for _, began in self.places),
            "Echo-Recorded-Tokens": str(len(self.where.prompt) - len(self.where.given)),
        }

    @property
    def seed(self) -> int | None:
        """The seed of the call, which follows from that of the session and from how many calls there were; None if the session has none."""
        if self.session.seed is None:
            return None
        return int.from_bytes(hashlib.sha256(f"{self.session.seed} {self._number}".encode()).digest()[:7], "big")

    def started(self, cancel: Callable[[], None]) -> None:
        """Take what aborts the call. It is carried out at once if the session has ended meanwhile."""
        with self.session._changed:
            self._cancel = cancel
            late = self._cancelled
        if late:
            cancel()

    def cancel(self) -> None:
        """Abort the call, because the session ends."""
        with self.session._changed:
            self._cancelled = True
            cancel = self._cancel
        if cancel is not None:
            cancel()

    @property
    def cancelled(self) -> bool:
        """Whether the session has ended meanwhile."""
        return self._cancelled

    def record(self, choice: Choice) -> None:
        """Record an answer that has ended, before its client learns of it. Raise ApiError if the session has ended."""
        self._made[choice.index] = self.session._record(self, choice.index, choice)

    def delivered(self, choice: Choice) -> None:
        """Note that the answer was sent to its client."""
        self._delivered.add(choice.index)
