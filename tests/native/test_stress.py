"""The claims of the store's native code, plain and under sanitizers: ring_stress.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress

RING = Path(__file__).resolve().parent / "ring_stress.cpp"

pytestmark = stress.needs_compiler


@pytest.mark.timeout(900)
@stress.FLAGS
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(RING, tmp_path, *flags, arguments=[stress.seconds(0.3)]))


@pytest.mark.timeout(300)
def test_the_sanitizer_sees_a_barrier_that_is_missing(tmp_path: Path) -> None:
    # With a commit that publishes nothing every assertion of the program still holds on x86.
    relaxed = "-DECHO_COMMIT_ORDER=std::memory_order_relaxed"
    done = stress.play(RING, tmp_path, *stress.TSAN, relaxed, arguments=["0.1"])
    assert "data race" in done.stderr
    assert done.returncode != 0
