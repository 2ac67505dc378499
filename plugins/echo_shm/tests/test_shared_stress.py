"""The claims of remote_writer.hpp and reaper.hpp, plain and under sanitizers: shared_stress.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress

SHARED = Path(__file__).resolve().parent / "native" / "shared_stress.cpp"
# The program plays the learner with headers that no wheel contains, so all headers of echo_core come from the source tree.
CORE = ["-I", str(Path(__file__).resolve().parents[3] / "echo_core" / "src" / "echo_core")]

pytestmark = [stress.needs_compiler, pytest.mark.timeout(900)]


@stress.FLAGS
def test_writers_of_other_processes_as_threads(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(SHARED, tmp_path, *CORE, *flags, arguments=["threads", stress.seconds(0.3)]))


@pytest.mark.parametrize("sanitizer", [[], ["-fsanitize=address"]], ids=["plain", "asan"])
def test_writers_that_are_killed_and_stopped(sanitizer: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(SHARED, tmp_path, *CORE, "-O1", "-g", *sanitizer, arguments=["processes", stress.seconds(0.3)]))
