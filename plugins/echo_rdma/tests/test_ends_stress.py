"""rdma_stress.cpp tests both ends of samples with connections that break all the time, under sanitizers; rdma_numbers.cpp, a worker's messages. No UCX."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress

NATIVE = Path(__file__).resolve().parent / "native"


@stress.needs_compiler
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", [stress.TSAN, stress.ASAN], ids=["tsan", "asan"])
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(NATIVE / "rdma_stress.cpp", tmp_path, *flags, arguments=[stress.seconds(0.3)]))


@stress.needs_compiler
@pytest.mark.timeout(300)
def test_what_is_said_again_is_refused_and_what_overtakes_is_not(tmp_path: Path) -> None:
    stress.clean(stress.play(NATIVE / "rdma_numbers.cpp", tmp_path, *stress.ASAN, arguments=[stress.seconds(0.5)]))
