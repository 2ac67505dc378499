"""The parts of a server: its example, options and sampler, given as arguments or by a configuration."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filling import filled

from echo_core import ConfigError, LeaseError, PluginError, Server, SpecError
from echo_testing.samples import example, sample, stacked

pytestmark = pytest.mark.needs("echo-samplers")  # a server needs one


def test_an_unfinished_server_says_so_and_does_not_crash() -> None:
    server = Server.__new__(Server)
    calls: list[Callable[[], Any]] = [
        lambda: server.submit(sample(0, 0)),
        lambda: server.submit_batch(stacked(0, 0, 2)),
        server.sample,
        lambda: server.batch_size,
        lambda: server.num_buffers,
        server.reset_histograms,
        server._counters,
        server._histograms,
        server._storage,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="__init__"):
            call()
    assert server.closed
    with pytest.raises(SpecError):
        server.__init__({"x": object()}, 2)  # type: ignore[misc]
    made = filled(0)
    with pytest.raises(RuntimeError, match="open already"):
        made.__init__(example(), 2)  # type: ignore[misc]


def test_a_server_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="server.address"):
        pickle.dumps(filled(0))


def test_options_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="example"):
        Server(batch_size=2)
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError, match="lease_timeout"):
            Server(example(), 2, lease_timeout=seconds)


def test_what_only_a_replay_table_has_is_not_passed_over() -> None:
    server = filled(2)
    for options in ({"n": 1}, {"beta": 0.5}, {"table": "default"}):
        with pytest.raises(ValueError, match="streams"):
            server.sample(1, **options)
    assert len(server.sample(1).batch["number"]) == 2


def test_examples_that_cannot_be() -> None:
    for bad, leaf in (({"x": 1.0}, "x"), ({"deep": [np.array(["a", None])]}, "deep"), (object(), "")):
        with pytest.raises(SpecError, match=leaf or None):
            Server(bad, 2)


def test_the_original_options_are_accepted_with_a_word() -> None:
    with pytest.warns(UserWarning, match="num_drainers"):
        Server(example(), 2, num_drainers=4, producer_queue_size=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Server(example(), 2)


@pytest.mark.parametrize(
    ("sampler", "error", "said"),
    [
        ("fifoo", PluginError, "fifoo"),
        ({"capacity": 3}, ConfigError, "type"),
        ({"type": "fifo", "size": 3}, ConfigError, "size"),
        ({"type": "fifo", "capacity": -3}, ConfigError, "capacity"),
    ],
)
def test_samplers_that_cannot_be(sampler: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Server(example(), 2, sampler=sampler)


def test_a_sampler_is_a_name_a_mapping_or_an_object() -> None:
    from echo_core.plugins.discovery import sampler_class

    fifo = sampler_class("fifo")
    for sampler in ("fifo", {"type": "fifo"}, fifo()):
        assert isinstance(Server(example(), 2, sampler=sampler).sampler, fifo)


def test_a_server_from_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"server": {"batch_size": 3, "sampler": "fifo"}}
    file = tmp_path / "echo.toml"
    file.write_text("[server]\nnum_buffers = 5\n")
    monkeypatch.setenv("ECHO_SERVER__LEASE_TIMEOUT", "0.05")
    server = Server.from_config([table, file], example())
    assert (server.batch_size, server.num_buffers) == (3, 5)
    server.submit_batch(stacked(0, 0, 15), timeout=0)
    held = list(itertools.islice(server.dataset_iter(), 5))
    with pytest.raises(LeaseError):
        server.sample()
    assert "all 5 batch buffers are leased" in server._storage().who_blocks_learner(), "the log of a wait names the lease, not the workers"
    del held
    assert Server.from_config([table, file], example(), batch_size=7).batch_size == 7
    with pytest.raises(ConfigError, match="batch_sise.*batch_size"):
        Server.from_config({"server": {"batch_sise": 3}}, example())
    with pytest.raises(ConfigError, match="example"):
        Server.from_config(table)


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no argument 'num_bufers'; did you mean 'num_buffers'"):
        Server(example(), 2, num_bufers=4)
