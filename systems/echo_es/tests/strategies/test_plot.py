"""The picture of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from echo_core import ConfigError
from echo_es.plot import plot_learning


def test_it_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    rng = np.random.default_rng(1)
    rewards = [rng.normal(epoch, 5, 40) for epoch in range(50)]
    rewards[7][3], rewards[8][:] = np.nan, np.inf
    path = tmp_path / "new" / "run.png"
    plot_learning(rewards, path, centre={0: 1.0, 20: 22.0, 49: 51.0}, events={20: "worker 2 killed"}, title="A run")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
    plot_learning(rewards[:1], tmp_path / "one.svg")


def test_no_epochs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no epoch"):
        plot_learning([], tmp_path / "run.png")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        plot_learning([[1.0, 2.0]], tmp_path / "run.png")
