"""The text tasks of the library reasoning-gym by name: ``rg:chain_sum``.

Source: Stojanovski et al., "Reasoning Gym", 2025; questions and scores are the library's.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import math
import random
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from echo_core import ConfigError
from echo_core.base.installing import how_to_install
from echo_rl.checks import instance
from echo_rl.environments.base import EnvironmentFailure
from echo_rl.environments.task import Outcome, TaskConfig, TaskEnvironment, check_task

__all__ = ["CHECKED", "EVALUATED", "REFUSED", "ReasoningGymConfig", "ReasoningGymEnvironment", "is_harmless"]

#: The library executes parts of some answers, so only a version whose tasks were looked through may score them.
CHECKED = "0.1.25"
CHUNK = 500
_DRAWN = "its questions differ from process to process, so that a seed does not decide them"
#: The tasks that cannot be played here, and why.
REFUSED: Mapping[str, str] = {
    "codeio": "it executes functions that the library brings in this process; cruxeval has such questions, and a sandbox",
    "composite": "it mixes other tasks; make an environment of each",
    "puzzle24": "its score takes every four numbers for those of the question",
    **dict.fromkeys(("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"), _DRAWN),
}
_CALLS = frozenset(["sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "Abs"])


def _is_literal(answer: str) -> bool:
    """Whether an answer is a list, or no expression of Python at all."""
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True  # Nothing is executed of it.
    return all(isinstance(node, ast.Expression | ast.Constant | ast.List | ast.Tuple | ast.Name | ast.Load) for node in ast.walk(tree))


def _is_sum(answer: str) -> bool:
    """Whether an answer has only whole numbers, the four operations and parentheses."""
    return len(answer) <= 200 and re.fullmatch(r"[0-9+\-*/()\s]*", answer) is not None and "**" not in answer and "//" not in answer


def _is_formula(answer: str) -> bool:
    """Whether an answer is a formula of numbers, names, known functions and small powers."""
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return False
    kinds = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Name, ast.Load, ast.Constant, ast.Call)
    for node in ast.walk(tree):
        known = isinstance(node, kinds) and not isinstance(node, ast.BitXor | ast.LShift | ast.RShift | ast.MatMult | ast.Mod)
        if isinstance(node, ast.Constant):
            known = isinstance(node.value, int | float) and abs(node.value) < 1e12
        elif isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            # A power of a power could have more digits than any memory holds.
            inner = [*ast.walk(node.left), *ast.walk(node.right)]
            known = not any(isinstance(part, ast.Pow) for part in inner) and all(
                abs(part.value) <= 100 for part in ast.walk(node.right) if isinstance(part, ast.Constant) and isinstance(part.value, int | float)
            )
        if not known:
            return False
    return len(answer) <= 300


#: The tasks whose scores execute answers, and which answers may be.
EVALUATED: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), _is_literal),
    "countdown": _is_sum,
    **dict.fromkeys(("intermediate_integration", "simple_integration"), _is_formula),
}


def is_harmless(task: str, answer: str) -> bool:
    """Whether the library's score of an answer executes nothing but a literal or a formula."""
    return task not in EVALUATED or EVALUATED[task](answer)


@dataclass(frozen=True)
class ReasoningGymConfig(TaskConfig):
    """The task.

    Attributes:
        name: the task's name in the library, such as ``"chain_sum"``.
        options: the fields of its configuration there, such as ``{"max_terms": 3}``, without ``seed`` and ``size``.
    """

    name: str = "chain_sum"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_task("rg", self, name=instance(str), options=instance(dict))
        if self.name in REFUSED:
            raise ConfigError(f"rg: {self.name} cannot be played, because {REFUSED[self.name]}")
        if wrong := {"seed", "size"} & self.options.keys():
            raise ConfigError(f"rg: options must not have {', '.join(sorted(wrong))}; the seed of reset chooses the question")


class ReasoningGymEnvironment(TaskEnvironment):
    """A question an episode, and one answer. The observation is the question; the reward is the library's score of the answer, 0 to 1.

    If the answer has ``<answer>`` tags, what stands between the last of them counts, and everything otherwise. An answer that the library would execute
    although it is neither a literal nor a formula, or that its score cannot read, gets 0 and ``info["invalid"]``.
    """

    name = "rg"

    def __init__(self, config: ReasoningGymConfig) -> None:
        super().__init__(config, 1)
        self._library = _library()
        names = sorted(self._library.factory.DATASETS)
        if config.name not in names:
            close = difflib.get_close_matches(config.name, names, n=1)
            raise ConfigError(f"rg: there is no task {config.name!r}{f'; did you mean {close[0]!r}?' if close else '.'} There are: {', '.join(names)}")
        self._chunk = functools.lru_cache(4)(self._made)
        self._chunk(0)
        self._set: Any = None
        self._entry: dict[str, Any] = {}

    def solve(self) -> str:
        """The right answer, for the baseline ``oracle``. Raises EnvironmentFailure for a question to which the library knows none."""
        if self._entry.get("answer") is None:
            raise EnvironmentFailure(f"rg:{self.config.name}: the library scores answers of this task and knows none itself")
        return str(self._entry["answer"])

    def sample(self, rng: np.random.Generator) -> str:
        """The answer to another question of the same task, for the baseline ``random``, or a number if the library knows no answer."""
        answer = self._chunk(0)[int(rng.integers(CHUNK))]["answer"]
        return str(rng.integers(100)) if answer is None else str(answer)

    def _made(self, number: int) -> Any:
        # An item belongs to the sum of the set's seed and its index, so that sets whose seeds are as far apart as they are large share no question.
        try:
            return self._library.create_dataset(self.config.name, **self.config.options, seed=number * CHUNK % (1 << 32), size=CHUNK)
        except (TypeError, AssertionError, ValueError) as error:
            raise ConfigError(f"rg:{self.config.name}: options={self.config.options} cannot be used: {error}") from error

    def _begin(self, seed: int) -> str:
        number, index = divmod(seed, CHUNK)
        self._set = self._chunk(number)
        state = random.getstate()
        random.seed(seed)  # Some tasks draw from Python's own generator as well.
        try:
            self._entry = self._set[index]
        finally:
            random.setstate(state)
        return str(self._entry["question"])

    def _act(self, action: Any) -> Outcome:
        text = str(action)
        tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        answer = (tagged[-1] if tagged else text).strip()
        score = None
        if is_harmless(self.config.name, answer):
            try:
                score = float(self._set.score_answer(answer, self._entry))
            except Exception:
                pass  # The library's scores raise whatever an odd answer makes them raise.
        info = {"task": self.config.name, **({"invalid": True} if score is None else {})}
        score = 0.0 if score is None or not math.isfinite(score) else min(1.0, max(0.0, score))
        return Outcome("", score, True, score, info)


@functools.cache
def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a library below it
            library = importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ConfigError(f"environment rg: needs reasoning-gym, which is not installed ({error}); {how_to_install('echo-rl[reasoning-gym]')}") from error
    if (found := version("reasoning-gym")) != CHECKED:
        raise ConfigError(f"environment rg: needs reasoning-gym {CHECKED}, whose scores of answers were looked through, and {found} is installed")
    return library
