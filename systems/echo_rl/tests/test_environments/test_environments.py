"""Environments by name, and the checks of what they return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl import environments
from echo_rl.environments import EnvironmentFailure, make_environment, register_environment
from echo_rl.environments.digits import DigitsConfig, DigitsEnvironment


class Scripted:
    """Returns what it is given."""

    def __init__(self, result: Any = ("next", 1.0, False, False, {}), first: Any = "first") -> None:
        self.result, self.first = result, first

    def reset(self, seed: int) -> Any:
        if isinstance(self.first, Exception):
            raise self.first
        return self.first

    def step(self, action: Any) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(environments, "_registered", {})
    register_environment("scripted", Scripted)
    return "scripted"


def test_digits_are_sorted_for_the_reward() -> None:
    task = make_environment("digits", length=4)
    observation = task.reset(seed=3)
    right = "".join(sorted(observation.removesuffix(">")))
    assert len(right) == 4 and task.admissible is None
    transition = task.step(f" {right} ")
    assert transition.reward == 1.0 and transition.terminated and not transition.truncated and transition.info == {"success": True}
    assert task.reset(seed=3) == observation
    wrong = task.step(right[::-1] if right != right[::-1] else "9999")
    assert wrong.reward < 1.0 and wrong.info == {"success": False}


def test_only_places_that_are_right_count() -> None:
    task = make_environment("digits")
    task.reset(seed=0)
    right = task.environment.solve()  # type: ignore[attr-defined]
    assert task.step(right[:-1] + ("0" if right[-1] != "0" else "1")).reward == pytest.approx(2 / 3)
    task.reset(seed=0)
    assert task.step(right + right[-1]).reward == 0.0  # more digits than asked for farm nothing
    exact = make_environment("digits", reward="exact")
    exact.reset(seed=0)
    assert exact.step(right[:-1]).reward == 0.0


def test_random_digits_have_the_right_shape() -> None:
    environment = DigitsEnvironment(DigitsConfig(length=5, base=3))
    rng = np.random.default_rng(0)
    answers = [environment.sample(rng) for _ in range(50)]
    assert all(len(answer) == 5 and set(answer) <= set("012") for answer in answers) and set("".join(answers)) == set("012")
    again = np.random.default_rng(0)
    assert answers == [environment.sample(again) for _ in range(50)] and len(set(answers)) > 25


def test_any_id_of_gymnasium() -> None:
    pytest.importorskip("gymnasium")
    pole = make_environment("gym:CartPole-v1")
    first = pole.reset(seed=5)
    assert np.array_equal(first, pole.reset(seed=5)) and first.shape == (4,)
    transition = pole.step(pole.environment.action_space.sample())  # type: ignore[attr-defined]
    assert transition.reward == 1.0 and transition.observation.shape == (4,)
    while not (transition.terminated or transition.truncated):
        transition = pole.step(0)
    with pytest.raises(EnvironmentFailure, match="call reset"):
        pole.step(0)
    pole.close()
    with pytest.raises(ConfigError, match="NoSuch"):
        make_environment("gym:NoSuch-v0")


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (("x", float("nan"), False, False, {}), "the reward is nan"),
        (("x", float("inf"), False, False, {}), "the reward is inf"),
        (("x", "1.0", False, False, {}), "one number, not '1.0'"),
        (("x", np.ones(2), False, False, {}), "one number"),
        (("x", None, False, False, {}), "one number, not None"),
        (("x", 1.0, 0.5, False, {}), "terminated has to be True or False, not 0.5"),
        (("x", 1.0, False, None, {}), "truncated has to be True or False"),
        ((None, 1.0, False, False, {}), "no observation"),
        (("x", 1.0, False, False, 5), "info has to be a dictionary, not 5"),
        (("x", 1.0, False, {}), r"\(observation, reward, terminated, truncated, info\)"),
        (RuntimeError("lost"), "has raised RuntimeError: lost"),
    ],
)
def test_a_faulty_step_is_named(scripted: str, result: Any, fault: str) -> None:
    task = make_environment(scripted, result=result)
    task.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match=f"environment scripted: .*{fault}"):
        task.step("go")


@pytest.mark.parametrize(("first", "fault"), [(None, "no observation"), (OSError("gone"), "reset.7. has raised OSError: gone")])
def test_a_faulty_reset_is_named(scripted: str, first: Any, fault: str) -> None:
    with pytest.raises(EnvironmentFailure, match=fault):
        make_environment(scripted, first=first).reset(seed=7)


@pytest.mark.parametrize("seed", [None, True, -1, 1.5, "1"])
def test_a_seed_that_reproduces_no_episode_is_named(scripted: str, seed: Any) -> None:
    with pytest.raises(EnvironmentFailure, match="environment scripted: the seed of an episode has to be a whole number of at least 0"):
        make_environment(scripted).reset(seed)
    with pytest.raises(EnvironmentFailure, match="digits: the seed of an episode"):
        DigitsEnvironment().reset(seed)
    assert DigitsEnvironment().reset(np.int64(3)) == DigitsEnvironment().reset(3)  # type: ignore[arg-type]


def test_a_step_before_the_first_reset_is_refused(scripted: str) -> None:
    with pytest.raises(EnvironmentFailure, match="call reset"):
        make_environment(scripted).step("go")


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("digit", {}, "did you mean 'digits'"),
        ("digits", {"size": 3}, "no option size; its options are length, base, reward"),
        ("digits", {"length": 3.0}, "length has to be a whole number"),
        ("digits", {"reward": "best"}, "reward has to be"),
        ("scripted", {"size": 3}, "cannot be made"),
    ],
)
def test_what_is_missing_or_wrong_is_named(scripted: str, name: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make_environment(name, **options)


@pytest.mark.parametrize("name", ["digits", "", "gym:mine"])
def test_a_name_is_registered_once(scripted: str, name: str) -> None:
    with pytest.raises(ConfigError):
        register_environment(name, Scripted)
    register_environment("scripted", Scripted)  # the same class again, as a module that is imported twice does
    with pytest.raises(ConfigError, match="already"):
        register_environment("scripted", lambda: Scripted())
    assert "digits" in environments.environments() and "scripted" in environments.environments()
