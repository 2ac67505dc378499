"""Grid worlds of the library MiniGrid: a key and a door, several objects, a way to a goal, or any of its ids, among them those of BabyAI.

Source: Chevalier-Boisvert et al., "Minigrid & Miniworld", 2023; the rules and BabyAI's bot are the library's.
"""

from __future__ import annotations

import importlib
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from echo_core import ConfigError
from echo_rl.checks import one_of, optional, whole
from echo_rl.environments.base import EnvironmentFailure
from echo_rl.environments.task import Outcome, TaskConfig, TaskEnvironment, check_task, needs, only

__all__ = ["ACTIONS", "MiniGridConfig", "MiniGridEnvironment"]

#: The names of the library's actions, in its order.
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
LEFT, RIGHT, FORWARD, PICKUP, TOGGLE = 0, 1, 2, 3, 5
VIEW = 7
SIZE = 8
DIRECTIONS = ("east", "south", "west", "north")
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True)
class MiniGridConfig(TaskConfig):
    """The task.

    Attributes:
        grid_size: the side of the grid with its walls, 5 to 25; only without ``env_id``. 8 by default.
        num_objects: how many objects lie in the grid, for ``multi_object`` only: up to 9, and 8 in a grid of size 5, where the last cell is the agent's.
            3 by default.
        task_type: ``"key_door"``: DoorKey. ``"multi_object"``: Fetch, where one of several objects is to be picked up.
            ``"navigation"``: Empty, from a random place.
        env_id: an id of the library instead, such as ``"BabyAI-GoToRedBall-v0"``.
        observation: ``"text"``, or ``"array"``: float32 of shape (984,), the 7 x 7 view as one-hot kinds, colours and states, and the direction.
        action_space_size: 7, the library's actions.
    """

    grid_size: int | None = None
    num_objects: int | None = None
    task_type: str | None = None
    env_id: str | None = None
    observation: Literal["text", "array"] = "text"
    action_space_size: int = 7

    def __post_init__(self) -> None:
        check_task(
            "minigrid",
            self,
            grid_size=optional(whole(5, 25)),
            num_objects=optional(whole(1, 9)),
            task_type=optional(one_of("key_door", "multi_object", "navigation")),
            env_id=lambda value: None if value is None or isinstance(value, str) else "an id of MiniGrid, or None",
            observation=one_of("text", "array"),
            action_space_size=only(7, because="MiniGrid has seven actions"),
        )
        if self.env_id is not None and not (self.grid_size is None and self.num_objects is None and self.task_type is None):
            raise ConfigError("minigrid: env_id names the whole task, so grid_size, num_objects and task_type have to be left out")
        if self.num_objects is not None and self.task_type != "multi_object":
            raise ConfigError("minigrid: num_objects is for task_type='multi_object'; the other tasks have their own objects")
        cells = ((self.grid_size or SIZE) - 2) ** 2
        if self.num_objects is not None and self.num_objects >= cells:  # the library would look for a place for ever
            raise ConfigError(f"minigrid: num_objects must be at most {cells - 1} with grid_size={self.grid_size}, so that the agent has a cell, too")


