"""lane_stress.cpp: a worker's lane and both its ends, plain and under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress

SOURCE = Path(__file__).resolve().parent / "native" / "lane_stress.cpp"
# The program plays the learner with headers that no wheel contains, so all headers of echo_core come from the source tree.
CORE = ["-I", str(Path(__file__).resolve().parents[3] / "echo_core" / "src" / "echo_core")]

pytestmark = stress.needs_compiler


@pytest.mark.timeout(900)
@stress.FLAGS
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(SOURCE, tmp_path, *CORE, *flags, arguments=[stress.seconds(0.2)]))


@pytest.mark.timeout(300)
def test_the_sanitizer_sees_a_barrier_that_is_missing(tmp_path: Path) -> None:
    # On x86, every assertion of the program holds even if samples are announced before they are written.
    relaxed = "-DECHO_WRITTEN_ORDER=std::memory_order_relaxed"
    done = stress.play(SOURCE, tmp_path, *CORE, *stress.TSAN, relaxed, arguments=["0.1"])
    assert "data race" in done.stderr
    assert done.returncode != 0
