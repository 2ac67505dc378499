"""MiniGrid by the seed's names and by the library's ids."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl.environments import EnvironmentFailure, make_environment
from echo_rl.environments.minigrid import ACTIONS, MiniGridConfig, MiniGridEnvironment

sys.path.insert(0, str(Path(__file__).parent))
from playing import episode, farmed, successes, trace

pytestmark = pytest.mark.needs("minigrid")


def test_the_seeds_snippet() -> None:
    env = MiniGridEnvironment(MiniGridConfig(grid_size=8, task_type="key_door"))
    assert "use the key to open the door" in env.reset(0)


@pytest.mark.parametrize(
    "options", [{}, {"task_type": "multi_object", "num_objects": 4}, {"task_type": "navigation", "grid_size": 6}, {"env_id": "BabyAI-GoToLocal-v0"}]
)
def test_the_oracle_solves_it_and_seeds_reproduce_it(options: dict[str, Any]) -> None:
    task = make_environment("minigrid", **options)
    assert successes(task, "oracle", 20) >= 0.95
    assert trace(task, 3) == trace(make_environment("minigrid", **options), 3)
    assert task.reset(3) != task.reset(4)
    task.close()


def test_random_actions_do_not_open_the_door_and_reach_the_goal() -> None:
    task = make_environment("minigrid", max_steps=200)
    assert successes(task, "random", 10) <= 0.05
    assert all(farmed(task, action, seed) == 0 for action in ACTIONS for seed in range(2))


def test_the_oracle_finds_its_way_from_anywhere() -> None:
    task = make_environment("minigrid", grid_size=6)
    rng = np.random.default_rng(0)
    for seed in range(5):
        task.reset(seed)
        for _ in range(30):  # also with the key in the hand, or the door open
            task.step(int(rng.choice([0, 1, 2, 2, 3, 5])))
        while not (transition := task.step(task.environment.solve())).terminated:  # type: ignore[attr-defined]
            pass
        assert transition.info["success"]


def test_arrays_are_the_view_as_one_hot_vectors() -> None:
    task = make_environment("minigrid", observation="array", task_type="navigation")
    environment: Any = task.environment
    seen = task.reset(1)
    assert seen.dtype == np.float32 and environment.observation_space.contains(seen) and environment.action_space.n == 7
    image = environment._env.gen_obs()["image"]
    cells = seen[:980].reshape(7, 7, 20)
    assert (
        np.array_equal(cells[..., :11].argmax(-1), image[..., 0]) and np.array_equal(cells[..., 17:].argmax(-1), image[..., 2]) and seen.sum() == 7 * 7 * 3 + 1
    )


def test_the_view_in_words_is_what_the_library_shows() -> None:
    task = make_environment("minigrid")
    environment: Any = task.environment
    for seed in range(10):
        text, grid = task.reset(seed), environment._env
        direction = ["east", "south", "west", "north"][grid.agent_dir]
        assert f"You face {direction}." in text
        x, y = (int(a + b) for a, b in zip(grid.agent_pos, grid.dir_vec, strict=True))
        before = grid.grid.get(x, y)
        assert ("Walls: 1 ahead" in text) == (before is not None and before.type == "wall")
        assert ("key (1 ahead)" in text) == (before is not None and before.type == "key")


def test_another_text_takes_a_step_and_does_nothing() -> None:
    task = make_environment("minigrid", max_steps=3, timeout_penalty=-0.5, reward_scale=2.0)
    first = task.reset(0)
    transition = task.step("open sesame")
    assert transition.observation == first and transition.info == {"invalid": True, "success": False}
    assert task.step(" Turn  LEFT").observation != first
    assert task.step("turn right") == (first, -0.5, False, True, {"success": False})
    task.reset(0)
    for wrong in (7, -1, None, float("nan"), float("inf"), 1.5, True, b"x", [1]):
        task.reset(0)
        with pytest.raises(EnvironmentFailure, match="minigrid: an action is a number from 0 to 6"):
            task.step(wrong)
    task.reset(0)
    assert task.step(np.int64(2)).info == task.step(2.0).info == {"success": False}


def test_a_reward_is_scaled_and_shrinks_with_the_steps() -> None:
    task = make_environment("minigrid", grid_size=5, max_steps=100, reward_scale=2.0)
    steps = episode(task, "oracle", 0)
    assert steps[-1].reward == pytest.approx(2 * (1 - 0.9 * len(steps) / 100)) and sum(step.reward for step in steps[:-1]) == 0


@pytest.mark.parametrize(
    "env_id", ["MiniGrid-GoToDoor-5x5-v0", "MiniGrid-GoToObject-6x6-N2-v0", "BabyAI-PutNextS5N2Carrying-v0", "BabyAI-KeyInBox-v0", "MiniGrid-Unlock-v0"]
)
def test_an_oracle_without_a_way_says_so(env_id: str) -> None:
    task = make_environment("minigrid", env_id=env_id)
    for seed in range(5):
        task.reset(seed)
        with pytest.raises(EnvironmentFailure, match="minigrid: the oracle knows no way for the mission"):
            while not (last := task.step(task.environment.solve())).terminated:  # type: ignore[attr-defined]
                assert not last.truncated


@pytest.mark.parametrize("objects", [3, 8])
def test_objects_never_bar_the_way(objects: int) -> None:
    task = make_environment("minigrid", task_type="multi_object", grid_size=5, num_objects=objects)
    assert successes(task, "oracle", 30) == 1.0
    assert trace(task, 27) == trace(make_environment("minigrid", task_type="multi_object", grid_size=5, num_objects=objects), 27)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"task_type": "multi_object", "grid_size": 5, "num_objects": 9}, "num_objects must be at most 8 with grid_size=5"),
        ({"grid_size": 4}, "grid_size must be a whole number from 5 to 25"),
        ({"num_objects": 2}, "num_objects is for"),
        ({"task_type": "maze"}, "task_type must be one of"),
        ({"env_id": "BabyAI-GoToLocal-v0", "grid_size": 8}, "env_id names the whole task"),
        ({"env_id": "MiniGrid-Nothing-v0"}, "cannot make 'MiniGrid-Nothing-v0'"),
        ({"env_id": "CartPole-v1"}, "use gym:CartPole-v1"),
        ({"action_space_size": 6}, "action_space_size must be 7, because"),
        ({"state_encoding_dim": 512}, "state_encoding_dim must be None, because"),
        ({"device": "cuda"}, "device must be 'cpu', because"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1"),
        ({"timeout_penalty": 1.0}, "timeout_penalty must be a finite number of at most 0"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"minigrid: .*{fault}"):
        make_environment("minigrid", **options)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_wrong_seed_is_named(seed: Any) -> None:
    with pytest.raises(EnvironmentFailure, match="whole number of at least 0"):
        make_environment("minigrid").reset(seed)


def test_the_seed_of_the_settings_makes_other_episodes() -> None:
    one, two, same = (make_environment("minigrid", seed=seed) for seed in (1, 2, 1))
    assert [one.reset(i) for i in range(5)] == [same.reset(i) for i in range(5)] != [two.reset(i) for i in range(5)]
