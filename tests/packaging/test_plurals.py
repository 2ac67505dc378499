"""No line that people read says "1 samples": numbers of things are written by `echo_core.base.plural.counted`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_core.base.plural import counted

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for level in ("*", "*/*") for path in ROOT.glob(f"{level}/src/*/**/*.py"))
THINGS = "batches|buffers|bytes|clauses|clients|connections|entries|episodes|handshakes|items|keys|leaves|rows|samples|steps|tables|workers"
COUNT = re.compile(rf"(?:\{{\}}|%d|%s) (?:\w+ )?(?:{THINGS})\b")
LEVELS = {"debug", "info", "warning", "error", "exception", "log"}


def text(node: ast.AST) -> str:
    """A string of the source, with {} in place of each value; "" of anything else, such as a call of `counted`."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            call = part.value
            parts.append("..." if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "counted" else "{}")
        else:
            parts.append(text(part))
    return "".join(parts)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """What a file of `echoctl` prints, and what any file logs."""
    tree = ast.parse(path.read_text())
    if "echoctl" in path.parts:
        roots: list[ast.AST] = [tree]
    else:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        roots = [call for call in calls if call.func.attr in LEVELS and "log" in ast.unparse(call.func.value)]  # type: ignore[attr-defined]
    for root in roots:
        for node in ast.walk(root):
            if isinstance(node, ast.JoinedStr) or (root is not tree and isinstance(node, ast.Constant)):
                yield node.lineno, text(node)


def test_lines_for_people_count_by_the_one_function() -> None:
    assert len(SOURCES) > 100
    found = [f"{path.relative_to(ROOT)}:{number}: {said}" for path in SOURCES for number, said in lines(path) if COUNT.search(said)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "number, noun, said",
    [(0, "worker", "0 workers"), (1, "worker", "1 worker"), (2, "worker", "2 workers"), (3000, "batch", "3,000 batches"), (1, "batch", "1 batch")],
)
def test_one_is_no_plural(number: int, noun: str, said: str) -> None:
    assert counted(number, noun, "batches" if noun == "batch" else "") == said
