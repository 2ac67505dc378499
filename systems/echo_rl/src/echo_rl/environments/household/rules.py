"""The rules of the household: what each command does and says. They are written from how ALFWorld's engine behaves, and on the same game they give the same
texts, except the one of ``help``.

Source of the task: Shridhar et al., "ALFWorld: Aligning Text and Embodied Environments for Interactive Learning", 2021.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from echo_rl.environments.household.games import ABLE, LAMP, OPENABLE, TOOLS, Game, holds, kind

__all__ = ["NOTHING", "Household"]

NOTHING = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
VERBS = {"clean": "clean", "hot": "heat", "cool": "cool"}
COMMAND = re.compile(r"(go to|open|close|examine|use) (.+)|(take) (.+) from (.+)|(move) (.+) to (.+)|(clean|heat|cool) (.+) with (.+)")
HELP = (
    "You can say: look, inventory, go to R, open R, close R, examine R or O, take O from R, move O to R, clean O with R, heat O with R, cool O with R, use O."
)


class Household:
    """A game being played.

    Args:
        game: the game at its beginning; it is not changed.

    Attributes:
        places: for each object that is not held, the receptacle in which it is.
        at: the receptacle where the agent stands, or None in the middle of the room.
        held: the object in the agent's hand, or None.
        opened: the receptacles that are open.
        states: for each object, what it has become: "clean", and "hot" or "cool".
        lit: the lamps that are on.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.places = dict(game.places)
        self.at: str | None = None
        self.held: str | None = None
        self.opened: set[str] = set()
        self.states: dict[str, set[str]] = {thing: set() for thing in game.places}
        self.lit: set[str] = set()

    def introduction(self) -> str:
        """The first observation: the room and the task."""
        room = f"You are in the middle of a room. Looking quickly around you, you see {_listed(self.game.receptacles)}."
        return f"{WELCOME}\n\n{room}\n\nYour task is to: {self.game.task}."

    def won(self) -> bool:
        """Whether the task is done."""
        task = self.game.task
        if task.receptacle is None:
            return self.held is not None and kind(self.held) == task.object and any(self.places[lamp] == self.at for lamp in self.lit)
        return any(len(self.done_in(receptacle)) >= task.count for receptacle in self.game.receptacles if kind(receptacle) == task.receptacle)

    def done_in(self, receptacle: str) -> list[str]:
        """The objects in a receptacle that are what the task wants."""
        task = self.game.task
        return [thing for thing, place in self.places.items() if place == receptacle and kind(thing) == task.object and task.state in ("", *self.states[thing])]

    def reachable(self) -> list[str]:
        """The objects in the receptacle where the agent stands, if it is open or needs no opening."""
        if self.at is None or self.closed(self.at):
            return []
        return [thing for thing, place in self.places.items() if place == self.at]

    def closed(self, receptacle: str) -> bool:
        """Whether a receptacle has a door, and it is closed."""
        return kind(receptacle) in OPENABLE and receptacle not in self.opened

    def admissible(self) -> list[str]:
        """All commands that do something now, sorted."""
        at, held = self.at, self.held
        commands = ["help", "inventory", "look", *(f"go to {name}" for name in self.game.receptacles if name != at)]
        if at is not None:
            commands.append(f"examine {at}")
            if kind(at) in OPENABLE:
                commands.append(f"{'open' if self.closed(at) else 'close'} {at}")
            things = self.reachable()
            commands += [f"use {thing}" for thing in things if kind(thing) == LAMP]
            if held is None:
                commands += [f"take {thing} from {at}" for thing in things if kind(thing) != LAMP]
            elif holds(kind(at), kind(held)) and not self.closed(at):
                commands.append(f"move {held} to {at}")
            if held is not None:
                commands += [f"{VERBS[state]} {held} with {at}" for state in VERBS if self._able(state, held, at)]
        if held is not None:
            commands.append(f"examine {held}")
        return sorted(commands)

    def act(self, command: str) -> str:
        """Do what a command says, and return what is seen. A command that is not possible changes nothing."""
        command = " ".join(command.lower().split())
        if command in ("look", "inventory", "help"):
            return self._shown(command)
        match = COMMAND.fullmatch(command)
        if match is None:
            return NOTHING
        verb, *names = (part for part in match.groups() if part is not None)
        first, second = names[0], names[-1]
        if verb == "go to":
            return self._go(first)
        if verb in ("open", "close"):
            return self._door(verb, first)
        if verb == "examine":
            return self._receptacle(first) if first == self.at else self._thing(first) if first == self.held else NOTHING
        if verb == "use":
            return self._use(first)
        if second != self.at:
            return NOTHING
        if verb == "take":
            return self._take(first, second)
        return self._move(first, second) if verb == "move" else self._treat(verb, first, second)

    def _go(self, receptacle: str) -> str:
        if receptacle == self.at or receptacle not in self.game.receptacles:
            return NOTHING
        self.at = receptacle
        return f"You arrive at {receptacle}. {self._receptacle(receptacle)}"

    def _door(self, verb: str, receptacle: str) -> str:
        if receptacle != self.at or kind(receptacle) not in OPENABLE or self.closed(receptacle) != (verb == "open"):
            return NOTHING
        if verb == "close":
            self.opened.discard(receptacle)
            return f"You close the {receptacle}."
        self.opened.add(receptacle)
        return f"You open the {receptacle}. {self._receptacle(receptacle)}"

    def _use(self, thing: str) -> str:
        if kind(thing) != LAMP or thing not in self.reachable():
            return NOTHING
        self.lit.add(thing)
        return f"You turn on the {thing}."

    def _take(self, thing: str, receptacle: str) -> str:
        if self.held is not None or kind(thing) == LAMP or thing not in self.reachable():
            return NOTHING
        self.held = thing
        del self.places[thing]
        return f"You pick up the {thing} from the {receptacle}."

    def _move(self, thing: str, receptacle: str) -> str:
        if thing != self.held or self.closed(receptacle) or not holds(kind(receptacle), kind(thing)):
            return NOTHING
        self.held = None
        self.places[thing] = receptacle
        return f"You move the {thing} to the {receptacle}."

    def _treat(self, verb: str, thing: str, receptacle: str) -> str:
        state = next(state for state, known in VERBS.items() if known == verb)
        if thing != self.held or not self._able(state, thing, receptacle):
            return NOTHING
        if state != "clean":
            self.states[thing] -= {"hot", "cool"}
        self.states[thing].add(state)
        return f"You {verb} the {thing} using the {receptacle}."

    def _able(self, state: str, thing: str, receptacle: str) -> bool:
        return kind(receptacle) == TOOLS[state] and kind(thing) in ABLE[state]

    def _shown(self, command: str) -> str:
        if command == "help":
            return HELP
        if command == "inventory":
            return "You are not carrying anything." if self.held is None else f"You are carrying: a {self.held}."
        if self.at is None:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        return f"You are facing the {self.at}. Next to it, you see nothing."

    def _receptacle(self, receptacle: str) -> str:
        things = _listed(self.reachable())
        if kind(receptacle) not in OPENABLE:
            return f"On the {receptacle}, you see {things}."
        return f"The {receptacle} is closed." if self.closed(receptacle) else f"The {receptacle} is open. In it, you see {things}."

    def _thing(self, thing: str) -> str:
        words = [word for state, word in (("hot", "hot"), ("cool", "cold"), ("clean", "clean")) if state in self.states[thing]]
        return f"This is a {' and '.join(words)} {thing}." if words else f"There's nothing special about {thing}."


def _listed(names: Iterable[str]) -> str:
    """Names as the engine lists them: by kind, and higher numbers first."""
    ordered = sorted(names, key=lambda name: (kind(name), -int(name.rpartition(" ")[2])))
    if not ordered:
        return "nothing"
    return ", ".join([*(f"a {name}" for name in ordered[:-1]), f"{'and ' if len(ordered) > 1 else ''}a {ordered[-1]}"])
