"""ALFWorld's own engine, on games that are made here or on files of its data. It needs the packages alfworld and textworld, whose domain and grammar it reads.

Their dependencies include packages under the GPL (jericho, fast-downward-textworld). Echo neither contains nor requires them.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from echo_core import ConfigError
from echo_core.base.installing import how_to_install
from echo_rl.environments.household.games import ABLE, LAMP, OPENABLE, Game, holds, kind

__all__ = ["Engine", "game_files", "problem"]

ABILITIES = {"clean": "cleanable", "hot": "heatable", "cool": "coolable"}
BECOME = {"": "", "clean": "(isClean ?o)", "hot": "(isHot ?o)", "cool": "(isCool ?o)"}


def _mend(textgen: Any) -> None:
    """Let textworld 1.7 evaluate its grammar on Python 3.13, where a function can no longer add variables to ``locals()`` (PEP 667)."""

    def derive(self: Any, context: Any = None) -> list[Any]:
        context = context or self.context
        return [textgen.TerminalSymbol(eval(self.expression, vars(textgen), {**context["variables"], "context": context, "self": self}))]

    textgen.EvalSymbol.derive = derive


class Engine:
    """ALFWorld's engine. ``play`` and ``load`` begin a game; one is played at a time."""

    def __init__(self) -> None:
        try:
            self._alfworld: Any = importlib.import_module("alfworld")
            self._textworld: Any = importlib.import_module("textworld")
            self._names = importlib.import_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        except ImportError as error:
            raise ConfigError(
                'alfworld: engine="native" needs nothing more, and engine="alfworld" needs alfworld and textworld, which take minutes to build and are not '
                f"installed ({error}); {how_to_install('echo-rl[alfworld]')}"
            ) from error
        if sys.version_info >= (3, 13):
            _mend(importlib.import_module("textworld.envs.pddl.textgen"))
        self._environment: Any = None
        self._state: Any = None

    def play(self, game: Game) -> Engine:
        """Begin a game that was made here."""
        data = Path(self._alfworld.__file__).parent / "data"
        grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", str(game.task))
        content = {"pddl_domain": (data / "alfred.pddl").read_text(), "grammar": grammar, "pddl_problem": problem(game), "solvable": True, "walkthrough": []}
        with tempfile.TemporaryDirectory(prefix="echo-alfworld-") as folder:
            path = Path(folder) / "game.tw-pddl"
            path.write_text(json.dumps(content))
            return self.load(str(path))

    def load(self, path: str) -> Engine:
        """Begin the game of a file of ALFWorld's data."""
        self.close()
        infos = self._textworld.EnvInfos(won=True, admissible_commands=True)
        self._environment = self._textworld.start(path, infos, wrappers=[self._names()])
        self._state = self._environment.reset()
        return self

    def introduction(self) -> str:
        """The first observation."""
        return str(self._state.feedback).strip()

    def act(self, command: str) -> str:
        """Do a command, and return what is seen."""
        self._state, _, _ = self._environment.step(" ".join(command.lower().split()))
        return str(self._state.feedback).strip()

    def won(self) -> bool:
        """Whether the task is done."""
        return bool(self._state.won)

    def admissible(self) -> list[str]:
        """The commands that do something now, sorted."""
        return sorted(map(str, self._state.admissible_commands))

    def close(self) -> None:
        """End the game that is played."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None


def game_files(path: str, types: Sequence[str]) -> list[str]:
    """The solvable games of these types in a folder and the folders below, sorted. Raise ConfigError if there is none."""
    found = []
    for file in sorted(Path(path).rglob("game.tw-pddl")):
        about = file.with_name("traj_data.json")
        try:
            type = json.loads(about.read_text())["task_type"] if about.exists() else None
            solvable = json.loads(file.read_text()).get("solvable", False)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"alfworld: {about if about.exists() else file} is not a game of ALFWorld: {error}") from error
        if solvable and type in types:
            found.append(str(file))
    if not found:
        raise ConfigError(f"alfworld: the folder {path} has no solvable game of the types {', '.join(types)}: each has a game.tw-pddl and a traj_data.json")
    return found


def problem(game: Game) -> str:
    """A game as a problem of ALFWorld's PDDL domain."""
    receptacles, things = _ids(game.receptacles), _ids(game.places)
    places = {name: f"loc_bar_{number:02d}" for number, name in enumerate(game.receptacles)}
    middle = f"loc_bar_{len(places):02d}"
    facts = [f"(atLocation agent1 {middle})"]
    for name, id in receptacles.items():
        facts += [f"(receptacleAtLocation {id} {places[name]})", f"(receptacleType {id} {kind(name)}type)"]
        facts += [f"(openable {id})"] if kind(name) in OPENABLE else []
    for thing, id in things.items():
        at = game.places[thing]
        facts += [f"(objectType {id} {kind(thing)}otype)", f"(inReceptacle {id} {receptacles[at]})", f"(objectAtLocation {id} {places[at]})"]
        facts += [f"({'toggleable' if kind(thing) == LAMP else 'pickupable'} {id})"]
        facts += [f"({ability} {id})" for state, ability in ABILITIES.items() if kind(thing) in ABLE[state]]
    kinds, thing_kinds = sorted({kind(name) for name in receptacles}), sorted({kind(name) for name in things})
    facts += [f"(canContain {one}type {two}otype)" for one in kinds for two in thing_kinds if holds(one, two)]
    objects = [
        "agent1 - agent",
        *(f"{place} - location" for place in (*places.values(), middle)),
        *(f"{id} - receptacle" for id in receptacles.values()),
        *(f"{id} - object" for id in things.values()),
        *(f"{name}type - rtype" for name in kinds),
        *(f"{name}otype - otype" for name in thing_kinds),
    ]
    lines = "\n".join
    return f"(define (problem made)\n(:domain alfred)\n(:objects\n{lines(objects)}\n)\n(:init\n{lines(facts)}\n)\n(:goal {_goal(game)})\n)\n"


def _goal(game: Game) -> str:
    task = game.task
    if task.receptacle is None:
        lamp = f"(exists (?t - object ?a - agent ?l - location) (and (objectType ?t {LAMP}otype) (isToggled ?t) (objectAtLocation ?t ?l) (atLocation ?a ?l)))"
        return f"(and {lamp} (exists (?o - object ?a - agent) (and (objectType ?o {task.object}otype) (holds ?a ?o))))"
    first = f"(receptacleType ?r {task.receptacle}type) (objectType ?o {task.object}otype) (inReceptacle ?o ?r) {BECOME[task.state]}"
    if task.count == 1:
        return f"(exists (?r - receptacle ?o - object) (and {first}))"
    second = re.sub(r"\?o\b", "?p", first.partition(") ")[2])
    return f"(exists (?r - receptacle ?o - object ?p - object) (and {first} {second} (not (= ?o ?p))))"


def _ids(names: Iterable[str]) -> dict[str, str]:
    """Identifiers from which the engine makes these names again: it numbers those of one kind downwards, in their order."""
    names = list(names)
    counts = {name: sum(kind(other) == kind(name) for other in names) for name in names}
    made = {}
    for name in names:
        number = counts[name] - int(name.rpartition(" ")[2])
        made[name] = f"sink_bar_{number:02d}_bar_sinkbasin" if kind(name) == "sinkbasin" else f"{kind(name)}_bar_{number:02d}"
    return made
