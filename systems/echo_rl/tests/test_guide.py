"""Every Python block of docs/rl-engine.md runs, each as a program of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "rl-engine.md"
BLOCKS = re.findall(r"^```python needs=(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize(("library", "code"), BLOCKS, ids=[str(i) for i in range(len(BLOCKS))])
def test_a_block(library: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
