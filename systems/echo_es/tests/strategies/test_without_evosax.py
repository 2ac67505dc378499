"""evosax is optional."""

from __future__ import annotations

import sys

import pytest

from echo_core import ConfigError
from echo_es.strategies import Evosax


def test_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evosax", None)
    with pytest.raises(ConfigError, match=r"tools/install.py \"echo-es\[evosax\]\""):
        Evosax("SNES", 3, 10)
