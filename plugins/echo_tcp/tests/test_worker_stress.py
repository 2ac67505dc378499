"""worker_stress.cpp: the worker's engine and a connection that breaks all the time, under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_core.testing import stress

SOURCE = Path(__file__).resolve().parent / "native" / "worker_stress.cpp"


@stress.needs_compiler
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", [stress.TSAN, stress.ASAN], ids=["tsan", "asan"])
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(SOURCE, tmp_path, *flags, arguments=[stress.seconds(0.7)]))
