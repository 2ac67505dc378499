"""The tasks of reasoning-gym: seeds, oracle, and answers that the library would execute."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from echo_core import ConfigError
from echo_rl.environments import EnvironmentFailure, make_environment
from echo_rl.environments.adapters.reasoning_gym import EVALUATED, REFUSED, ReasoningGymConfig, ReasoningGymEnvironment, is_harmless

sys.path.insert(0, str(Path(__file__).parent))
from playing import successes

library = pytest.mark.needs("reasoning-gym")
#: One of each kind, and all whose answers the library executes.
PLAYED = sorted({"chain_sum", "leg_counting", "spell_backward", "word_sorting", "maze", "caesar_cipher", "list_functions", "acre", *EVALUATED})
#: The library knows no answer to these.
UNSOLVED = {"graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


@library
@pytest.mark.timeout(600)  # Puzzles of some tasks are searched for seconds.
@pytest.mark.parametrize("name", PLAYED)
def test_the_oracle_solves_it_and_other_answers_do_not(name: str) -> None:
    episodes = 5 if name == "intermediate_integration" else 20
    task, again = make_environment(f"rg:{name}"), make_environment(f"rg:{name}")
    environment: Any = task.environment
    for seed in (0, 3, 499, 500, 100_000):
        question = task.reset(seed)
        assert question == again.reset(seed) == environment._entry["question"]
        answer = environment.solve()
        environment._entry = {**environment._entry, "answer": "another"}
        assert "another" not in task.step("no answer").observation, "no observation depends on the answer"
        again.reset(seed)
        solved = again.step(f"I think <answer>7</answer>, no: <answer> {answer} </answer>")
        assert solved.info["success"] and solved.reward == 1.0 and solved.terminated and solved.observation == ""
    assert successes(task, "oracle", episodes) == 1.0
    assert successes(task, "random", episodes) <= 0.5  # some have two or three possible answers


def test_the_page_names_every_task_that_is_refused() -> None:
    page = (Path(__file__).parents[4] / "docs" / "rl-environments.md").read_text()
    (sentence,) = re.findall(r"Eight tasks cannot be played:.*?\.\s", page, re.S)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(REFUSED) and len(REFUSED) == 8


@library
def test_far_seeds_share_no_questions() -> None:
    task = make_environment("rg:chain_sum", options={"min_terms": 6, "max_terms": 6, "min_digits": 4, "max_digits": 4})
    assert len({task.reset(seed) for seed in [*range(400, 600), *range(50_000, 50_100), *range(2**31, 2**31 + 100)]}) == 400
    other = make_environment("rg:chain_sum", options={"min_terms": 6, "max_terms": 6, "min_digits": 4, "max_digits": 4}, seed=1)
    assert other.reset(0) != task.reset(0)


@library
@pytest.mark.timeout(900)
def test_questions_are_the_same_in_every_process() -> None:
    program = f"""if True:
        import hashlib, json, sys
        from reasoning_gym.factory import DATASETS
        from echo_rl.environments import make_environment
        slow = {{"futoshiki", "intermediate_integration", "zebra_puzzles", "sokoban", "rearc", "arc_agi"}}
        tasks = {{}}
        for name in sorted(DATASETS.keys() - {set(REFUSED)!r} - slow):
            task = make_environment("rg:" + name)
            seeds = range(60) if name == "list_functions" else (1, 2, 600)
            seen = [(task.reset(seed), task.environment._entry["answer"]) for seed in seeds]
            tasks[name] = hashlib.sha256(repr(seen).encode()).hexdigest()
        print("\\n" + json.dumps(tasks))  # some tasks print dots
    """
    running = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE) for seed in "12"
    ]
    first, second = (json.loads(process.communicate()[0].splitlines()[-1]) for process in running)
    assert len(first) > 90 and [name for name in first if first[name] != second[name]] == []


@library
@pytest.mark.parametrize("name", sorted(UNSOLVED))
def test_a_task_without_a_known_answer_has_no_oracle(name: str) -> None:
    task = make_environment(f"rg:{name}")
    task.reset(1)
    with pytest.raises(EnvironmentFailure, match="knows none itself"):
        task.environment.solve()  # type: ignore[attr-defined]
    assert not task.step("an answer").info["success"]


@library
def test_every_task_that_executes_answers_is_known() -> None:
    """In the library's text: a new one would be executed in the process that trains."""
    found = set()
    for file in distribution("reasoning-gym").files or ():
        text = file.locate().read_text() if file.suffix == ".py" else ""  # type: ignore[attr-defined]
        if re.search(r"\beval\((answer|user|predicted)|(?<!def )\bparse_expr\((answer|user)", text) and "propositional" not in file.name:
            found.add(file.stem)
    assert found == {*EVALUATED, "polynomial_multiplication", "puzzle24"} and {"polynomial_multiplication", "puzzle24"} <= REFUSED.keys()


@pytest.mark.parametrize("name", sorted(EVALUATED))
@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('touch EXECUTED')",
        "[open('EXECUTED', 'w') for _ in [1]]",
        "open('EXECUTED', 'w').close() or [1]",
        "(lambda: open('EXECUTED', 'w'))()",
        "x.__class__.__base__.__subclasses__()",
        "f\"{open('EXECUTED', 'w')}\"",
        "9**9**9**9",
        "(9**99)**99",
        "[0] * 10**12",
        "exp(__import__('os').getpid())",
        "sin(x, evaluate=open('EXECUTED', 'w'))",
        "(y := open('EXECUTED', 'w'))",
    ],
)
def test_no_answer_is_executed(name: str, answer: str) -> None:
    assert not is_harmless(name, answer)


@library
@pytest.mark.parametrize("name", ["countdown", "simple_integration", "spiral_matrix"])
def test_such_an_answer_counts_as_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = make_environment(f"rg:{name}")
    task.reset(0)
    wrong = task.step("open('EXECUTED', 'w').close() or 24")
    assert wrong.reward == 0 and wrong.info["invalid"] and not list(tmp_path.iterdir())
    task.reset(0)
    # The same text does run when the library scores it by itself: the check above is not idle.
    environment: ReasoningGymEnvironment = task.environment  # type: ignore[assignment]
    environment._set.score_answer("open('EXECUTED', 'w').close() or 24", environment._entry)
    assert (tmp_path / "EXECUTED").exists()


@library
def test_a_score_that_raises_counts_as_wrong() -> None:
    task = make_environment("rg:prime_factorization")
    task.reset(0)
    assert task.step("zzz")[1:] == (0.0, True, False, {"task": "prime_factorization", "invalid": True, "success": False})


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"name": "composite"}, "composite cannot be played, because it mixes"),
        ({"name": "word_ladder"}, "differ from process to process"),
        ({"name": "codeio"}, "cruxeval has such questions"),
        ({"options": {"seed": 3}}, "options must not have seed"),
        ({"options": [1]}, "options must be"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"rg: .*{fault}"):
        ReasoningGymConfig(**options)


@library
def test_what_the_library_refuses_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'chain_sum'"):
        make_environment("rg:chain_sums")
    with pytest.raises(ConfigError, match="options=.'terms': 3. cannot be used"):
        make_environment("rg:chain_sum", options={"terms": 3})
