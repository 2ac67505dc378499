"""The section `[cluster]`, and launchers that are found by entry point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from echo_core import ConfigError
from echo_core.base.errors import PluginNotFound
from echo_core.config.config import load
from echo_core.config.launching import launch
from echo_core.config.schema import configuration_schema
from echo_core.plugins.discovery import LAUNCHERS

FILE = '[cluster]\nvia = "far"\nshards = 2\nworkers = { min = 4, max = 64, per_node = 16 }\ncheckpoint_every = 10\n'


def test_each_key_has_a_value_and_an_origin(write: Callable[[str, str], str]) -> None:
    path = write("echo.toml", FILE)
    config = load(path, env={"ECHO_CLUSTER__WORKERS__MAX": "8", "ECHO_CLUSTER__SHARDS": "3"}, command_line=["cluster.via=near"])
    assert (config.cluster.via, config.cluster.shards, config.cluster.checkpoint_every) == ("near", 3, 10.0)
    assert (config.cluster.workers.min, config.cluster.workers.max, config.cluster.workers.per_node, config.cluster.workers.most) == (4, 8, 16, 8)
    assert config.origin("cluster.workers.min") == path
    assert config.origin("cluster.workers.max") == "environment variable ECHO_CLUSTER__WORKERS__MAX"
    assert config.origin("cluster.via") == "command line" and config.origin("cluster.listen") == "default"
    assert load(env={}).cluster.workers.most == 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"vai": "x"}, "cluster.vai: unknown key; did you mean 'via'?"),
        ({"workers": {"mni": 1}}, "cluster.workers.mni: unknown key; did you mean 'min'?"),
        ({"workers": {"min": 3, "max": 2}}, "max must be at least min, which is 3"),
        ({"workers": {"per_node": 0}}, "per_node must be at least 1"),
        ({"workers": 4}, "cluster.workers: must be a table"),
        ({"shards": -1}, "shards must be 0 or more"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a number of seconds above 0"),
    ],
)
def test_mistakes_are_named(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="mapping 1: cluster") as caught:
        load({"cluster": section}, env={})
    assert message in str(caught.value)


def test_the_schema_has_it() -> None:
    schema = configuration_schema()["properties"]["cluster"]
    assert set(schema["properties"]) == {"via", "shards", "workers", "checkpoint", "checkpoint_every", "listen"}
    assert set(schema["properties"]["workers"]["properties"]) == {"min", "max", "per_node", "cpus", "restarts"}


def test_a_launcher_is_found_by_its_entry_point(install: Callable[..., Any]) -> None:
    source = "def up(config, worker, **options):\n    return config.cluster.shards, worker, options\n"
    install("echo-far", "1", LAUNCHERS, {"far": "fake_launcher:up"}, fake_launcher=source)
    found: Any = launch({"cluster": {"via": "far", "shards": 2}}, ["true"], workers=3)
    assert found == (2, ["true"], {"shards": None, "workers": 3, "tables": None, "token": None, "name": "echo"})
    load({"cluster": {"via": "far"}}, env={}).check()
    with pytest.raises(PluginNotFound, match="no launcher named 'fra'"):
        launch({"cluster": {"via": "fra"}})
    with pytest.raises(PluginNotFound, match="no launcher named 'fra'"):
        load({"cluster": {"via": "fra"}}, env={}).check()


def test_a_launcher_that_is_not_installed_is_named_with_its_command(install: Callable[..., Any]) -> None:
    with pytest.raises(PluginNotFound, match=r"launcher 'ray' is not installed; .*echo-core\[ray\]"):
        launch({"cluster": {"via": "ray"}})
