"""One checker for the fields of every configuration, and for numbers that callers hand in.

A rule is a function from a value to what is wrong with it, or None. ``check_fields`` applies one rule to each field of a dataclass, so a wrong value is
always an error that names its own field.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

Rule = Callable[[Any], str | None]
"""Returns what a value must be, such as ``"a whole number of at least 1"``, or None for a value that is right."""


def whole(least: int | None = None, most: int | None = None) -> Rule:
    """A whole number within bounds; True, False and 2.0 are refused."""
    need = "a whole number" + _within(least, most)

    def rule(value: Any) -> str | None:
        right = isinstance(value, Integral) and not isinstance(value, bool) and (least is None or value >= least) and (most is None or value <= most)  # type: ignore[operator]
        return None if right else need

    return rule


def real(least: float | None = None, most: float | None = None, *, above: float | None = None, below: float | None = None) -> Rule:
    """A finite number within bounds, of which ``above`` and ``below`` themselves are excluded."""
    need = "a finite number" + _within(least, most) + ("" if above is None else f" greater than {above}") + ("" if below is None else f" and less than {below}")

    def rule(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            return need
        number = float(value)
        right = (least is None or number >= least) and (most is None or number <= most)
        right = right and (above is None or number > above) and (below is None or number < below)
        return None if right else need

    return rule


def one_of(*choices: str) -> Rule:
    """One of some names."""
    return lambda value: None if isinstance(value, str) and value in choices else f"one of {', '.join(map(repr, choices))}"


def flag() -> Rule:
    """True or False."""
    return lambda value: None if isinstance(value, bool) else "True or False"


def instance(kind: type) -> Rule:
    """An object of a class."""
    return lambda value: None if isinstance(value, kind) else f"of the type {kind.__name__}"


def optional(rule: Rule) -> Rule:
    """None, or what another rule wants."""

    def found(value: Any) -> str | None:
        wrong = None if value is None else rule(value)
        return None if wrong is None else f"{wrong}, or None"

    return found


def check(name: str, value: Any, rule: Rule) -> None:
    """Raise ValueError, which names the field and what it must be, for a value that is wrong."""
    wrong = rule(value)
    if wrong is not None:
        raise ValueError(f"{name} must be {wrong}, got {value!r}")


def check_fields(config: Any, **rules: Rule) -> None:
    """Apply a rule to each field of a dataclass. Raise ValueError for the first wrong value, and TypeError if a field has no rule."""
    names = [field.name for field in fields(config)]
    if missing := set(names) ^ set(rules):
        raise TypeError(f"{type(config).__name__}: fields and rules must match, and {sorted(missing)} don't")
    for name in names:
        check(name, getattr(config, name), rules[name])


def _within(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    return f" of at least {least}" if least is not None else f" of at most {most}" if most is not None else ""
