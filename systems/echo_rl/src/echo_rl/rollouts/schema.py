"""The record of a group of rollouts of a language model, as it travels from a worker to the learner.

    schema = RolloutSchema(group=8, most=4096)
    table = Table("rollouts", schema.example(), capacity=10_000, sampler="fifo", rate_limiter=Queue(10_000))

    client = Client(address, schema.example())
    client.send(schema.pack(rollouts, task=17, prompt=prompt_tokens))       # 8 rollouts: the group is complete, or it is not there

    batch = schema.unpack(server.sample())                                   # a TokenBatch

A record has these leaves. G is the size of a group; the rows of its rollouts follow one another.

| leaf | dtype, shape | what it is |
|---|---|---|
| `task` | int64 () | the number of the task that all rollouts of the group tried |
| `prompt` | int32 (prompt,) | the tokens that all rollouts begin with, carried once |
| `tokens` | int32 (token,) | the tokens after the prompt, of the policy and of the environment |
| `logprobs` | float32 (token,) | of each token under the policy that sampled it (the behaviour policy) |
| `versions` | int32 (token,) | the version of the policy that sampled it: weights may change within a rollout |
| `mask` | bool (token,) | whether the loss counts the token: false for those of the environment, such as results of tools |
| `lengths` | int32 (G,) | tokens of each rollout; their sum is the length of the axis `token` |
| `turns` | int32 (turn,) | where each turn begins, counted from the beginning of its rollout |
| `turn_counts` | int32 (G,) | turns of each rollout; their sum is the length of the axis `turn` |
| `rewards` | float32 (G,) | of each whole rollout |
| `attempts` | int32 (G,) | which attempt at the task each rollout is |
| `finish` | uint8 (G,) | the index in `FINISH_REASONS` of why it ended |

and those of `extra`, which all rollouts of a group share, such as a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_core import Ragged, SpecError

__all__ = ["FINISH_REASONS", "Rollout", "RolloutSchema", "TokenBatch"]

#: Why a rollout ended: it was complete; it reached the most tokens or turns; it was given up; the environment failed.
FINISH_REASONS = ("stop", "length", "abort", "error")

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rollout:
    """One rollout, without its prompt.

    Attributes:
        tokens: whole numbers of shape (T,).
        logprobs: float of shape (T,).
        versions: whole numbers of shape (T,), or one for all tokens.
        mask: bool of shape (T,); None counts all tokens.
        turns: where each turn begins, ascending from 0 to T - 1; None is one turn.
        reward, attempt: of the whole rollout.
        finish: one of `FINISH_REASONS`.
    """

    tokens: npt.ArrayLike
    logprobs: npt.ArrayLike
    versions: npt.ArrayLike
    mask: npt.ArrayLike | None = None
    turns: npt.ArrayLike | None = None
    reward: float = 0.0
    attempt: int = 0
    finish: str = "stop"


@dataclass(frozen=True)
class TokenBatch:
    """A batch of N rollouts, packed: their tokens follow one another without padding. The arrays are views of the batch where that is possible.

    Attributes:
        tokens, logprobs, versions, mask: of shape (sum of the lengths,), as in a record.
        cu_seqlens: int32 (N + 1,): where each rollout begins, and the end of the last one, as flash-attention takes it.
        rewards, attempts, finish: of shape (N,).
        group: int32 (N,): which group of the batch each rollout belongs to. Rollouts of a group follow one another.
        tasks: int64 (groups,).
        turns: int32: where each turn begins, counted from the beginning of its rollout. turn_cu_seqlens: int32 (N + 1,): the turns of each rollout.
        prompts: int32: the prompts of the groups. prompt_cu_seqlens: int32 (groups + 1,).
        extra: the schema's `extra` leaves, as in the batch of the table. extra_offsets: the offsets of their axes.
    """

    tokens: Ints
    logprobs: Floats
    versions: Ints
    mask: Bools
    cu_seqlens: Ints
    rewards: Floats
    attempts: Ints
    finish: npt.NDArray[np.uint8]
    group: Ints
    tasks: npt.NDArray[np.int64]
    turns: Ints
    turn_cu_seqlens: Ints
    prompts: Ints
    prompt_cu_seqlens: Ints
    extra: dict[str, Any] = field(default_factory=dict)
    extra_offsets: dict[str, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rewards)

    def with_prompts(self) -> TokenBatch:
        """Return a copy in which each rollout begins with the prompt of its group, whose tokens have mask false, log-probability 0 and version -1.
        The first turn then begins behind the prompt."""
        spans = [slice(*self.prompt_cu_seqlens[i : i + 2]) for i in self.group]
        sizes = np.array([span.stop - span.start for span in spans], np.int32)

        def joined(own: npt.NDArray[Any], before: Sequence[npt.NDArray[Any]]) -> Any:
            parts = [part for i, one in enumerate(before) for part in (one, own[self.cu_seqlens[i] : self.cu_seqlens[i + 1]])]
            return np.concatenate([own[:0], *parts])

        prompts = [self.prompts[span] for span in spans]
        return replace(
            self,
            tokens=joined(self.tokens, prompts),
            logprobs=joined(self.logprobs, [np.zeros(n, np.float32) for n in sizes]),
            versions=joined(self.versions, [np.full(n, -1, np.int32) for n in sizes]),
            mask=joined(self.mask, [np.zeros(n, np.bool_) for n in sizes]),
            cu_seqlens=_offsets(np.diff(self.cu_seqlens) + sizes),
            turns=self.turns + np.repeat(sizes, np.diff(self.turn_cu_seqlens)),
            prompts=self.prompts[:0],
            prompt_cu_seqlens=np.zeros_like(self.prompt_cu_seqlens),
        )


class RolloutSchema:
    """The example of records of groups of rollouts, how a worker makes one, and how the learner reads a batch of them.

    Args:
        group: rollouts of one record.
        most: the most tokens of one rollout. most_prompt: of a prompt; None is `most`. most_turns: the most turns of one rollout.
        extra: further leaves of the example, which all rollouts of a group share, such as `{"picture": Ragged(np.uint8, (3,), "pixel", 1 << 20)}`.

    Raises:
        ValueError: a number is less than 1. SpecError: `extra` has a name of the schema.
    """

    def __init__(
        self, *, group: int = 1, most: int = 4096, most_prompt: int | None = None, most_turns: int = 64, extra: Mapping[str, Any] | None = None
    ) -> None:
        for name, value in (("group", group), ("most", most), ("most_prompt", most_prompt or 1), ("most_turns", most_turns)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.group, self.most, self.most_turns = group, most, most_turns
        self.most_prompt = most if most_prompt is None else most_prompt
        self.extra = dict(extra or {})
        if taken := sorted(set(self.extra) & set(self._own())):
            raise SpecError(f"extra has the leaf {taken[0]!r}, which every record of rollouts has; give it another name")

    def _own(self) -> dict[str, Any]:
        each, rows = self.group, self.most * self.group
        return {
            "task": np.zeros((), np.int64),
            "prompt": Ragged(np.int32, axis="prompt", most=self.most_prompt),
            "tokens": Ragged(np.int32, axis="token", most=rows),
            "logprobs": Ragged(np.float32, axis="token", most=rows),
            "versions": Ragged(np.int32, axis="token", most=rows),
            "mask": Ragged(np.bool_, axis="token", most=rows),
            "lengths": np.zeros(each, np.int32),
            "turns": Ragged(np.int32, axis="turn", most=self.most_turns * each),
            "turn_counts": np.zeros(each, np.int32),
            "rewards": np.zeros(each, np.float32),
            "attempts": np.zeros(each, np.int32),
            "finish": np.zeros(each, np.uint8),
        }

    def example(self) -> dict[str, Any]:
        """The example for `Table`, `Server` and `Client`."""
        return {**self._own(), **self.extra}

    def pack(self, rollouts: Sequence[Rollout], *, task: int, prompt: npt.ArrayLike = (), **extra: Any) -> dict[str, Any]:
        """Return the sample that `Client.send` takes.

        Args:
            rollouts: the whole group.
            task: the number of the task. prompt: the tokens that all of them begin with. extra: the value of each `extra` leaf.

        Raises:
            SpecError: the group is not complete, an array has another shape than its tokens, or a value does not fit; the message names the
                rollout and the array.
        """
        if len(rollouts) != self.group:
            raise SpecError(f"a record has {self.group} rollouts, not {len(rollouts)}; send the group when it is complete")
        if extra.keys() != self.extra.keys():
            raise SpecError(f"the extra leaves are {sorted(self.extra)}, not {sorted(extra)}")
        parts = [self._rows(i, one) for i, one in enumerate(rollouts)]
        tokens, logprobs, versions, mask, turns = (np.concatenate(each) for each in zip(*parts))
        return {
            "task": task,
            "prompt": _whole("prompt", prompt),
            "tokens": tokens,
            "logprobs": logprobs,
            "versions": versions,
            "mask": mask,
            "lengths": np.array([len(part[0]) for part in parts], np.int32),
            "turns": turns,
            "turn_counts": np.array([len(part[4]) for part in parts], np.int32),
            "rewards": np.array([one.reward for one in rollouts], np.float32),
            "attempts": np.array([one.attempt for one in rollouts], np.int32),
            "finish": np.array([_finish(i, one.finish) for i, one in enumerate(rollouts)], np.uint8),
            **extra,
        }

    def _rows(self, i: int, one: Rollout) -> tuple[Ints, Floats, Ints, Bools, Ints]:
        where = f"rollout {i} of the group"
        tokens = _whole(f"{where}: tokens", one.tokens)
        n = len(tokens)
        if n > self.most:
            raise SpecError(f"{where} has {n} tokens, and most is {self.most}; cut it, or give the schema a larger most at both ends")
        versions = _whole(f"{where}: versions", np.full(n, one.versions) if np.ndim(one.versions) == 0 else one.versions)
        logprobs = np.asarray(one.logprobs, np.float32)
        mask = np.ones(n, np.bool_) if one.mask is None else np.asarray(one.mask)
        for name, array in (("logprobs", logprobs), ("versions", versions), ("mask", mask)):
            if array.shape != (n,):
                raise SpecError(f"{where}: {name} has shape {array.shape}, and its tokens have {(n,)}")
        if mask.dtype != np.bool_:
            raise SpecError(f"{where}: mask is {mask.dtype}, not bool")
        turns = np.zeros(min(n, 1), np.int32) if one.turns is None else _whole(f"{where}: turns", one.turns)
        if len(turns) > self.most_turns:
            raise SpecError(f"{where} has {len(turns)} turns, and most_turns is {self.most_turns}")
        if len(turns) and (turns[0] != 0 or turns[-1] >= n or (np.diff(turns) <= 0).any()):
            raise SpecError(f"{where}: turns must ascend from 0 to less than its {n} tokens, not {turns.tolist()!r:.80}")
        return tokens, logprobs, versions, mask, turns

    def unpack(self, packed: Any) -> TokenBatch:
        """Return the rollouts of a batch: of what `sample()` of the table returned, or of its `packed`.

        Raises:
            SpecError: the lengths of a record's rollouts are not those of its tokens or turns.
        """
        batch, offsets = packed.batch, packed.offsets
        n = len(batch["task"])
        for name, axis in (("lengths", "token"), ("turn_counts", "turn")):
            if (wrong := np.flatnonzero((batch[name].sum(1) != np.diff(offsets[axis])) | (batch[name] < 0).any(1))).size:
                raise SpecError(f"record {wrong[0]} of the batch: {name} is {batch[name][wrong[0]].tolist()}, which is not the length of its axis {axis!r}")
        return TokenBatch(
            tokens=batch["tokens"],
            logprobs=batch["logprobs"],
            versions=batch["versions"],
            mask=batch["mask"],
            cu_seqlens=_offsets(batch["lengths"].ravel()),
            rewards=batch["rewards"].reshape(-1),
            attempts=batch["attempts"].reshape(-1),
            finish=batch["finish"].reshape(-1),
            group=np.repeat(np.arange(n, dtype=np.int32), self.group),
            tasks=batch["task"],
            turns=batch["turns"],
            turn_cu_seqlens=_offsets(batch["turn_counts"].ravel()),
            prompts=batch["prompt"],
            prompt_cu_seqlens=offsets["prompt"],
            extra={name: batch[name] for name in self.extra},
            extra_offsets={name: at for name, at in offsets.items() if name not in ("token", "turn", "prompt")},
        )


def _offsets(lengths: npt.NDArray[Any]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _whole(what: str, values: npt.ArrayLike) -> Ints:
    """Return whole numbers of shape (T,) as int32. Raises SpecError."""
    array = np.asarray(values)
    if not array.size:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31):
        raise SpecError(f"{what} must be whole numbers of shape (T,) that fit into int32, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int32, copy=False)


def _finish(i: int, reason: str) -> int:
    if reason not in FINISH_REASONS:
        raise SpecError(f"rollout {i} of the group: finish is {reason!r}, which is none of {FINISH_REASONS}")
    return FINISH_REASONS.index(reason)
