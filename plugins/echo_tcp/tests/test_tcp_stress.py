"""The native engines of both ends, and connections that break all the time, under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress

NATIVE = Path(__file__).resolve().parent / "native"


# learner_fuzz.cpp runs the learner's engine under AddressSanitizer.
PROGRAMS = [
    ("worker", 0.3, stress.TSAN),
    ("worker", 0.3, stress.ASAN),
    ("learner", 0.2, stress.TSAN),
    ("requests", 0.5, stress.TSAN),
    ("tls", 0.2, stress.TSAN),
    ("tls", 0.2, stress.ASAN),
]


@stress.needs_compiler
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("program", "seconds", "flags"), PROGRAMS, ids=["worker-tsan", "worker-asan", "learner-tsan", "requests-tsan", "tls-tsan", "tls-asan"])
def test_no_forbidden_outcome(program: str, seconds: float, flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(NATIVE / f"{program}_stress.cpp", tmp_path, *flags, arguments=[stress.seconds(seconds)]))
