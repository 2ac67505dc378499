"""table_stress.cpp: the memory-model claims of replay tables, plain and under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_core.testing import stress

SOURCE = Path(__file__).resolve().parent / "table_stress.cpp"

pytestmark = stress.needs_compiler


@pytest.mark.timeout(900)
@stress.FLAGS
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(SOURCE, tmp_path, *flags, arguments=[stress.seconds(0.3)]))


@pytest.mark.timeout(300)
def test_rows_would_be_torn_without_the_second_look(tmp_path: Path) -> None:
    stress.build(SOURCE, tmp_path / "stress", "-O2", "-DECHO_VERIFY_GENERATIONS=0")
    for _ in range(5):  # writers have to be at a row just then
        done = stress.run(tmp_path / "stress", "0.5")
        if done.returncode:
            break
    assert "FORBIDDEN: no batch has a torn row" in done.stderr, done.stdout
