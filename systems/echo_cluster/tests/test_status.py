"""`echoctl cluster status` shows every shard, and those that are down."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from echo_cluster.commands import command
from echo_core import Client, Server, Table

EXAMPLE = {"x": np.zeros(2, np.float32)}


def test_all_shards_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("replay", EXAMPLE, sampler="prioritized", capacity=100)
    monkeypatch.setenv("ECHO_TOKEN", "0" * 32)
    with Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0", token="0" * 32) as server, Client(server.addresses[0], EXAMPLE) as client:
        client.send(EXAMPLE)
        client.wait()
        up, down = str(server.addresses[0]), "tcp://127.0.0.1:1"
        done = CliRunner().invoke(command, ["status", up, down, "--timeout", "1", "--json"], standalone_mode=False)
        first, second = json.loads(done.output)["shards"]
        assert done.return_value == 1, "a shard is down"
        assert first["state"] == "up" and first["tables"]["replay"]["size"] == 1 and first["tables"]["replay"]["mass"] > 0
        assert second["state"] == "down" and second["error"]
        monkeypatch.setenv("ECHO_TOKEN", "1" * 32)
        (row,) = json.loads(CliRunner().invoke(command, ["status", up, "--json"], standalone_mode=False).output)["shards"]
        assert row["state"] == "refused" and "token" in row["error"], "it lives"
        monkeypatch.setenv("ECHO_TOKEN", "0" * 32)
        text = CliRunner().invoke(command, ["status", up], standalone_mode=False)
        assert text.return_value == 0 and "1 of 1 shards up" in text.output and "replay: 1 items" in text.output
