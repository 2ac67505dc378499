"""The minimal example of Evochi's README, as its client 0.1.3 has it."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

TEXT = Path(__file__).with_name("minimal_example.txt").read_text()
THEIRS, OURS = "import evochi.v1 as evochi", "import echo_es.evochi.v1 as evochi"


def example(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Any:
    """The example as a module that can be imported. Its import is changed, and `old`, which says where the server is, to `new`."""
    text = TEXT
    for before, after in ((THEIRS, OURS), (old, new)):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    module = types.ModuleType("minimal_example")
    monkeypatch.setitem(sys.modules, "minimal_example", module)  # a state for Evochi's clients is pickled by the name of its class
    exec(compile(text, "minimal_example.txt", "exec"), module.__dict__)
    return module
