"""docs/coming-from.md: each line of Echo in its tables is part of a program that the tests of the pages run."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROGRAMS = re.compile(r"^```python.*?\n(.*?)^```$", re.M | re.S)
#: Words and outlines, which are no lines of code.
OUTLINES = {"Server(...).restore(folder)", "server.publish(...)", 'transport="tcp://..."', "torch.from_numpy(leaf)"}


def test_every_line_of_the_tables_is_run() -> None:
    page = (DOCS / "coming-from.md").read_text()
    programs = "\n".join(PROGRAMS.findall(page + (DOCS / "adapters.md").read_text()))
    rows = [line.strip("| ").split(" | ") for line in page.split("\n") if line.startswith("| `") or line.startswith("| a")]
    lines = [line for row in rows if len(row) == 2 for line in re.findall(r"`([^`]+)`", row[1]) if "(" in line or "=" in line]
    assert len(lines) > 30
    # A table shows the plainest call; the program may add arguments at its end.
    unknown = [line for line in lines if line not in OUTLINES and line.rstrip(")") not in programs]
    assert not unknown, "not in a program of the page:\n" + "\n".join(unknown)
