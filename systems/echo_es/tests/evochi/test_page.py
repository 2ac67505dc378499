"""The programs of docs/coming-from-evochi.md that need gRPC and zstandard. The tests of docs/ run the others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[4] / "docs" / "coming-from-evochi.md"
PROGRAMS = re.findall(r"^```python needs=zstandard\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


@pytest.mark.parametrize("number", range(2))
def test_a_program_runs(number: int) -> None:
    assert len(PROGRAMS) == 2
    done = subprocess.run([sys.executable, "-c", PROGRAMS[number]], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