class MiniGridEnvironment(TaskEnvironment):
    """A grid world. The agent sees seven by seven cells before it, and nothing behind walls.

    An action is its number or its name, such as ``"go forward"``. Another text does nothing and takes a step. The reward is the
    library's: 1 - 0.9 (steps / limit) at success, else 0.

    Attributes:
        observation_space, action_space: Gymnasium's spaces of the arrays and numbers.
    """

    name = "minigrid"

    def __init__(self, config: MiniGridConfig | None = None) -> None:
        config = config or MiniGridConfig()
        needs("minigrid", "minigrid", lambda: importlib.import_module("minigrid"))
        spaces = importlib.import_module("gymnasium").spaces
        self._env: Any = _library(config)
        super().__init__(config, self._env.max_steps)
        self._one_hot = _one_hot()
        self.observation_space = spaces.Box(0.0, 1.0, (VIEW * VIEW * self._one_hot.shape[1] + 4,), np.float32)
        self.action_space = spaces.Discrete(len(ACTIONS))
        self._bot: Any = None
        self._plan: deque[int] = deque()
        self._advice: int | None = None
        self._action = 0

    @property
    def admissible(self) -> list[str]:
        """The names of all actions."""
        return list(ACTIONS)

    def solve(self) -> str:
        """The next action of an oracle that sees the whole grid: BabyAI's bot for its levels, otherwise a shortest way.

        Raises EnvironmentFailure if the oracle knows no way. The way is to a goal or to the object to pick up, with keys and doors on it; other
        missions have no oracle. BabyAI's bot fails in some of its levels.
        """
        if self._advice is None:
            if hasattr(self._env, "instrs"):
                self._advice = self._advised()
            else:
                self._plan = self._plan or deque(shortest(self._env))
                if not self._plan:
                    raise EnvironmentFailure(self._no_way())
                self._advice = self._plan[0]
        return ACTIONS[self._advice]

    def close(self) -> None:
        """Close the library's environment."""
        self._env.close()

    def _begin(self, seed: int) -> Any:
        seen, _ = self._env.reset(seed=seed)
        while self.config.task_type == "multi_object" and not shortest(self._env):
            seen, _ = self._env.reset()  # other objects stand in the way, so that they are placed anew by the same random numbers
        self.max_steps = self.config.max_steps or self._env.max_steps  # BabyAI's levels have a limit for each mission
        self._bot, self._advice = None, None
        self._plan.clear()
        return self._observed(seen)

    def _act(self, action: Any) -> Outcome:
        number = _number(action)
        if number is None:
            self._env.step_count += 1
            return Outcome(self._observed(self._env.gen_obs()), info={"invalid": True})
        if self._plan and self._plan[0] == number:
            self._plan.popleft()
        else:
            self._plan.clear()
        seen, reward, over, _, _ = self._env.step(number)
        if self._bot is not None:
            self._action = number
        self._advice = None
        return Outcome(self._observed(seen), float(reward), bool(over), float(over and reward > 0))

    def _advised(self) -> int:
        try:
            if self._bot is None:
                self._bot = importlib.import_module("minigrid.utils.baby_ai_bot").BabyAIBot(self._env)
                return int(self._bot.replan())
            return int(self._bot.replan(self._action))
        except Exception as error:  # the bot shows by failed assertions and other errors that it does not know a way
            raise EnvironmentFailure(f"{self._no_way()}: BabyAI's bot has raised {type(error).__name__} {error}".rstrip()) from None

    def _no_way(self) -> str:
        return f"minigrid: the oracle knows no way for the mission {self._env.mission!r}"

    def _observed(self, seen: Any) -> Any:
        if self.config.observation == "text":
            return _described(seen, self._env.carrying)
        direction = np.zeros(4, np.float32)
        direction[seen["direction"]] = 1
        return np.concatenate([self._one_hot[_cell_numbers(seen["image"])].reshape(-1), direction])


def _library(config: MiniGridConfig) -> Any:
    """The library's environment, without the wrappers that check and count again."""
    options = {} if config.max_steps is None else {"max_steps": config.max_steps}
    if config.env_id is not None:
        gymnasium = importlib.import_module("gymnasium")
        try:
            made = gymnasium.make(config.env_id, disable_env_checker=True, **options).unwrapped
        except Exception as error:
            raise ConfigError(f"minigrid: the library cannot make {config.env_id!r}: {error}") from error
        if not isinstance(made, importlib.import_module("minigrid.minigrid_env").MiniGridEnv):
            raise ConfigError(f"minigrid: {config.env_id!r} is not one of MiniGrid's environments; use gym:{config.env_id}")
        return made
    envs = importlib.import_module("minigrid.envs")
    size = config.grid_size or SIZE
    if config.task_type == "multi_object":
        return envs.FetchEnv(size=size, numObjs=config.num_objects or 3, **options)
    if config.task_type == "navigation":
        return envs.EmptyEnv(size=size, agent_start_pos=None, **options)
    return envs.DoorKeyEnv(size=size, **options)


def _number(action: Any) -> int | None:
    if isinstance(action, str):
        text = " ".join(action.lower().split())
        return ACTIONS.index(text) if text in ACTIONS else None
    if isinstance(action, bool) or np.ndim(action) != 0 or action not in range(len(ACTIONS)):
        raise EnvironmentFailure(f"minigrid: an action is a number from 0 to {len(ACTIONS) - 1} or one of {', '.join(ACTIONS)}, not {action!r:.80}")
    return int(action)


def _one_hot() -> np.ndarray:
    """For each number of a cell, its kind, colour and state as three one-hot vectors side by side."""
    table = np.zeros((11, 6, 3, 20), np.float32)
    for kind, colour, state in np.ndindex(11, 6, 3):
        table[kind, colour, state, [kind, 11 + colour, 17 + state]] = 1
    return table.reshape(-1, 20)


