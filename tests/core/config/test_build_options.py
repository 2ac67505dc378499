"""`build_options`: any dataclass out of a mapping, each field converted or refused by its type."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
import pytest
from config_errors import fails

from echo_core.base.errors import ConfigError
from echo_core.config.config import Text, build_options

pytestmark = pytest.mark.every_python


@dataclasses.dataclass(frozen=True)
class Everything:
    text: str = ""
    whole: int = 0
    number: float = 0.0
    flag: bool = False
    path: Path = Path()
    choice: Literal["a", 1, True] = "a"
    maybe: Optional[int] = None  # noqa: UP045
    either: int | str | None = None
    many: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    names: list[str] = dataclasses.field(default_factory=list)
    table: dict[str, float] = dataclasses.field(default_factory=dict)
    anything: Any = None
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    internal: int = dataclasses.field(default=0, init=False)


@pytest.mark.parametrize(
    ("key", "given", "built"),
    [
        ("text", "5", "5"),
        ("text", Text("5"), "5"),
        ("whole", 5, 5),
        ("whole", Text(" 1_000 "), 1000),
        ("whole", np.uint8(3), 3),
        ("number", 3, 3.0),
        ("number", Text("inf"), math.inf),
        ("flag", True, True),
        ("flag", Text("OFF"), False),
        ("flag", Text("1"), True),
        ("path", "~/x", Path.home() / "x"),
        ("path", Text("/x"), Path("/x")),
        ("choice", 1, 1),
        ("choice", Text("1"), 1),
        ("choice", Text("yes"), True),
        ("maybe", None, None),
        ("maybe", Text("none"), None),
        ("maybe", Text("3"), 3),
        ("either", "3", "3"),
        ("either", Text("3"), 3),
        ("either", Text("x"), "x"),
        ("many", [1, 2], (1, 2)),
        ("many", Text("1, 2"), (1, 2)),
        ("many", Text("[1, 2]"), (1, 2)),
        ("many", Text(""), ()),
        ("pair", [1, "x"], (1, "x")),
        ("names", ("a", "b"), ["a", "b"]),
        ("names", Text('["a,b"]'), ["a,b"]),
        ("table", {"a": 1}, {"a": 1.0}),
        ("table", Text("{a = 1}"), {"a": 1.0}),
        ("anything", Text("[1]"), [1]),
        ("anything", Text("a b"), "a b"),
        ("anything", Text("1\nb = 2"), "1\nb = 2"),
        ("secret", b"x", b"x"),
        ("secret", Text("x"), b"x"),
    ],
)
def test_conversions(key: str, given: object, built: object) -> None:
    value = getattr(build_options(Everything, {key: given}), key)
    assert value == built
    assert type(value) is type(built)


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("text", 5, "text: must be text, not 5"),
        ("whole", True, "whole: must be a whole number, not True"),
        ("whole", 5.0, "whole: must be a whole number, not 5.0"),
        ("whole", Text("5.5"), "whole: must be a whole number, not '5.5'"),
        ("number", "1e3", "number: must be a number, not '1e3'; write it without quotes"),
        ("flag", 1, "flag: must be true or false, not 1"),
        ("path", "", "path: must be a path, not ''"),
        ("choice", "b", "choice: must be 'a' or 1 or True, not 'b'"),
        ("choice", 1.0, "choice: must be"),
        ("maybe", "x", "maybe: must be a whole number or none, not 'x'"),
        ("many", "1", "many: must be a list (a whole number each), not '1'"),
        ("many", [1, "2"], "many[1]: must be a whole number, not '2'; write it without quotes"),
        ("pair", [1], "pair: must be a list of 2 (a whole number, text), not [1]"),
        ("table", [], "table: must be a table, not []"),
        ("table", {"a": "b"}, "table.a: must be a number, not 'b'"),
        ("secret", "x-y-z", "secret: must be bytes or none, not str (not shown)"),
        ("internal", 1, "internal: unknown key"),
        ("wohle", 1, "wohle: unknown key; did you mean 'whole'?"),
    ],
)
def test_refusals(key: str, given: object, said: str) -> None:
    origins = {f"here.{key}": "a.toml"}
    text = fails(ConfigError, lambda: build_options(Everything, {key: given}, "here", origins))
    assert f"here.{said}" in text
    assert text.startswith("a.toml: ") or "." in key or said.startswith(f"{key}.")
    assert "x-y-z" not in text


def test_no_options_at_all() -> None:
    @dataclasses.dataclass
    class Nothing:
        pass

    assert build_options(Nothing, {}) == Nothing()
    said = fails(ConfigError, lambda: build_options(Nothing, {"x": 1}, "sampler"))
    assert said == "sampler.x: unknown key; there are no options here"
