"""The native structures under load: many threads, and processes that are killed at random instants. ThreadSanitizer sees the threads only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from echo_testing import stress

NATIVE = Path(__file__).resolve().parent / "native"
pytestmark = [stress.needs_compiler, pytest.mark.timeout(1800)]


@stress.FLAGS
@pytest.mark.parametrize("what", ["cell", "ring", "rows"])
def test_no_forbidden_outcome(what: str, flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(NATIVE / f"ipc_{what}_stress.cpp", tmp_path, *flags, arguments=[stress.seconds(0.2)]))


def test_reads_that_must_take_the_lock_end_too(tmp_path: Path) -> None:
    """Without a single try, every read waits for writers that never pause."""
    stress.clean(stress.play(NATIVE / "ipc_cell_stress.cpp", tmp_path, *stress.PLAIN, "-DECHO_IPC_TRIES=0", arguments=[stress.seconds(0.2)]))


# What a reader of a cell sees first depends on which bytes it copies when the next value overtakes it: those of the value, or the number of its version.
@pytest.mark.parametrize(("what", "seen"), [("cell", "torn|one version, two contents"), ("rows", "torn")])
def test_without_the_marks_mixed_values_are_seen(what: str, seen: str, tmp_path: Path) -> None:
    done = stress.play(NATIVE / f"ipc_{what}_stress.cpp", tmp_path, *stress.PLAIN, "-DECHO_IPC_MARKS=0", arguments=["20"])
    assert re.search(f"FORBIDDEN: ({seen})", done.stdout), done.stdout
    assert done.returncode != 0
