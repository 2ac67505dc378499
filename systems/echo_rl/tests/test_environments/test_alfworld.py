"""The household: its games, its rules and its oracle."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl.environments import EnvironmentFailure, make_environment
from echo_rl.environments.alfworld import SHORT, ALFWorldConfig, ALFWorldEnvironment
from echo_rl.environments.household.engine import game_files, problem
from echo_rl.environments.household.games import TASK_TYPES, Game, Task, holds, kind, made
from echo_rl.environments.household.oracle import next_command
from echo_rl.environments.household.rules import NOTHING, Household

sys.path.insert(0, str(Path(__file__).parent))
from playing import farmed, successes, trace

KITCHEN = Game(
    ("fridge 1", "sinkbasin 1", "countertop 1", "microwave 1", "drawer 1"),
    {"mug 1": "fridge 1", "mug 2": "countertop 1", "fork 1": "drawer 1"},
    Task("pick_clean_then_place_in_recep", "mug", 1, "clean", "microwave"),
)


def test_the_seeds_snippet() -> None:
    env = ALFWorldEnvironment(ALFWorldConfig(task_type="pick_and_place", max_objects=10))
    assert "Your task is to: put a " in env.reset(0)


@pytest.mark.parametrize("kind", SHORT)
def test_the_oracle_solves_each_task_and_random_commands_do_not(kind: str) -> None:
    task = make_environment("alfworld", task_type=kind)
    assert successes(task, "oracle", 40) == 1.0
    assert successes(task, "random", 20) <= 0.05
    assert trace(task, 4) == trace(make_environment("alfworld", task_type=SHORT[kind]), 4)


def test_the_oracle_goes_on_from_any_state() -> None:
    for seed in range(40):
        house, rng = Household(made(seed, tuple(TASK_TYPES), 12, 4)), np.random.default_rng(seed)
        for _ in range(25):
            commands = house.admissible()
            house.act(commands[int(rng.integers(len(commands)))])
        for _ in range(40):
            if house.won():
                break
            assert house.act(next_command(house)) != NOTHING
        assert house.won(), house.game.task


def test_a_whole_game() -> None:
    house = Household(KITCHEN)
    said = [
        ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
        ("take mug 1 from fridge 1", NOTHING),
        ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1."),
        ("take mug 1 from fridge 1", "You pick up the mug 1 from the fridge 1."),
        ("inventory", "You are carrying: a mug 1."),
        ("cool mug 1 with fridge 1", "You cool the mug 1 using the fridge 1."),
        ("clean mug 1 with sinkbasin 1", NOTHING),
        ("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."),
        ("clean mug 1 with sinkbasin 1", "You clean the mug 1 using the sinkbasin 1."),
        ("examine mug 1", "This is a cold and clean mug 1."),
        ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed."),
        ("heat mug 1 with microwave 1", "You heat the mug 1 using the microwave 1."),
        ("examine mug 1", "This is a hot and clean mug 1."),
        ("move mug 1 to microwave 1", NOTHING),
        ("open microwave 1", "You open the microwave 1. The microwave 1 is open. In it, you see nothing."),
    ]
    for command, seen in said:
        assert house.act(command) == seen and not house.won(), command
    assert house.act(" Move  mug 1 to Microwave 1 ") == "You move the mug 1 to the microwave 1." and house.won()
    assert KITCHEN.places["mug 1"] == "fridge 1"  # the game itself is not changed


def test_only_admissible_commands_change_anything() -> None:
    every = {f"{verb} {name}" for verb in ("go to", "open", "close", "examine", "use") for name in (*KITCHEN.receptacles, *KITCHEN.places)}
    for verb, word in (("take", "from"), ("move", "to"), ("clean", "with"), ("heat", "with"), ("cool", "with")):
        every |= {f"{verb} {thing} {word} {name}" for thing in KITCHEN.places for name in KITCHEN.receptacles}
    every |= {"", "dance", "take", "go to", "open fridge 2", "slice mug 1 with fork 1"}
    rng = np.random.default_rng(0)
    house = Household(KITCHEN)
    for _ in range(60):
        possible = house.admissible()
        before = _state(house)
        for command in every - set(possible):
            assert house.act(command) == NOTHING and _state(house) == before, command
        assert possible == sorted(set(possible))
        assert house.act(possible[int(rng.integers(len(possible)))]) != NOTHING


def _state(house: Household) -> Any:
    return house.at, house.held, dict(house.places), set(house.opened), {name: set(states) for name, states in house.states.items()}, set(house.lit)


def test_a_task_in_the_light_needs_the_lamp_on_and_the_object_in_the_hand() -> None:
    game = Game(("desk 1", "bed 1"), {"desklamp 1": "desk 1", "book 1": "bed 1"}, Task("look_at_obj_in_light", "book", 1, "", None))
    house = Household(game)
    for command in ("go to desk 1", "use desklamp 1", "go to bed 1", "take book 1 from bed 1"):
        house.act(command)
        assert not house.won()
    assert house.act("take desklamp 1 from desk 1") == NOTHING
    house.act("go to desk 1")
    assert house.won()


def test_two_objects_have_to_be_in_one_receptacle() -> None:
    game = Game(("desk 1", "desk 2", "bed 1"), {"book 1": "bed 1", "book 2": "bed 1"}, Task("pick_two_obj_and_place", "book", 2, "", "desk"))
    house = Household(game)
    for command in (
        "go to bed 1",
        "take book 1 from bed 1",
        "go to desk 1",
        "move book 1 to desk 1",
        "go to bed 1",
        "take book 2 from bed 1",
        "go to desk 2",
        "move book 2 to desk 2",
    ):
        assert house.act(command) != NOTHING
    assert not house.won()
    for command in ("take book 2 from desk 2", "go to desk 1", "move book 2 to desk 1"):
        house.act(command)
    assert house.won()


@pytest.mark.parametrize(("objects", "furniture"), [(2, 1), (10, 5), (40, 10)])
def test_games_keep_to_their_settings(objects: int, furniture: int) -> None:
    types: Counter[str] = Counter()
    for seed in range(150):
        game = made(seed, tuple(TASK_TYPES), objects, furniture)
        assert game == made(seed, tuple(TASK_TYPES), objects, furniture)
        types[game.task.type] += 1
        assert 1 <= len(game.places) <= objects and max(Counter(map(kind, game.receptacles)).values()) <= furniture
        assert all(place in game.receptacles and holds(kind(place), kind(thing)) for thing, place in game.places.items())
        assert sum(kind(thing) == game.task.object for thing in game.places) >= game.task.count and not Household(game).won()
    assert set(types) == set(TASK_TYPES)


def test_no_observation_says_where_the_object_is_before_it_is_seen() -> None:
    environment = ALFWorldEnvironment(ALFWorldConfig())
    for seed in range(30):
        text = environment.reset(seed)
        assert isinstance(environment._play, Household)
        wanted = [thing for thing in environment._play.places if kind(thing) == environment._play.game.task.object]
        assert not any(thing in text or any(thing in command for command in environment.admissible or ()) for thing in wanted)


def test_repeating_a_command_farms_nothing() -> None:
    task = make_environment("alfworld")
    task.reset(0)
    commands = task.admissible
    assert commands and all(farmed(task, command) == 0 for command in commands)


def test_problems_name_everything_once() -> None:
    text = problem(KITCHEN)
    assert text.count("(") == text.count(")") and text.count("(isClean ?o)") == 1
    assert "mug_bar_00 - object" in text and "mug_bar_01 - object" in text and "sink_bar_00_bar_sinkbasin - receptacle" in text
    two = problem(Game(("desk 1",), {"book 1": "desk 1"}, Task("pick_two_obj_and_place", "book", 2, "", "desk")))
    assert "(objectType ?o bookotype) (inReceptacle ?o ?r)" in two and "(objectType ?p bookotype) (inReceptacle ?p ?r)" in two and "(not (= ?o ?p))" in two


def test_games_of_a_folder(tmp_path: Path) -> None:
    def write(name: str, type: str, solvable: bool) -> None:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "game.tw-pddl").write_text(json.dumps({"solvable": solvable}))
        (folder / "traj_data.json").write_text(json.dumps({"task_type": type}))

    write("b", "pick_and_place_simple", True)
    write("a", "pick_and_place_simple", True)
    write("c", "pick_and_place_simple", False)
    write("d", "look_at_obj_in_light", True)
    assert [Path(file).parent.name for file in game_files(str(tmp_path), ("pick_and_place_simple",))] == ["a", "b"]
    with pytest.raises(ConfigError, match="no solvable game of the types pick_two_obj_and_place"):
        game_files(str(tmp_path), ("pick_two_obj_and_place",))
    (tmp_path / "a" / "traj_data.json").write_text("{}")
    with pytest.raises(ConfigError, match="a/traj_data.json is not a game of ALFWorld: 'task_type'"):
        game_files(str(tmp_path), ("pick_and_place_simple",))


def test_before_the_first_reset() -> None:
    task = make_environment("alfworld")
    assert task.admissible is None
    with pytest.raises(EnvironmentFailure, match="after reset"):
        task.environment.solve()  # type: ignore[attr-defined]
    assert task.reset(0) and task.step(7).observation == NOTHING


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"task_type": "cook"}, "task_type must be one of 'pick_and_place'"),
        ({"max_objects": 1}, "max_objects must be"),
        ({"use_vision": True}, "use_vision must be False, because observations are texts"),
        ({"text_encoding_dim": 512}, "text_encoding_dim must be None"),
        ({"action_space_size": 20}, "action_space_size must be None"),
        ({"path": "games"}, 'need engine="alfworld"'),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"alfworld: .*{fault}"):
        make_environment("alfworld", **options)
