"""Result files of parts of a suite as one: what takes too long in one go is measured case by case, each with all of its systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.results import Results

#: What has to be the same in all of them.
SAME = ("format", "version", "suite")


def merge(parts: Sequence[Results]) -> dict[str, Any]:
    """One result file's content: the cases of all of them in turn; systems in the order in which they were met first.

    Raises:
        ValueError: two of them have the same case, or they are not of one suite and machine, or of the same versions of the systems. Settings
            and revisions may differ: what is said of all is that of the first, and notes say which parts had others.
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
        notes |= dict.fromkeys([*other(first, part), *(note for note in part.content["notes"] if "was busy" not in note)])
    load = max(part.content["machine"]["load"] for part in parts)
    notes[f"measured in {len(parts)} parts; the load of the machine was up to {load} when they began"] = None
    return {
        **first,
        "created": min(part.content["created"] for part in parts),
        "machine": {**machine, "load": load},
        "systems": systems,
        "notes": list(notes),
        "cases": list(cases.values()),
        "results": [result for part in parts for result in part.content["results"]],
    }


def other(first: dict[str, Any], part: Results) -> list[str]:
    """What is not as in the first part, in words."""
    names, settings, git = ", ".join(part.cases), part.content["settings"], part.content["git"]
    said = []
    if settings != first["settings"]:
        said.append(f"{settings['repeat']} {'run' if settings['repeat'] == 1 else 'runs'} of {settings['seconds']:g} s")
    if git != first["git"]:
        said.append(f"revision {(git['revision'] or 'unknown')[:12]}" + ("+changes" if git["dirty"] else ""))
    return [f"{names}: {', '.join(said)}"] if said else []
