"""`echoctl ipc`: what it lists is what there is."""

from __future__ import annotations

import json
import os
from typing import Any

import actors
import numpy as np
import pytest

from echo_ipc import Cell
from echo_ipc.commands.listing import segments

click = pytest.importorskip("click", reason="click is not installed")

from click.testing import CliRunner  # noqa: E402

from echo_ipc.commands.ipc import command  # noqa: E402


def call(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def own(found: Any) -> list[Any]:
    """Other tests may run meanwhile."""
    return [segment for segment in found if os.getpid() in (segment.pids if hasattr(segment, "pids") else segment["pids"])]


def test_what_there_is() -> None:
    assert own(segments()) == []
    with actors.new_cell() as cell, actors.new_ring() as ring, actors.new_rows() as rows:
        cell.write(actors.value(3))
        rows.add(actors.batch(0, 5))
        found = {segment.kind: segment for segment in own(segments())}
        assert set(found) == {"cell", "ring", "rows"}
        assert found["cell"].figures == cell.stats() and found["rows"].figures["committed"] == 5 and found["ring"].figures == ring.stats()
        assert found["cell"].fields == ("w float64[1000]", "policy/n int32[3, 5]") and found["cell"].pids == (os.getpid(),)
        assert found["cell"].nbytes > 3 * 8000
        with Cell(None, name=found["cell"].name) as attached:
            assert attached.version == 1, "the name that is listed is one to attach by"
        listed = own(json.loads(call("ls", "--json")))
        assert {segment["kind"]: segment["figures"] for segment in listed}["rows"]["readable"] == 5
        text = call("ls")
        assert found["ring"].name in text and "info/producer int64[]" in text


def test_what_happens() -> None:
    with actors.new_rows() as rows:
        rows.add(actors.batch(0, 5))
        (shown,) = own(json.loads(call("top", "--json", "--count", "1", "--interval", "0.05")))
        assert shown["figures"]["committed"] == 5 and shown["per_second"] == 0
        lines = call("top", "--count", "2", "--interval", "0.05").splitlines()
        assert sum("committed 5" in line for line in lines) == 2


def test_budget() -> None:
    with Cell({"w": np.zeros(1000)}):
        text = json.loads(call("budget", "--json"))
        assert text["available"] > 0 and text["used_by_echo_ipc"] > 24_000 and text["fits"] and "needed" not in text
    sizes = ["--num-envs", "8", "--obs-dim", "4", "--action-dim", "2"]
    text = json.loads(call("budget", *sizes, "--replay", "100", "--steps", "10", "--json"))
    assert text["needed"] == 800 * 13 * 4 + 6 * 8 * (10 * 10 + 4) * 4
    assert "needed" in call("budget", *sizes, "--replay", "100")
    result = CliRunner().invoke(command, ["budget", "--num-envs", "1000000", "--obs-dim", "1000", "--action-dim", "2", "--replay", "1000000"])
    assert result.exit_code == 1 and "does not fit" in result.output
    result = CliRunner().invoke(command, ["budget", "--replay", "10"])
    assert result.exit_code == 2 and "--num-envs" in result.output
