"""The copies of `echo_copy.h`, which go past the caches if they are large. See copies.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_testing import stress


@stress.needs_compiler
@pytest.mark.parametrize("flags", [stress.PLAIN, stress.ASAN], ids=["plain", "asan"])
def test_copies_move_every_byte_and_no_other(flags: list[str], tmp_path: Path) -> None:
    stress.clean(stress.play(Path(__file__).with_name("copies.cpp"), tmp_path, *flags, arguments=[]))
