"""What core does without echo-replay: it streams, and says how to get replay tables."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import echo_core
from echo_core import PluginError, Server
from echo_core.config.config import load, server_arguments
from echo_core.config.schema import configuration_schema

EXAMPLE = {"x": np.zeros(2, np.float32)}
TABLES = {"server": {"batch_size": 2, "tables": [{"name": "a", "capacity": 5, "sampler": "uniform"}]}, "client": {"address": "tcp://learner:5555"}}


@pytest.fixture(autouse=True)
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "echo_replay"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "echo_replay", None)
    for name in echo_core._REPLAY:  # those that were used before
        monkeypatch.delitem(vars(echo_core), name, raising=False)


def test_names_of_tables_say_how_to_get_them() -> None:
    with pytest.raises(ImportError, match=r"Table needs echo-replay, which is not installed; .*echo-core\[replay\]"):
        from echo_core import Table  # noqa: F401


@pytest.mark.parametrize("arguments", [{"tables": [object()]}, {"example": EXAMPLE, "capacity": 10}], ids=["tables", "short form"])
def test_a_server_of_tables_says_how_to_get_them(arguments: dict[str, object]) -> None:
    with pytest.raises(PluginError, match=r"needs echo-replay.*echo-core\[replay\]"):
        Server(batch_size=2, **arguments)  # type: ignore[arg-type]


def test_a_stream_needs_no_plugin(site: Path) -> None:
    with Server(EXAMPLE, 2) as server:
        server.submit_batch({"x": np.arange(4, dtype=np.float32).reshape(2, 2)})
        sample = server.sample(10)
        assert sample is not None and sample.batch["x"].tolist() == [[0, 1], [2, 3]]
        with pytest.raises(ValueError, match="it has no replay tables"):
            server.checkpoint(site)
        with pytest.raises(ValueError, match="it has no replay tables"):
            server.sample_mixture({"a": 1})
    assert Server.from_config({"server": {"batch_size": 2}}, EXAMPLE).batch_size == 2
    with pytest.raises(PluginError, match="sampler 'fifo' is not installed"):  # a configuration that names it needs it
        Server.from_config({"server": {"batch_size": 2, "sampler": "fifo"}}, EXAMPLE)


def test_a_worker_reads_the_file_of_its_learner() -> None:
    config = load(TABLES, env={})
    assert str(config.client.address) == "tcp://learner:5555" and config.server.tables == ()
    with pytest.raises(PluginError, match=r"mapping 1: \[\[server.tables\]\] needs echo-replay"):
        server_arguments(TABLES)
    with pytest.raises(PluginError, match="needs echo-replay"):
        config.check()


def test_the_schema_leaves_tables_out() -> None:
    assert "tables" not in configuration_schema()["properties"]["server"]["properties"]


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a checkout, where the folder of the distribution has the name of the package."""
    (tmp_path / "echo_replay").mkdir()
    monkeypatch.delitem(sys.modules, "echo_replay")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(path for path in sys.path if "echo_replay" not in path)])
    with pytest.raises(PluginError, match="needs echo-replay"):
        echo_core.Table  # noqa: B018
