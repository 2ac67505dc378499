"""Functions in Python: predict what a call returns, find arguments for a result, or repair a function that has one fault.

Source of the first two: Gu et al., "CRUXEval: A Benchmark for Code Reasoning, Understanding and Execution", 2024. Its data is not part
of Echo; give your copy as ``path``. Without it the functions are made here, and figures cannot be compared with CRUXEval's.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from echo_core import ConfigError
from echo_rl.checks import flag, one_of, optional, real, whole
from echo_rl.environments.base import EnvironmentFailure
from echo_rl.environments.code import functions, sandbox
from echo_rl.environments.code.functions import Function
from echo_rl.environments.task import Outcome, TaskConfig, TaskEnvironment, check_task, only

__all__ = ["CRUXEvalConfig", "CRUXEvalEnvironment"]

MOST_ANSWER = 10_000


@dataclass(frozen=True)
class CRUXEvalConfig(TaskConfig):
    """The task.

    Attributes:
        language: ``"python"``.
        max_code_length: functions with more characters are left out, and a longer repair is wrong; at least 60.
        max_test_cases: how many calls a repair must pass, at least 2; half of them are shown. A file's function has as many as the file gives, up to this.
        timeout_seconds: how long the calls of one answer may take together.
        task_type: ``"output"``: predict the result of a call. ``"input"``: find arguments that give a result. ``"repair"``: mend a function.
        path: a file of functions in the form of CRUXEval's; None makes them from the seed.
        allow_code: whether functions of the file, and those that the policy writes, may be executed, in a limited process. ``"input"``
            and ``"repair"`` need it.
        attempts: how many answers an episode takes.
        action_space_size: None; an answer is a text.
    """

    language: str = "python"
    max_code_length: int = 1000
    max_test_cases: int = 10
    timeout_seconds: float = 5
    task_type: Literal["output", "input", "repair"] = "output"
    path: str | None = None
    allow_code: bool = False
    attempts: int = 1
    action_space_size: None = None

    def __post_init__(self) -> None:
        check_task(
            "cruxeval",
            self,
            language=only("python", because="only Python functions can be executed here"),
            max_code_length=whole(60, 100_000),
            max_test_cases=whole(2, 100),
            timeout_seconds=real(above=0, most=600),
            task_type=one_of("output", "input", "repair"),
            path=optional(lambda value: None if isinstance(value, str) else "the path of a file"),
            allow_code=flag(),
            attempts=whole(1, 100),
            action_space_size=only(None, because="an answer is a text"),
        )
        if self.task_type != "output" and not self.allow_code:
            raise ConfigError(
                f"cruxeval: task_type={self.task_type!r} executes what the policy writes, in a limited process. It is refused without allow_code=True; "
                "echo_rl.environments.code.sandbox says what the process can reach"
            )


class CRUXEvalEnvironment(TaskEnvironment):
    """A function an episode. Answers are a literal of Python, arguments as between the parentheses of a call, or the source of the whole function.

    The reward is 1 for a right answer. With a file, successive seeds go through its functions in order.
    """

    name = "cruxeval"

    def __init__(self, config: CRUXEvalConfig | None = None) -> None:
        config = config or CRUXEvalConfig()
        super().__init__(config, config.attempts)
        self._functions = functions.read(config.path, config.max_code_length) if config.path is not None else None
        unknown = [function.label for function in self._functions or () if "" in function.results]
        if unknown and not config.allow_code:
            raise ConfigError(
                f"cruxeval: {config.path} gives no output of function {unknown[0]}; to execute the functions for their outputs, set allow_code=True"
            )
        for function in self._functions or () if config.task_type == "input" else ():
            if not functions.is_literal(_call(function.calls[0])):
                raise ConfigError(
                    f"cruxeval: {config.path}: function {function.label}: its input {function.calls[0]!r:.200} is not made of literals, and only literals are "
                    "accepted as an answer; leave the function out"
                )
        self._function = self._right = Function("f", "", (), (), "")
        self._left = 0

    def solve(self) -> str:
        """A right answer, for the baseline ``oracle``."""
        return {"output": self._right.results[0], "input": self._right.calls[0], "repair": self._right.code}[self.config.task_type]

    def sample(self, rng: np.random.Generator) -> str:
        """A random answer, for the baseline ``random``: of the result's kind, arguments of the right kind, or the faulty function with another fault."""
        if self.config.task_type == "repair":
            return next(functions.faults(self._function.code, int(rng.integers(1 << 31))), self._function.code)
        if self.config.task_type == "output":
            return repr(_random(rng, _value(self.solve())))
        call = _call(self.solve())
        given = [("", node) for node in call.args] + [(f"{each.arg}=", each.value) for each in call.keywords]
        return ", ".join(name + repr(_random(rng, ast.literal_eval(node))) for name, node in given)

    def _begin(self, seed: int) -> str:
        self._left = self.config.attempts
        takes = 1 if self._functions is not None else 100  # a made function whose tests find no single fault gives way to the next
        for take in range(takes):
            self._right = self._chosen(seed, take)
            faulty = self._faulty(seed) if self.config.task_type == "repair" else self._right
            if faulty is not None:
                self._function = faulty
                return self._observation()
        raise EnvironmentFailure(f"cruxeval: no single fault of function {self._right.label} fails its shown tests; give it more inputs, or leave it out")

    def _chosen(self, seed: int, take: int) -> Function:
        config = self.config
        most = config.max_test_cases if config.task_type == "repair" else 1
        if self._functions is None:
            return functions.made(seed, config.max_code_length, most, take)
        found = self._functions[seed % len(self._functions)]
        found = Function(found.name, found.code, found.calls[:most], found.results[:most], found.label)
        return found if "" not in found.results else functions.with_results(found, self._results(found.code, found, strict=True))

    def _faulty(self, seed: int) -> Function | None:
        """The function with a fault that its shown tests find; None if there is none."""
        right = self._right
        for code in functions.faults(right.code, seed):
            results = functions.evaluated(code, right.name, list(right.calls)) if self._functions is None else self._results(code, right)
            if any(not _same(one, two) for one, two in list(zip(results, right.results, strict=True))[: self._shown]):
                return Function(right.name, code, right.calls, results, right.label)
        return None

    @property
    def _shown(self) -> int:
        return (len(self._right.calls) + 1) // 2

    def _results(self, code: str, function: Function, strict: bool = False) -> tuple[str, ...]:
        answers = sandbox.call(code, function.name, function.calls, seconds=self.config.timeout_seconds)
        for call, answer in zip(function.calls, answers, strict=True):
            if strict and answer.value is None:
                raise EnvironmentFailure(f"cruxeval: function {function.label}: {function.name}({call}) has no result: {answer.error}")
            if strict and not functions.is_literal(answer.value or ""):
                raise EnvironmentFailure(
                    f"cruxeval: function {function.label}: {function.name}({call}) returns {answer.value:.200}, which is not a literal of Python, so that no "
                    "answer can be compared with it; leave the function out"
                )
        return tuple(answer.value or "" for answer in answers)

    def _act(self, action: Any) -> Outcome:
        self._left -= 1
        answer = action.strip() if isinstance(action, str) and len(action) <= MOST_ANSWER else None
        right = answer is not None and self._judged(answer)
        over = right or self._left == 0
        info = {"task": self._right.label, **({"invalid": True} if answer is None else {})}
        return Outcome("" if over else self._observation("Your last answer is wrong.\n"), float(right), over, float(right), info)

    def _judged(self, answer: str) -> bool:
        """Whether an answer is right. Results that the code claims are compared here, with values that it never sees."""
        right, kind = self._right, self.config.task_type
        if kind == "output":
            return _same(answer, right.results[0])
        if kind == "input":
            call = functions.arguments(answer)
            if call is None or not functions.is_literal(call):
                return False
            return _same(self._results(right.code, Function(right.name, right.code, (answer,), ("",), right.label))[0], right.results[0])
        if len(answer) > self.config.max_code_length:
            return False
        return all(_same(one, two) for one, two in zip(self._results(answer, right), right.results, strict=True))

    def _observation(self, note: str = "") -> str:
        function, kind, end = self._function, self.config.task_type, f"{note}Answer:"
        if kind == "output":
            return f"{function.code}\nWhat does {function.name}({function.calls[0]}) return? Answer with a literal.\n{end}"
        if kind == "input":
            return f"{function.code}\nFor which arguments does {function.name} return {function.results[0]}? Answer with the arguments.\n{end}"
        tests = zip(function.calls[: self._shown], function.results, self._right.results, strict=False)
        lines = "".join(
            f"{function.name}({call}) should return {wanted}{'' if _same(got, wanted) else f' and returns {got}' if got else ' and fails'}\n"
            for call, got, wanted in tests
        )
        return f"{function.code}\n{lines}One thing in the function is wrong. Answer with the whole function, mended.\n{end}"


