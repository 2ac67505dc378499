"""Makes games of a household: a room, its furniture, what lies in it, and a task of one of six types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["OPENABLE", "TASK_TYPES", "Game", "Task", "made"]

#: The task types by the names that ALFWorld gives them, with what the object has to be.
TASK_TYPES = {
    "pick_and_place_simple": "",
    "look_at_obj_in_light": "",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "hot",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "",
}


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
SMALL = frozenset(
    {
        "book",
        "pen",
        "pencil",
        "cd",
        "cellphone",
        "keychain",
        "creditcard",
        "fork",
        "spoon",
        "knife",
        "spatula",
        "dishsponge",
        "soapbar",
        "candle",
        "cloth",
        "watch",
    }
)


@dataclass(frozen=True)
class Room:
    """What a room may have: furniture with the lowest and the highest count, and kinds of objects."""

    furniture: dict[str, tuple[int, int]]
    objects: tuple[str, ...]


ROOMS = {
    "kitchen": Room(
        {
            "cabinet": (2, 6),
            "drawer": (1, 4),
            "countertop": (1, 2),
            "fridge": (1, 1),
            "microwave": (1, 1),
            "sinkbasin": (1, 1),
            "stoveburner": (1, 3),
            "diningtable": (0, 1),
            "garbagecan": (1, 1),
        },
        (
            "mug",
            "cup",
            "plate",
            "bowl",
            "apple",
            "tomato",
            "potato",
            "egg",
            "lettuce",
            "bread",
            "knife",
            "fork",
            "spoon",
            "spatula",
            "pan",
            "pot",
            "dishsponge",
        ),
    ),
    "bedroom": Room(
        {"bed": (1, 1), "desk": (1, 2), "drawer": (1, 4), "shelf": (1, 3), "sidetable": (1, 2), "safe": (0, 1), "garbagecan": (1, 1)},
        ("book", "pen", "pencil", "cd", "cellphone", "keychain", "creditcard", "laptop", "pillow", "mug", "watch"),
    ),
    "bathroom": Room(
        {"cabinet": (2, 4), "countertop": (1, 1), "sinkbasin": (1, 2), "toilet": (1, 1), "shelf": (0, 2), "garbagecan": (1, 1)},
        ("soapbar", "spraybottle", "toiletpaper", "candle", "cloth", "soapbottle"),
    ),
}
LAMP = "desklamp"
ABLE = {
    "clean": _listed("mug cup plate bowl apple tomato potato egg lettuce knife fork spoon spatula pan pot dishsponge soapbar cloth"),
    "hot": _listed("mug cup plate apple tomato potato egg bread"),
    "cool": _listed("mug cup plate bowl apple tomato potato egg lettuce bread pan pot"),
}
#: Where an object is cleaned, heated or cooled.
TOOLS = {"clean": "sinkbasin", "hot": "microwave", "cool": "fridge"}
WORDS = {"clean": "clean ", "hot": "hot ", "cool": "cool ", "": ""}


@dataclass(frozen=True)
class Task:
    """What is to be done: objects of a kind, how many, what they have to be (``""``, ``"clean"``, ``"hot"``, ``"cool"``), and the kind of receptacle.

    Without a receptacle, an object is to be held in the light of a lamp that is on.
    """

    type: str
    object: str
    count: int
    state: str
    receptacle: str | None

    def __str__(self) -> str:
        if self.receptacle is None:
            return f"look at {self.object} under the {LAMP}"
        if self.count == 2:
            return f"put two {self.object} in {self.receptacle}"
        return f"put a {WORDS[self.state]}{self.object} in {self.receptacle}"


@dataclass(frozen=True)
class Game:
    """A room at the beginning of an episode.

    Attributes:
        receptacles: their names, such as ``"cabinet 1"``, in an order of their own.
        places: for each object, by its name, the receptacle in which it lies.
        task: what is to be done.
    """

    receptacles: tuple[str, ...]
    places: dict[str, str]
    task: Task


def kind(name: str) -> str:
    """The kind of what has this name: ``"mug"`` of ``"mug 2"``."""
    return name.rpartition(" ")[0]


def holds(receptacle: str, thing: str) -> bool:
    """Whether a receptacle of one kind may hold an object of another kind."""
    if thing == LAMP:
        return receptacle in ("desk", "sidetable", "shelf")
    if receptacle in ("drawer", "safe"):
        return thing in SMALL
    if receptacle in ("microwave", "fridge"):
        return thing in ABLE["hot" if receptacle == "microwave" else "cool"]
    if receptacle == "sinkbasin":
        return thing in ABLE["clean"]
    if receptacle == "stoveburner":
        return thing in ("pan", "pot")
    if receptacle == "toilet":
        return thing in ("toiletpaper", "candle", "soapbottle", "spraybottle", "cloth")
    if receptacle == "garbagecan":
        return thing not in ("pan", "pot", "laptop", "pillow")
    return receptacle != "bed" or thing in ("book", "laptop", "pillow", "cellphone", "cd")


def made(seed: int, types: tuple[str, ...], most_objects: int, most_furniture: int) -> Game:
    """The game of a seed: of one of these types, with at most so many objects and kinds of each furniture. It can be solved."""
    rng = np.random.default_rng([seed, 6])
    type = types[int(rng.integers(len(types)))]
    state = TASK_TYPES[type]
    room = (
        "bedroom"
        if type == "look_at_obj_in_light"
        else "kitchen"
        if state in ("hot", "cool")
        else str(rng.choice(["kitchen", "bathroom"] if state else list(ROOMS)))
    )
    furniture = {name: min(int(rng.integers(low, high + 1)), most_furniture) for name, (low, high) in ROOMS[room].furniture.items()}
    receptacles = [f"{name} {number}" for name, count in furniture.items() for number in range(1, count + 1)]
    receptacles = [receptacles[int(i)] for i in rng.permutation(len(receptacles))]
    kinds = [name for name, count in furniture.items() if count]
    goals = [
        (thing, goal)
        for thing in ROOMS[room].objects
        if not state or thing in ABLE[state]
        for goal in kinds
        if holds(goal, thing) and goal != TOOLS.get(state) and sum(holds(other, thing) for other in kinds) > 1
    ]
    thing, goal = goals[int(rng.integers(len(goals)))]
    count = 2 if type == "pick_two_obj_and_place" else 1
    task = Task(type, thing, count, state, None if type == "look_at_obj_in_light" else goal)
    return Game(tuple(receptacles), _placed(rng, room, receptacles, task, most_objects), task)


def _placed(rng: np.random.Generator, room: str, receptacles: list[str], task: Task, most: int) -> dict[str, str]:
    """Where objects lie. Those that the task is about are not yet where it wants them."""
    things = [task.object] * task.count + ([LAMP] if task.receptacle is None else [])
    others = int(rng.integers(max(0, most - 4), most + 1)) - len(things)
    things += [str(rng.choice(ROOMS[room].objects)) for _ in range(max(0, others))]
    counts: dict[str, int] = {}
    places: dict[str, str] = {}
    for thing in things:
        fitting = [name for name in receptacles if holds(kind(name), thing) and not (thing == task.object and kind(name) == task.receptacle)]
        if fitting and counts.get(thing, 0) < 3:
            counts[thing] = counts.get(thing, 0) + 1
            places[f"{thing} {counts[thing]}"] = fitting[int(rng.integers(len(fitting)))]
    return places
