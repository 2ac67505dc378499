"""The file of episodes, from which every figure of a benchmark is computed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from echo_core import ConfigError

__all__ = ["Cell", "Episode", "EpisodesFile", "Recorded", "lost"]

Cell = tuple[str, str, int]
"""A task, a method and a seed."""


@dataclass(frozen=True)
class Episode:
    """One episode.

    Attributes:
        task, method, seed, episode: which one it is.
        task_seed: what the environment was reset with. It is the same for all methods, so that episodes can be compared in pairs.
        reward: the return, which is the sum of the episode's rewards. The file calls it ``return``.
        success: whether the task was solved; None if the environment does not say.
        steps: actions.
        prompt_tokens, tokens: tokens that were read, and made, by a language model.
        cached_tokens: the part of ``prompt_tokens`` whose keys and values were found in a cache; None where nobody has counted it.
        seconds: from the reset to the end, the environment's time included. Training is not.
        cost: of the tokens by the user's prices; None if a model has no price.
        trained_steps: the environment's steps that the policy was trained for; None for a method without training.
        fault: why the episode could not be played to its end, or "". Such an episode counts for no figure but the number of faults.
        bandwidth: the sum of b_eff, the quadratic cost of a call's tokens without those that were cached; None where nobody has counted the cache.
    """

    task: str
    method: str
    seed: int
    episode: int
    task_seed: int
    reward: float
    success: bool | None
    steps: int
    prompt_tokens: int
    tokens: int
    cached_tokens: int | None
    seconds: float
    cost: float | None
    trained_steps: int | None = None
    fault: str = ""
    bandwidth: float | None = None

    @property
    def cell(self) -> Cell:
        """Where it belongs."""
        return self.task, self.method, self.seed


def lost(episodes: Sequence[Episode]) -> str:
    """How many of the episodes have a fault, and the last one; "" if none has."""
    faults = [episode.fault for episode in episodes if episode.fault]
    return f"{len(faults)} fault{'s' if len(faults) > 1 else ''}, the last one: {faults[-1]}" if faults else ""


@dataclass
class Recorded:
    """What a file holds.

    Attributes:
        plan: what the run was to do: ``tasks``, ``methods``, ``seeds``, ``episodes``, ``settings``. Empty if the file does not say.
        episodes: in order; where one was recorded twice, the later.
        reasons: why a cell, or the rest of it, was not run.
    """

    plan: dict[str, Any] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    reasons: dict[Cell, str] = field(default_factory=dict)

    def cells(self) -> dict[Cell, list[Episode]]:
        """The episodes of each cell that has some."""
        found: dict[Cell, list[Episode]] = {}
        for episode in self.episodes:
            found.setdefault(episode.cell, []).append(episode)
        return found


class EpisodesFile:
    """A file of JSON lines: ``plan``, ``episode`` and ``not run``. Each is written at once, and a line that a killed process left unfinished is dropped.
    A last line that is whole counts also without the end of the line.

    Args:
        path: the file. Its folder is made when the first line is written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._appended = False

    def read(self) -> Recorded:
        """Return what it holds; nothing if there is no file.

        Raises ConfigError, which names the line, if one is no record, or if the file cannot be read.
        """
        found, episodes = Recorded(), dict[tuple[Any, ...], Episode]()
        for number, line in enumerate(self._lines(), 1):
            try:
                kind, entry = _entry(line)
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(f"{self.path}:{number}: this line is no record of a benchmark ({error}); mend or delete it") from error
            if kind == "plan":
                found.plan = entry
            elif kind == "episode":
                episode = Episode(**entry)
                episodes[(*episode.cell, episode.episode)] = episode
            else:
                cell = (entry["task"], entry["method"], entry["seed"])
                found.reasons[cell] = entry["reason"]
        found.episodes = list(episodes.values())
        return found

    def plan(self, plan: Mapping[str, Any]) -> None:
        """Record what a run is to do."""
        self._write([{"kind": "plan", **plan}])

    def add(self, *episodes: Episode) -> None:
        """Record episodes, together."""
        rows = [asdict(episode) for episode in episodes]
        self._write([{"kind": "episode", **{("return" if name == "reward" else name): value for name, value in row.items()}} for row in rows])

    def not_run(self, cell: Cell, reason: str) -> None:
        """Record why a cell, or the rest of it, is not run."""
        self._write([{"kind": "not run", "task": cell[0], "method": cell[1], "seed": cell[2], "reason": reason}])

    def _lines(self) -> list[bytes]:
        try:
            *lines, rest = (self.path.read_bytes() if self.path.exists() else b"").split(b"\n")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error
        return [*lines, rest] if _is_whole(rest) else lines

    def _write(self, rows: list[dict[str, Any]]) -> None:
        data = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self._appended and self.path.exists():
                before = self.path.read_bytes()
                end = before.rfind(b"\n") + 1
                if _is_whole(before[end:]):
                    data = b"\n" + data
                else:
                    os.truncate(self.path, end)
            with self.path.open("ab", buffering=0) as file:
                file.write(data)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error}; choose another output_dir, or make room") from error
        self._appended = True


_TEXTS, _COUNTS = ("task", "method", "fault"), ("seed", "episode", "task_seed", "steps", "prompt_tokens", "tokens")


def _is_whole(rest: bytes) -> bool:
    """Whether the text after the last end of a line is a whole line, such as an editor leaves it. Otherwise a kill has cut a write off."""
    try:
        json.loads(rest)
    except ValueError:
        return False
    return True


def _entry(line: bytes) -> tuple[str, dict[str, Any]]:
    """The kind of a line and its fields, checked."""
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise TypeError("it is no JSON object")
    kind = entry.pop("kind", None)
    if kind == "plan":
        for name in ("tasks", "methods", "seeds"):
            if not isinstance(entry.get(name), list):
                raise TypeError(f"{name} is no list")
    elif kind == "episode":
        entry["reward"] = entry.pop("return")
        entry.setdefault("bandwidth", None)  # files of earlier versions have none
        _check(entry, Episode.__dataclass_fields__)
    elif kind == "not run":
        _check(entry, ("task", "method", "seed", "reason"))
    else:
        raise ValueError(f"kind is {kind!r}")
    return kind, entry


def _check(entry: dict[str, Any], names: Any) -> None:
    if set(entry) != set(names):
        raise KeyError(f"its fields must be {', '.join(names)}; {', '.join(sorted(set(entry) ^ set(names)))} is missing or too much")
    for name, value in entry.items():
        if name in (*_TEXTS, "reason"):
            right = isinstance(value, str)
        elif name in _COUNTS:
            right = type(value) is int and value >= 0
        elif name in ("cached_tokens", "trained_steps"):
            right = value is None or (type(value) is int and value >= 0)
        elif name == "success":
            right = value is None or isinstance(value, bool)
        else:  # reward, seconds, cost, bandwidth
            number = type(value) in (int, float) and math.isfinite(value) and (name == "reward" or value >= 0)
            right = number or (name in ("cost", "bandwidth") and value is None)
        if not right:
            raise ValueError(f"{name}={value!r} cannot be")