def _value(text: str) -> Any:
    """The value of a literal; an object that equals nothing for anything else."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return object()


def _same(one: str, two: str) -> bool:
    """Whether two texts are literals of equal values of the same types: True is not 1, also within sets and as a key."""
    try:
        return bool(_typed(_value(one)) == _typed(_value(two)))
    except RecursionError:
        return False


def _typed(value: Any) -> Any:
    """The value with the type of each of its parts, as something that can be compared and hashed."""
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_typed, value))
    if isinstance(value, set):
        return set, frozenset(map(_typed, value))
    if isinstance(value, dict):
        return dict, frozenset((_typed(key), _typed(item)) for key, item in value.items())
    return type(value), value


def _call(arguments: str) -> ast.Call:
    call = functions.arguments(arguments)
    assert call is not None, "read() and made() give nothing else"
    return call


def _random(rng: np.random.Generator, like: Any) -> Any:
    """A random value of the same type, and of the same length where it has one."""
    if isinstance(like, bool):
        return bool(rng.random() < 0.5)
    if isinstance(like, int):
        return int(rng.integers(-5, 30))
    if isinstance(like, float | complex):
        return type(like)(int(rng.integers(-50, 300)) / 10)
    if isinstance(like, str):
        return "".join(rng.choice(list(functions.LETTERS), max(1, len(like))))
    if isinstance(like, bytes):
        return bytes(rng.integers(97, 105, max(1, len(like))).tolist())
    if isinstance(like, list | tuple | set):
        return type(like)(_random(rng, item) for item in like)
    if isinstance(like, dict):
        return {_random(rng, key): _random(rng, item) for key, item in like.items()}
    return like  # None and ... are the only values of their types
