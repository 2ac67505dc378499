"""board_stress.cpp: a learner's weights and the readers that copy them. Both touch the same bytes at the same time and notice it afterwards.
ThreadSanitizer sees the threads only, and the copies are made of atomic accesses for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress

SOURCE = Path(__file__).resolve().parent / "native" / "board_stress.cpp"

pytestmark = stress.needs_compiler


@pytest.mark.timeout(900)
@stress.FLAGS
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(SOURCE, tmp_path, *flags, arguments=[stress.seconds(0.2)]))


@pytest.mark.timeout(300)
def test_weights_that_are_written_without_a_mark_are_seen_to_be_torn(tmp_path: Path) -> None:
    done = stress.play(SOURCE, tmp_path, *stress.PLAIN, "-DECHO_BOARD_MARKS=0", arguments=["20"])
    assert "FORBIDDEN: torn" in done.stdout
    assert done.returncode != 0
