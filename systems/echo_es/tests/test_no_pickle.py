"""No module that a server loads imports pickle or its like: only the wire side of workers at Evochi's servers does."""

from __future__ import annotations

import ast
from pathlib import Path

import echo_es

SOURCE = Path(echo_es.__file__).parent
WORKERS = {"evochi/frames.py", "evochi/client.py"}  # they alone may open, or import what opens, a pickle of Evochi's clients
FORBIDDEN = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "frames"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            names |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    return names


def test_no_module_of_the_server_imports_pickle() -> None:
    checked = {str(path.relative_to(SOURCE)): imported(path) & FORBIDDEN for path in SOURCE.rglob("*.py")}
    assert checked.keys() >= WORKERS
    assert {name: found for name, found in checked.items() if found and name not in WORKERS} == {}
