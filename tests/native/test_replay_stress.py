"""The memory-model claims of replay tables, of items over steps and of records, plain and under sanitizers: table_stress.cpp and its
neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress

HERE = Path(__file__).resolve().parent
# The programs include headers of this checkout. Those of the installed echo_core, which `stress.build` adds, would define them twice.
CHECKOUT = ["-I", str(HERE.parents[1] / "echo_core" / "src" / "echo_core")]
TABLE, STEPS, RECORDS = HERE / "table_stress.cpp", HERE / "steps_stress.cpp", HERE / "records_stress.cpp"

pytestmark = stress.needs_compiler


@pytest.mark.timeout(900)
@stress.FLAGS
@pytest.mark.parametrize("source", [TABLE, STEPS, RECORDS], ids=["table", "steps", "records"])
def test_no_forbidden_outcome(source: Path, flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(source, tmp_path, *CHECKOUT, *flags, arguments=[stress.seconds(0.1)]))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("source", "forbidden"),
    [(TABLE, "FORBIDDEN: no batch has a torn row"), (STEPS, "FORBIDDEN: "), (RECORDS, "FORBIDDEN: ")],
    ids=["table", "steps", "records"],
)
def test_rows_would_be_torn_without_the_second_look(source: Path, forbidden: str, tmp_path: Path) -> None:
    stress.build(source, tmp_path / "stress", *CHECKOUT, "-O2", "-DECHO_VERIFY_GENERATIONS=0")
    for _ in range(5):  # writers have to be at a row just then
        done = stress.run(tmp_path / "stress", "0.5")
        if done.returncode:
            break
    assert forbidden in done.stderr, done.stdout
