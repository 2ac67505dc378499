"""docs/bugs-you-cannot-have.md names a test for each bug, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "bugs-you-cannot-have.md"
NAMED = re.compile(r"`([\w/.-]+\.py)::(\w+)`")


def proven() -> list[str]:
    """The rows of the page's tables whose bugs Echo prevents."""
    head, _, rest = PAGE.read_text().partition("\n## Not yet\n")
    assert rest, "the page has a section of what Echo does not prevent"
    rows = [line for line in head.split("\n") if line.startswith("| ") and not line.startswith("| the bug |")]
    assert rows
    return rows


def test_every_named_test_exists() -> None:
    missing = []
    for name, test in NAMED.findall(PAGE.read_text()):
        file = ROOT / name
        tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
        found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if not test.startswith("test_") or test not in found:
            missing.append(f"{name}::{test}")
    assert not missing, "docs/bugs-you-cannot-have.md names tests that do not exist:\n" + "\n".join(missing)


def test_every_bug_names_a_test() -> None:
    bare = [row for row in proven() if not NAMED.search(row.rsplit(" | ", 1)[-1])]
    assert not bare, "\n".join(bare)
    leftover = [text for row in proven() for text in re.findall(r"`[^`]*::[^`]*`", row) if not NAMED.fullmatch(text)]
    assert not leftover, f"not of the form `path/to/file.py::test_name`: {leftover}"
