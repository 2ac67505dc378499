"""A household in text, with the six task types of ALFWorld: our own games and rules, or ALFWorld's engine on our games or on yours.

Source: Shridhar et al., "ALFWorld: Aligning Text and Embodied Environments for Interactive Learning", 2021. Our games are not those
of its data set, so figures can be compared with published ones only for games of ``path``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from echo_core import ConfigError
from echo_rl.checks import one_of, optional, whole
from echo_rl.environments.base import EnvironmentFailure
from echo_rl.environments.household.engine import Engine, game_files
from echo_rl.environments.household.games import TASK_TYPES, made
from echo_rl.environments.household.oracle import next_command
from echo_rl.environments.household.rules import Household
from echo_rl.environments.task import Outcome, TaskConfig, TaskEnvironment, check_task, only

__all__ = ["ALFWorldConfig", "ALFWorldEnvironment"]

#: Shorter names of the task types, and "all".
SHORT = {
    "pick_and_place": "pick_and_place_simple",
    "look_in_light": "look_at_obj_in_light",
    "clean_and_place": "pick_clean_then_place_in_recep",
    "heat_and_place": "pick_heat_then_place_in_recep",
    "cool_and_place": "pick_cool_then_place_in_recep",
    "pick_two": "pick_two_obj_and_place",
}


@dataclass(frozen=True)
class ALFWorldConfig(TaskConfig):
    """The task.

    Attributes:
        task_type: ``"pick_and_place"``, ``"look_in_light"``, ``"clean_and_place"``, ``"heat_and_place"``, ``"cool_and_place"``, ``"pick_two"``, ALFWorld's own
            name of one of them, or ``"all"``.
        max_objects: how many objects a game has at most, 2 to 40.
        room_size: how many cabinets, drawers or other pieces of one kind a room has at most, 1 to 10.
        use_vision: False; observations are texts.
        engine: ``"native"``: the rules written here. ``"alfworld"``: the packages alfworld and textworld, which are much slower.
        path: a folder with games of ALFWorld, such as its data; needs ``engine="alfworld"``. None makes games from the seed.
        text_encoding_dim, action_space_size: None.
    """

    task_type: str = "pick_and_place"
    max_objects: int = 10
    room_size: int = 5
    use_vision: bool = False
    engine: Literal["native", "alfworld"] = "native"
    path: str | None = None
    text_encoding_dim: None = None
    action_space_size: None = None

    def __post_init__(self) -> None:
        check_task(
            "alfworld",
            self,
            task_type=one_of(*SHORT, *TASK_TYPES, "all"),
            max_objects=whole(2, 40),
            room_size=whole(1, 10),
            use_vision=only(False, because="observations are texts"),
            engine=one_of("native", "alfworld"),
            path=optional(lambda value: None if isinstance(value, str) else "the path of a folder"),
            text_encoding_dim=only(None, because="observations are texts: a backbone encodes them"),
            action_space_size=only(None, because="actions are texts, and their number changes"),
        )
        if self.path is not None and self.engine != "alfworld":
            raise ConfigError('alfworld: games of a folder need engine="alfworld"; the native rules play the games that are made here')

    @property
    def types(self) -> tuple[str, ...]:
        """ALFWorld's names of the chosen task types."""
        return tuple(TASK_TYPES) if self.task_type == "all" else (SHORT.get(self.task_type, self.task_type),)


class _Play(Protocol):
    def introduction(self) -> str: ...
    def act(self, command: str) -> str: ...
    def won(self) -> bool: ...
    def admissible(self) -> list[str]: ...


class ALFWorldEnvironment(TaskEnvironment):
    """A game an episode. Actions are commands such as ``"go to cabinet 1"``; ``admissible`` lists those that do something now.

    The reward is 1 when the task is done. With a folder of games, successive seeds go through them in order.
    """

    name = "alfworld"

    def __init__(self, config: ALFWorldConfig | None = None) -> None:
        config = config or ALFWorldConfig()
        super().__init__(config, 50)
        self._engine = Engine() if config.engine == "alfworld" else None
        self._files = None if config.path is None else game_files(config.path, config.types)
        self._play: _Play | None = None

    @property
    def admissible(self) -> list[str] | None:
        """The commands that do something now; None before the first reset."""
        return None if self._play is None else self._play.admissible()

    def solve(self) -> str:
        """The next command of an oracle that knows where everything is, from any state. Only the native rules have it."""
        if not isinstance(self._play, Household):
            raise EnvironmentFailure('alfworld: the oracle plays the native rules, after reset; engine="alfworld" has none here')
        return next_command(self._play)

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()

    def _begin(self, seed: int) -> str:
        if self._files is not None:
            assert self._engine is not None
            self._play = self._engine.load(self._files[seed % len(self._files)])
        else:
            game = made(seed, self.config.types, self.config.max_objects, self.config.room_size)
            self._play = Household(game) if self._engine is None else self._engine.play(game)
        return self._play.introduction()

    def _act(self, action: Any) -> Outcome:
        assert self._play is not None
        seen = self._play.act(action if isinstance(action, str) else "")
        won = self._play.won()
        return Outcome(seen, float(won), won, float(won))
