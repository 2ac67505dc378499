"""Functions to predict and to repair: made ones, and those of a file."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl.environments import EnvironmentFailure, make_environment
from echo_rl.environments.code.functions import evaluated, faults, made
from echo_rl.environments.cruxeval import CRUXEvalConfig, CRUXEvalEnvironment, _random, _same

sys.path.insert(0, str(Path(__file__).parent))
from playing import successes, trace

CODE = "def g(a, b=2):\n    return sorted(a)[:b]\n"


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(*entries: Any) -> str:
        path = tmp_path / "functions.jsonl"
        path.write_text("\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries))
        return str(path)

    return write


def test_the_seeds_snippet() -> None:
    env = CRUXEvalEnvironment(CRUXEvalConfig(language="python", max_code_length=1000))
    assert "def f(" in env.reset(0)


def test_results_are_predicted_by_the_oracle_only() -> None:
    task = make_environment("cruxeval")
    assert successes(task, "oracle", 100) == 1.0 and successes(task, "random", 100) <= 0.1
    assert trace(task, 5) == trace(make_environment("cruxeval"), 5)
    assert len({task.reset(seed) for seed in range(100)}) >= 99


@pytest.mark.parametrize("kind", ["input", "repair"])
def test_arguments_and_repairs(kind: str) -> None:
    task = make_environment("cruxeval", task_type=kind, allow_code=True, max_code_length=200)
    assert successes(task, "oracle", 5) == 1.0
    first = task.reset(0)
    assert first == make_environment("cruxeval", task_type=kind, allow_code=True, max_code_length=200).reset(0)
    assert task.step("1 + f").info["success"] is False


def test_a_repair_must_pass_tests_that_are_not_shown() -> None:
    environment = CRUXEvalEnvironment(CRUXEvalConfig(task_type="repair", allow_code=True, max_test_cases=6, attempts=3))
    text = environment.reset(2)
    shown = dict(zip(environment._right.calls[:3], environment._right.results[:3], strict=True))
    assert text.count("should return") == 3 and all(call in text for call in shown) and not any(call in text for call in environment._right.calls[3:])
    assert environment._right.code not in text
    table = "{" + ", ".join(f"{call!r}: {result!r}" for call, result in shown.items()) + "}"
    assert environment.step(f"def f(x):\n    return eval({table}[repr(x)])\n")[1] == 0.0  # it knows what is shown by heart
    assert environment.step(environment._function.code)[1] == 0.0  # unchanged
    _, reward, over, _, info = environment.step(environment.solve())
    assert reward == 1.0 and over and info["success"]


def test_each_made_function_has_a_fault_that_its_tests_find(file: Any) -> None:
    environment = CRUXEvalEnvironment(CRUXEvalConfig(task_type="repair", allow_code=True))
    for seed in range(100):
        text = environment.reset(seed)
        assert "and returns" in text or "and fails" in text
    known = CRUXEvalEnvironment(
        CRUXEvalConfig(task_type="repair", allow_code=True, path=file({"code": "def f(x):\n    return x\n", "input": "1", "output": "1"}))
    )
    with pytest.raises(EnvironmentFailure, match="no single fault of function 1 fails its shown tests"):
        known.reset(0)


def test_an_answer_that_is_no_literal_is_not_executed(tmp_path: Path) -> None:
    for kind in ("output", "input"):
        task = make_environment("cruxeval", task_type=kind, allow_code=True, attempts=4)
        task.reset(1)
        mark = tmp_path / "executed"
        for text in (f"open({str(mark)!r}, 'w')", f"1), open({str(mark)!r}, 'w'), (2", "*[1]", "[" * 5000):
            assert task.step(text).reward == 0
        assert not mark.exists()


def test_no_observation_depends_on_what_is_to_be_found() -> None:
    environment = CRUXEvalEnvironment(CRUXEvalConfig())
    first = environment.reset(4)
    environment._right = environment._function = environment._function.__class__("f", environment._right.code, environment._right.calls, ("'other'",), "x")
    assert environment._observation() == first and environment.solve() == "'other'"
    searching = CRUXEvalEnvironment(CRUXEvalConfig(task_type="input", allow_code=True))
    first = searching.reset(4)
    searching._right = searching._function = searching._function.__class__("f", searching._right.code, ("'other'",), searching._right.results, "x")
    assert searching._observation() == first


def test_repeating_an_answer_farms_nothing() -> None:
    task = make_environment("cruxeval", attempts=3)
    task.reset(0)
    assert [task.step("'no'").reward for _ in range(3)] == [0.0, 0.0, 0.0]


def test_made_functions_are_short_and_each_fault_differs_in_one_place() -> None:
    changed = 0
    for seed in range(60):
        function = made(seed, 120, 4)
        assert len(function.code) <= 120 and evaluated(function.code, "f", list(function.calls)) == function.results
        for variant in list(faults(function.code, seed))[:3]:
            original, mutant = ast.unparse(ast.parse(function.code)).splitlines(), variant.splitlines()
            assert sum(one != two for one, two in zip(original, mutant, strict=True)) == 1
            changed += evaluated(variant, "f", list(function.calls)) != function.results
    assert changed > 60


def test_a_file_of_functions(file: Any) -> None:
    path = file(
        {"code": CODE, "input": "[3, 1, 2], 2", "output": "[1, 2]", "id": "one"},
        {"code": "def f():\n    return {'a': (1, True)}\n", "input": "", "output": "{'a': (1, True)}"},
    )
    task = make_environment("cruxeval", path=path)
    assert "What does g([3, 1, 2], 2) return?" in task.reset(0)
    assert task.step("[1,2]").info == {"task": "one", "success": True}
    assert task.reset(1) == task.reset(3)
    assert not task.step("{'a': (1, 1)}").info["success"]
    search = make_environment("cruxeval", path=path, task_type="input", allow_code=True, attempts=2)
    search.reset(0)
    assert not search.step("[2, 2], 2").info["success"]
    assert search.step("[9, 2, 1]").info["success"]  # any arguments that give the result
    search.reset(1)
    assert search.step("").info["success"]


@pytest.mark.parametrize(
    ("code", "given", "result"),
    [
        ("def f(x):\n    return len(x)\n", "'a#c'", "3"),
        ("def f(x):\n    return len(x)\n", "[1,  # one\n2]  # two", "2"),
        ("def f(x, y=2):\n    return x * y\n", "2, y=3", "6"),
        ("def f(**named):\n    return sorted(named)\n", "b=1, a={'c': None}", "['a', 'b']"),
    ],
)
def test_all_arguments_that_are_literals_can_be_an_answer(file: Any, code: str, given: str, result: str) -> None:
    path = file({"code": code, "input": given, "output": result})
    for kind in ("output", "input"):
        task = make_environment("cruxeval", path=path, task_type=kind, allow_code=True)
        assert successes(task, "oracle", 1) == 1.0 and 0 <= successes(task, "random", 3) <= 1
    computed = make_environment("cruxeval", path=file({"code": code, "input": given}), allow_code=True)
    computed.reset(0)
    assert computed.environment.solve() == result  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", ["1),(2", "9)(", "9).real, (1", "9) + f(0", "*[9]", "**{'n': 9}", "n=int('9')", "9 # )\n) + (9"])
def test_an_input_is_the_arguments_of_exactly_one_call(file: Any, answer: str) -> None:
    code = "def f(n):\n    return (1, 2) if n > 5 else n\n"
    task = make_environment("cruxeval", path=file({"code": code, "input": "6", "output": "(1, 2)"}), task_type="input", allow_code=True)
    task.reset(0)
    assert task.step(answer).reward == 0.0
    task.reset(0)
    assert task.step("n=9  # more than five").reward == 1.0
    with pytest.raises(ConfigError, match="line 1: its input .* is not the arguments of one call"):
        make_environment("cruxeval", path=file({"code": code, "input": "1),(2", "output": "1"}))


def test_results_that_are_no_literals_are_refused_by_name(file: Any) -> None:
    code = "from collections import Counter\ndef f(x):\n    return Counter(x)\n"
    for output in ("Counter({'a': 2})", "[inf]", "nan"):
        with pytest.raises(ConfigError, match="line 1: its output .* is not a literal of Python"):
            make_environment("cruxeval", path=file({"code": code, "input": "'aa'", "output": output}))
    for kind in ("output", "input", "repair"):
        task = make_environment("cruxeval", path=file({"code": code, "inputs": ["'aa'", "'ab'"], "id": "count"}), task_type=kind, allow_code=True)
        with pytest.raises(EnvironmentFailure, match=r"function count: f\('aa'\) returns Counter\(.* is not a literal of Python"):
            task.reset(0)
    with pytest.raises(ConfigError, match="function 1: its input .* is not made of literals"):
        make_environment("cruxeval", path=file({"code": CODE, "input": "range(3)", "output": "[0, 1]"}), task_type="input", allow_code=True)


def test_random_answers_have_the_type_of_the_right_one() -> None:
    rng = np.random.default_rng(0)
    value = (True, 3, 2.5, 1j, "ab", b"ab", [1, ("x",)], {1, 2, 3}, {"k": (None, set())}, None, ())
    for _ in range(20):
        found = _random(rng, value)
        assert [type(each) for each in found] == [type(each) for each in value] and ast.literal_eval(repr(found)) == found
        assert type(found[6][1]) is tuple and found[9] is None and found[10] == () and found[8][next(iter(found[8]))] == (None, set())
    assert _random(rng, [2.5] * 9) != [2.5] * 9


def test_a_line_of_the_file_ends_at_its_newline_only(tmp_path: Path) -> None:
    path = tmp_path / "functions.jsonl"
    entry = {"code": "def f(x):\n    return x + '\u2028\x85'\n", "input": "'a'", "output": "'a\u2028\x85'"}
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(entry, ensure_ascii=False).encode() + b"\r\n" + json.dumps(entry).encode())
    task = make_environment("cruxeval", path=str(path))
    assert task.reset(0) == task.reset(1) and successes(task, "oracle", 2) == 1.0


def test_missing_outputs_are_computed_only_with_allow_code(file: Any) -> None:
    path = file({"code": CODE, "inputs": ["[3, 1]", "[2, 1, 0], 1"]}, {"code": "def f(x):\n    return 1 / x\n", "input": "0"})
    with pytest.raises(ConfigError, match="gives no output of function 1; .*allow_code=True"):
        make_environment("cruxeval", path=path)
    task = make_environment("cruxeval", path=path, allow_code=True)
    task.reset(0)
    assert task.step("[1, 3]").info["success"]
    with pytest.raises(EnvironmentFailure, match=r"f\(0\) has no result: ZeroDivisionError"):
        task.reset(1)
    repair = make_environment("cruxeval", path=path, allow_code=True, task_type="repair")
    repair.reset(0)
    assert repair.step(CODE).info["success"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "line 2: Expecting"),
        ({"input": "1"}, 'line 2: it has to be an object with "code"'),
        ({"code": CODE}, 'line 2: "input" has to be a text'),
        ({"code": "def f(:", "input": "1"}, "line 2: invalid syntax"),
        ({"code": "x = 1", "input": "1"}, "line 2: its code defines no function"),
        ({"code": CODE, "inputs": ["1", "2"], "outputs": ["1"]}, "line 2: it has 2 inputs and 1 outputs"),
        ({"code": CODE, "input": "1", "output": 3}, 'line 2: "output" has to be a text'),
    ],
)
def test_a_wrong_line_is_named(file: Any, line: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make_environment("cruxeval", path=file({"code": CODE, "input": "[1]", "output": "[1]"}, line))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"language": "java"}, "language must be 'python', because only Python"),
        ({"task_type": "repair"}, "refused without allow_code=True"),
        ({"task_type": "input"}, "refused without allow_code=True"),
        ({"max_code_length": 10}, "max_code_length must be"),
        ({"timeout_seconds": 0}, "timeout_seconds must be"),
        ({"action_space_size": 30}, "action_space_size must be None"),
        ({"path": "/nowhere/functions.jsonl"}, "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"cruxeval: .*{fault}"):
        make_environment("cruxeval", **options)


def test_a_file_without_short_functions_is_refused(file: Any) -> None:
    path = file({"code": CODE + "#" * 100, "input": "[1]", "output": "[1]"})
    with pytest.raises(ConfigError, match="no function of at most max_code_length = 100"):
        make_environment("cruxeval", path=path, max_code_length=100)


def test_literals_are_compared_with_their_types() -> None:
    assert _same("[1, 2]", " [1,2] ") and _same("{'b': 1, 'a': 2}", "{'a': 2, 'b': 1}") and _same("{1, 2}", "{2, 1}")
    assert not _same("1", "True") and not _same("(1, 2)", "[1, 2]") and not _same("{'a': 1}", "{'a': True}") and not _same("x", "x") and not _same("1.0", "1")
    assert not _same("{True}", "{1}") and not _same("{1: 'a'}", "{True: 'a'}") and not _same("{(1, 0)}", "{(True, 0)}") and not _same("[{1.0}]", "[{1}]")
    assert _same("[{(1, 2): {3, 'a'}}]", "[{(1, 2): {'a', 3}}]") and _same("set()", "set()") and not _same("{}", "set()")
    assert np.all([not _same("", text) for text in ("", "None", "''")])
