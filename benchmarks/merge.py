"""Result files of parts of a suite as one: what takes too long in one go is measured case by case, each with all of its systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.results import Results

#: What has to be the same in all of them.
SAME = ("format", "version", "suite", "settings", "git")


def merge(parts: Sequence[Results]) -> dict[str, Any]:
    """One result file's content: the cases of all of them in turn; systems in the order in which they were met first.

    Raises:
        ValueError: two of them have the same case, or they are not of one suite, revision, machine, and of the same settings and systems.
    """
    first = parts[0].content
    machine = {key: value for key, value in first["machine"].items() if key != "load"}
    for part in parts[1:]:
        for key in SAME:
            if part.content.get(key) != first.get(key):
                raise ValueError(f"parts of one run have the same {key}: {first.get(key)} and {part.content.get(key)}")
        if {key: value for key, value in part.content["machine"].items() if key != "load"} != machine:
            raise ValueError("parts of one run are of one machine and Python")
    systems: dict[str, str] = {}
    cases: dict[str, Any] = {}
    notes: dict[str, None] = {}
    for part in parts:
        for name, version in part.content["systems"].items():
            if systems.setdefault(name, version) != version:
                raise ValueError(f"{name} is {systems[name]} in one part and {version} in another")
        for name, case in part.cases.items():
            if name in cases:
                raise ValueError(f"case {name} is in two parts")
            cases[name] = case
        notes |= dict.fromkeys(part.content["notes"])
    load = max(part.content["machine"]["load"] for part in parts)
    return {
        **first,
        "created": min(part.content["created"] for part in parts),
        "machine": {**machine, "load": load},
        "systems": systems,
        "notes": list(notes),
        "cases": list(cases.values()),
        "results": [result for part in parts for result in part.content["results"]],
    }