def _cell_numbers(image: Any) -> np.ndarray:
    """The number of each cell's kind, colour and state, by which ``_one_hot`` is indexed."""
    return np.asarray((image[..., 0].astype(np.intp) * 6 + image[..., 1]) * 3 + image[..., 2])


def _described(seen: Any, carrying: Any) -> str:
    """The view in words. The agent stands at (3, 6) of the image and looks along its second axis, towards 0."""
    core = importlib.import_module("minigrid.core.constants")
    image, parts = seen["image"], []
    middle, last = VIEW // 2, VIEW - 1
    for side, ahead in sorted(np.ndindex(VIEW, VIEW), key=lambda cell: (last - cell[1] + abs(cell[0] - middle), cell)):
        kind = core.IDX_TO_OBJECT[int(image[side, ahead, 0])]
        if kind in ("unseen", "empty", "floor", "wall") or (side, ahead) == (middle, last):
            continue
        state = ("open ", "closed ", "locked ")[int(image[side, ahead, 2])] if kind == "door" else ""
        colour = "" if kind in ("goal", "lava") else core.IDX_TO_COLOR[int(image[side, ahead, 1])] + " "
        parts.append(f"{state}{colour}{kind} ({_place(side - middle, last - ahead)})")
    walls = []
    for words, cells in (("ahead", [(middle, y) for y in range(last - 1, -1, -1)]), ("left", [(x, last) for x in range(middle - 1, -1, -1)]),
                         ("right", [(x, last) for x in range(middle + 1, VIEW)])):  # fmt: skip
        distance = next((n for n, cell in enumerate(cells, 1) if image[cell][0] == core.OBJECT_TO_IDX["wall"]), None)
        if distance is not None:
            walls.append(f"{distance} {words}")
    held = f"You carry a {carrying.color} {carrying.type}. " if carrying is not None else ""
    view = f"{held}You see: {', '.join(parts) or 'nothing'}. Walls: {', '.join(walls) or 'none near'}."
    return f"Mission: {seen['mission']}. You face {DIRECTIONS[seen['direction']]}. {view}"


def _place(right: int, ahead: int) -> str:
    words = [f"{ahead} ahead"] if ahead else []
    if right:
        words.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " and ".join(words)


def shortest(env: Any) -> list[int]:
    """A shortest list of actions to the goal, or to the object that the mission wants picked up; empty if there is none.

    It searches breadth first over the place, the direction, what is carried and which doors are open. Nothing is put down on the way.
    """
    cells = {(x, y): env.grid.get(x, y) for x in range(env.width) for y in range(env.height)}
    wanted = (env.targetType, env.targetColor) if hasattr(env, "targetColor") else None  # of Fetch; GoToObject has the type only, and wants no pickup
    start = (
        (int(env.agent_pos[0]), int(env.agent_pos[1])),
        int(env.agent_dir),
        env.carrying,
        frozenset(at for at, cell in cells.items() if cell is not None and cell.type == "door" and cell.is_open),
    )
    queue, before = deque([start]), {start: (start, -1)}
    while queue:
        state = queue.popleft()
        at, direction, held, opened = state
        front = (at[0] + STEPS[direction][0], at[1] + STEPS[direction][1])
        following = {LEFT: (at, (direction - 1) % 4, held, opened), RIGHT: (at, (direction + 1) % 4, held, opened)}
        cell = None if held is not None and cells.get(front) is held else cells.get(front)
        if front not in cells:
            pass  # the agent stands in a door of the outer wall, as there are in GoToDoor
        elif cell is None or cell.type in ("goal", "floor") or front in opened:
            following[FORWARD] = (front, direction, held, opened)
        elif cell.type == "door" and (not cell.is_locked or (held is not None and held.type == "key" and held.color == cell.color)):
            following[TOGGLE] = (at, direction, held, opened | {front})
        elif cell.can_pickup() and held is None:
            following[PICKUP] = (at, direction, cell, opened)
        for action, then in following.items():
            if then in before:
                continue
            before[then] = (state, action)
            goal = then[2] is not held and (then[2].type, then[2].color) == wanted if wanted else cells[then[0]] is not None and cells[then[0]].type == "goal"
            if goal:
                return _unwound(before, then)
            if wanted is None or then[2] is None:  # picking up another object ends the episode of Fetch
                queue.append(then)
    return []


def _unwound(before: dict[Any, tuple[Any, int]], state: Any) -> list[int]:
    actions: list[int] = []
    while before[state][1] >= 0:
        state, action = before[state]
        actions.append(action)
    return actions[::-1]
