"""The native rules against ALFWorld's own engine. `./dev alfworld` installs it and compares 200 games; the packages take minutes to build."""

from __future__ import annotations

import os

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl.environments import make_environment
from echo_rl.environments.household.engine import Engine
from echo_rl.environments.household.games import TASK_TYPES, made
from echo_rl.environments.household.oracle import next_command
from echo_rl.environments.household.rules import Household

pytestmark = pytest.mark.needs("alfworld", "textworld")
GAMES = int(os.environ.get("ECHO_ALFWORLD_GAMES", "10"))  # read now: tests do not see ECHO_ variables
STRANGE = (
    "dance",
    "",
    "take x 1 from y 1",
    "open fridge 1",
    "use mug 1",
    "Go To  cabinet 1",
    "examine mug 1",
    "move mug 1 to fridge 1",
    "heat egg 1 with fridge 1",
    "look ",
)


@pytest.mark.timeout(3600)
def test_both_say_the_same() -> None:
    steps = 30
    won = compared = 0
    engine = Engine()
    for seed in range(GAMES):
        game, rng = made(seed, tuple(TASK_TYPES), 10, 3), np.random.default_rng(seed)
        native, real = Household(game), engine.play(game)
        assert native.introduction() == real.introduction()
        for step in range(steps):
            commands = native.admissible()
            assert commands == real.admissible(), (seed, step)
            near = [command for command in commands if not command.startswith(("go to", "help", "look", "inventory"))]
            draw = rng.random()
            choices = STRANGE if draw < 0.1 else [next_command(native)] if draw < 0.4 else near if near and draw < 0.8 else commands
            command = choices[int(rng.integers(len(choices)))]
            seen, shown = native.act(command), real.act(command)
            assert seen == shown or command == "help", (seed, step, command)
            assert native.won() == real.won(), (seed, step, command)
            compared += 1
            if native.won():
                won += 1
                break
    engine.close()
    print(f"{GAMES} games, {compared} steps, {won} of them won: no difference")
    assert won > GAMES / 4


def test_the_engine_as_an_environment() -> None:
    real, native = make_environment("alfworld", engine="alfworld", max_steps=5), make_environment("alfworld", max_steps=5)
    assert real.reset(1) == native.reset(1) and real.admissible == native.admissible
    for _ in range(5):
        command = native.environment.solve()  # type: ignore[attr-defined]
        transition = native.step(command)
        assert real.step(command) == transition
        if transition.terminated or transition.truncated:
            break
    real.close()


def test_a_folder_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="the folder /nowhere has no solvable game"):
        make_environment("alfworld", engine="alfworld", path="/nowhere")
