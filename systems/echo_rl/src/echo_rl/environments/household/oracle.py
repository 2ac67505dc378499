"""Solves games of the household by their rules, knowing where everything is."""

from __future__ import annotations

from echo_rl.environments.household.games import LAMP, TOOLS, holds, kind
from echo_rl.environments.household.rules import VERBS, Household

__all__ = ["next_command"]


def next_command(house: Household) -> str:
    """The next command towards the goal, from any state of the game."""
    task = house.game.task
    goal = (
        None
        if task.receptacle is None
        else max((name for name in house.game.receptacles if kind(name) == task.receptacle), key=lambda name: len(house.done_in(name)))
    )
    held = house.held
    if held is None:
        done = [] if goal is None else house.done_in(goal)
        wanted = [thing for thing in house.places if kind(thing) == task.object and thing not in done]
        best = max(wanted, key=lambda thing: (task.state in house.states[thing], house.places[thing] == house.at))
        return _at(house, house.places[best], f"take {best} from {house.places[best]}", inside=True)
    if kind(held) != task.object:
        places = [name for name in house.game.receptacles if holds(kind(name), kind(held))]
        place = min(places, key=lambda name: (name != house.at, house.closed(name)))
        return _at(house, place, f"move {held} to {place}", inside=True)
    if task.state and task.state not in house.states[held]:
        tool = next(name for name in house.game.receptacles if kind(name) == TOOLS[task.state])
        return _at(house, tool, f"{VERBS[task.state]} {held} with {tool}")
    if goal is None:
        lamp, place = next((name, place) for name, place in house.places.items() if kind(name) == LAMP)
        return _at(house, place, f"use {lamp}")
    return _at(house, goal, f"move {held} to {goal}", inside=True)


def _at(house: Household, place: str, command: str, inside: bool = False) -> str:
    """Go to a place first, and open it if the command needs its inside."""
    if house.at != place:
        return f"go to {place}"
    return f"open {place}" if inside and house.closed(place) else command
