"""Ended sessions as records of rollouts, each by itself, or as the group of all attempts at one task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from echo_core import SpecError
from echo_rl.rollouts.schema import Rollout, RolloutSchema
from echo_rl.serving.sessions.session import EndedSession
from echo_rl.serving.sessions.turns import Turn

Which = Literal["only", "last"]
"""Which branch of a session is its rollout in a group: the only one, or the one with the newest turn."""

NOT_SAMPLED = -1
"""The version of tokens that no policy has sampled."""


def session_records(ended: EndedSession, schema: RolloutSchema, **extra: Any) -> list[dict[str, Any]]:
    """Return one record for each branch of a session; ``schema.group`` must be 1.

    Every sampled token counts once: where branches have a beginning in common, the mask has it in the first of their records. All of them have the reward of
    the session. ``extra`` has the value of each further leaf of the schema.

    Raises SpecError if a branch has more tokens or turns than the schema has room for.
    """
    if schema.group != 1:
        raise SpecError(f"a record of this schema has {schema.group} rollouts; put sessions of one task together with group_record or SessionGroups")
    records, counted = [], set[int]()
    for leaf in ended.branches:
        path = leaf.path()
        prompt = path[0].given
        records.append(schema.pack([_rollout(ended, leaf, len(prompt), counted)], task=ended.task, prompt=prompt, **extra))
        counted.update(id(turn) for turn in path)
    return records


def group_record(sessions: Sequence[EndedSession], schema: RolloutSchema, *, branch: Which = "only", **extra: Any) -> dict[str, Any]:
    """Return the record of all attempts at one task, in the order of the sessions.

    The prompt of the record has the tokens that all attempts begin with; what an attempt has of its own comes with its tokens, and the mask leaves it out.

    Args:
        sessions: As many sessions as the schema's group, with one task and different attempts.
        branch: ``"only"`` refuses sessions with several branches. ``"last"`` takes the branch with the newest turn, and leaves the others out.

    Raises:
        SpecError: The group is not complete, or a session does not fit; the message names it.
    """
    if len(sessions) != schema.group:
        raise SpecError(f"a record has {schema.group} rollouts, not {len(sessions)}; send the group when it is complete")
    if len({ended.task for ended in sessions}) > 1:
        raise SpecError(f"the sessions of a group must have one task, not {sorted({ended.task for ended in sessions})}")
    if len({ended.attempt for ended in sessions}) < len(sessions):
        raise SpecError(f"the sessions of task {sessions[0].task} must have different attempts, not {[ended.attempt for ended in sessions]}")
    leaves = [_leaf(ended, branch) for ended in sessions]
    prompts = [leaf.path()[0].given for leaf in leaves]
    shared = _shared(prompts)
    rollouts = [_rollout(ended, leaf, shared, set()) for ended, leaf in zip(sessions, leaves, strict=True)]
    return schema.pack(rollouts, task=sessions[0].task, prompt=prompts[0][:shared], **extra)


def oldest_version(record: dict[str, Any]) -> int:
    """Return the version of the oldest sampled token of a record, for ``Client.send(record, policy_version=...)``."""
    return int(record["versions"][record["mask"]].min())


class SessionGroups:
    """Puts the sessions of each task together, and hands a group out when it is complete. Give it to ``Endpoint(on_end=...)``.

    A group is complete when sessions with the attempts 0 to ``schema.group - 1`` of its task have ended. A second session with the same attempt is dropped.
    A session that ends without a record leaves its attempt open for another session.

    Args:
        schema: Its group says how many sessions make a record.
        send: Takes each record, such as ``client.send``. If it raises, the group stays, and the session that completes it can be ended again.
        most: The largest number of incomplete groups. A session of a further task is refused.
        branch: As in ``group_record``.

    Attributes:
        sent: How many records were sent.
        dropped: How many second attempts were dropped.
    """

    def __init__(self, schema: RolloutSchema, send: Callable[[dict[str, Any]], Any], *, most: int = 1024, branch: Which = "only") -> None:
        self.schema, self.most, self.branch = schema, most, branch
        self.sent = self.dropped = 0
        self._send = send
        self._lock = threading.Lock()
        self._groups: dict[int, dict[int, EndedSession]] = {}

    def __call__(self, ended: EndedSession) -> None:
        """Take a session. Raise SpecError if it does not fit into a group, and what ``send`` raises."""
        if not 0 <= ended.attempt < self.schema.group:
            raise SpecError(f"attempt {ended.attempt} of task {ended.task} does not belong to a group of {self.schema.group}")
        _leaf(ended, self.branch)
        with self._lock:
            if ended.task not in self._groups and len(self._groups) >= self.most:
                task, group = next(iter(self._groups.items()))
                raise SpecError(f"{self.most} groups are incomplete; the oldest, task {task}, has {sorted(group)} of {self.schema.group} attempts: drop it")
            group = self._groups.setdefault(ended.task, {})
            if ended.attempt in group:
                self.dropped += 1
                return
            group[ended.attempt] = ended
            if len(group) < self.schema.group:
                return
            # Nobody else may send the group, nor begin another one of its task, until this is done.
            try:
                self._send(group_record([group[attempt] for attempt in sorted(group)], self.schema, branch=self.branch))
            except BaseException:
                del group[ended.attempt]
                raise
            del self._groups[ended.task]
            self.sent += 1

    def incomplete(self) -> dict[int, list[int]]:
        """Return the attempts that are missing, by task, oldest first."""
        with self._lock:
            return {task: [i for i in range(self.schema.group) if i not in group] for task, group in self._groups.items()}

    def drop(self, task: int) -> bool:
        """Give up the group of a task. Return False if nothing of it was there."""
        with self._lock:
            return self._groups.pop(task, None) is not None


def _rollout(ended: EndedSession, leaf: Turn, skip: int, counted: set[int]) -> Rollout:
    """Return a branch as a rollout, without the first ``skip`` tokens of its prompt; turns in ``counted`` are not counted by the loss."""
    tokens: list[Any] = []
    logprobs: list[Any] = []
    versions: list[Any] = []
    mask: list[Any] = []
    turns, at = [], 0
    for i, turn in enumerate(leaf.path()):
        given = turn.given[skip:] if i == 0 else turn.given
        made, before = len(turn.tokens), len(given)
        turns.append(at)
        at += before + made
        tokens += [given, turn.tokens]
        logprobs += [np.zeros(before, np.float32), turn.logprobs]
        versions += [np.full(before, NOT_SAMPLED, np.int32), turn.versions]
        mask += [np.zeros(before, np.bool_), np.full(made, id(turn) not in counted)]
    finish = ended.finish or ("length" if leaf.limited or leaf.finish == "length" else "stop")
    return Rollout(
        np.concatenate(tokens),
        np.concatenate(logprobs),
        np.concatenate(versions),
        np.concatenate(mask),
        turns=turns,
        reward=ended.reward,
        attempt=ended.attempt,
        finish=finish,
    )


def _leaf(ended: EndedSession, branch: Which) -> Turn:
    if branch not in ("only", "last"):
        raise ValueError(f"branch={branch!r} must be 'only' or 'last'")
    if branch == "only" and len(ended.branches) > 1:
        why = ", ".join(entry["began"] for entry in ended.describe()["branches"][1:])
        raise SpecError(
            f"the session {ended.id} (task {ended.task}, attempt {ended.attempt}) has {len(ended.branches)} branches ({why}); "
            "a group has one rollout of each session: take branch='last', or discard the session"
        )
    return max(ended.branches, key=lambda leaf: leaf.number)


def _shared(prompts: Sequence[Any]) -> int:
    """Return how many tokens all prompts begin with."""
    least = min(len(prompt) for prompt in prompts)
    rows = np.array([prompt[:least] for prompt in prompts])
    differ = np.flatnonzero((rows != rows[0]).any(0))
    return int(differ[0]) if len(differ) else least
