"""The server in use: iterating, ending, forking, interrupting, choosing its parts, weights."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import (
    Address,
    ClosedError,
    ConfigError,
    EchoError,
    ForkError,
    LeaseError,
    PluginError,
    Server,
    SpecError,
    Transport,
)
from echo_core.sink import Sink
from echo_core.testing.processes import forked, interrupted, returns, tasks
from echo_core.testing.samples import Tally, example, sample, stacked
from echo_core.transport import Connection, Listener, Peer

pytestmark = pytest.mark.needs("echo-samplers")  # a server needs one


def filled(count: int, batch_size: int = 2, num_buffers: int = 3, **options: Any) -> Server:
    server = Server(example(), batch_size, num_buffers=num_buffers, **options)
    server.submit_batch(stacked(0, 0, count), timeout=0)
    return server


# ---- iterating and ending --------------------------------------------------------------------


def test_iterating_ends_with_the_server() -> None:
    server = filled(6)
    tally = Tally()
    for one in server.dataset_iter():
        tally.add(one.batch)
        if tally.count == 4:
            server.close()
    tally.check({0: 6})
    assert list(server.dataset_iter()) == []


def test_copies_may_be_hoarded() -> None:
    server = filled(4, num_buffers=2, lease_timeout=0.1)
    batches = server.dataset_iter(copy=True, timeout=5)
    kept = []
    for turn in range(10):
        kept.append(next(batches))
        server.submit_batch(stacked(0, 4 + 2 * turn, 2), timeout=0)
    tally = Tally()
    for one in kept:
        tally.add(one.batch)
        assert all(array.flags.owndata for array in one.batch.values())
    tally.check({0: 20})


def test_what_is_whole_is_still_handed_out_after_close() -> None:
    server = filled(5)
    server.close()
    server.close()
    assert server.closed
    assert server.sample().batch["number"].tolist() == [0, 1]
    assert server.sample(timeout=0).batch["number"].tolist() == [2, 3]
    for timeout in (None, 0, 5):
        assert server.sample(timeout) is None
    with pytest.raises(ClosedError):
        server.submit(sample(0, 0))
    with pytest.raises(ClosedError, match="closed"):
        server.start()


def test_close_wakes_everybody() -> None:
    server = filled(0)
    outcomes: list[Any] = []
    learners = [
        threading.Thread(target=lambda: outcomes.append(server.sample()), daemon=True)
        for _ in range(4)
    ]
    iterator = threading.Thread(target=lambda: outcomes.extend(server.dataset_iter()), daemon=True)
    for thread in (*learners, iterator):
        thread.start()
    time.sleep(0.1)
    server.close()
    for thread in (*learners, iterator):
        thread.join(20)
        assert not thread.is_alive()
    assert outcomes == [None] * 4


def test_a_block_closes_its_server() -> None:
    with Server(example(), 2) as server:
        assert not server.closed
        assert "in-process" in repr(server)
    assert server.closed
    assert "closed" in repr(server)


def test_a_server_without_transport_has_no_threads() -> None:
    before = tasks()
    with filled(2) as server:
        assert server.sample(timeout=5) is not None
        assert set(tasks()) <= set(before)


def test_a_dropped_server_is_gone_at_once() -> None:
    gc.disable()
    try:
        server = filled(2)
        server.start()
        server.publish(np.zeros(3))
        server.stats()
        batch, gone = server.sample(timeout=5).batch, weakref.ref(server)
        del server
        assert gone() is None
        assert batch["number"].tolist() == [0, 1]
    finally:
        gc.enable()


# ---- what it is made of ----------------------------------------------------------------------


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
        server._native,
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


@pytest.mark.needs("echo-samplers")
def test_a_sampler_is_a_name_a_mapping_or_an_object() -> None:
    from echo_core.plugins import sampler_class

    fifo = sampler_class("fifo")
    for sampler in ("fifo", {"type": "fifo"}, fifo()):
        assert isinstance(Server(example(), 2, sampler=sampler).sampler, fifo)


@pytest.mark.parametrize(
    ("transport", "error", "said"),
    [
        ("tpc://127.0.0.1:0", PluginError, "tpc"),
        ({"port": 0}, ConfigError, "type"),
        ({"type": "nowhere"}, PluginError, "nowhere"),
        (5, ConfigError, "not 5"),
        ([Transport], ConfigError, "Transport"),
    ],
)
def test_transports_that_cannot_be(transport: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Server(example(), 2, transport=transport)


class Direct(Transport):
    """The smallest transport: its listener is its worker, within this process."""

    scheme = "direct"
    opened: list[DirectListener]

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.listeners: list[DirectListener] = []

    def listen(self, sink: Sink) -> Listener:
        if self.broken:
            raise OSError("direct://: no more room")
        self.listeners.append(DirectListener(sink))
        return self.listeners[-1]

    @classmethod
    def connect(cls, address: Address, spec: Any, **options: Any) -> Connection:
        raise OSError("only within the learner")


class DirectListener(Listener):
    address = Address("direct", path="here")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.peer = Peer(id="0" * 32, name="nobody", address="here", connected_at=time.time())
        self.published: list[int] = []
        self.closed = 0
        sink.connected(self.peer)

    def publish(self, weights: Any) -> None:
        self.published.append(weights.version)

    def peers(self) -> list[Peer]:
        return [self.peer]

    def stats(self) -> dict[str, float | int]:
        return {"samples": 3}

    def close(self, timeout: float | None = None) -> None:
        self.closed += 1
        self.sink.lost(self.peer, "")


def test_a_server_opens_and_closes_its_transports() -> None:
    first, second = Direct(), Direct()
    server = Server(example(), 2, transport=[first, second])
    with pytest.raises(EchoError, match="start"):
        _ = server.address
    with server:
        assert server.start() is server
        assert (len(first.listeners), len(second.listeners)) == (1, 1)
        assert str(server.address) == "direct:here" or "direct" in str(server.address)
        assert len(server.addresses) == 2
        with pytest.raises(EchoError, match="no port"):
            _ = server.port
        assert [peer.name for peer in server.peers()] == ["nobody"] * 2
        stats = server.stats()
        assert stats["transport/direct/samples"] == 3
        assert stats["worker/nobody/state"] == "idle"
        server.publish(np.zeros(2))
        server.publish(np.zeros(2))
        assert [listener.published for listener in (*first.listeners, *second.listeners)] == [
            [1, 2]
        ] * 2
    assert [listener.closed for listener in (*first.listeners, *second.listeners)] == [1, 1]
    assert server.peers() == []
    with pytest.raises(EchoError, match="closed"):
        _ = server.address


def test_versions_reach_a_transport_in_order() -> None:
    transport = Direct()
    with Server(example(), 2, transport=transport) as server:
        threads = [
            threading.Thread(target=lambda: [server.publish(np.zeros(9)) for _ in range(100)])
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert transport.listeners[0].published == list(range(1, 301))


def test_a_transport_that_cannot_open_closes_the_others() -> None:
    good = Direct()
    server = Server(example(), 2, transport=[good, Direct(broken=True)])
    with pytest.raises(OSError, match="no more room"):
        server.start()
    assert good.listeners[0].closed == 1
    server.close()


def test_a_dropped_server_closes_its_transports() -> None:
    transport = Direct()
    server = Server(example(), 2, transport=transport).start()
    sink, peer = transport.listeners[0].sink, transport.listeners[0].peer
    del server
    assert transport.listeners[0].closed == 1
    sink.connected(peer)
    sink.lost(peer, "late")
    assert sink.weights is None
    for call in (sink.claim, lambda: sink.control(peer, "stats", {}, b""), lambda: sink.tokens):
        with pytest.raises(ClosedError):
            call()


def test_requests_are_answered_or_refused_in_words() -> None:
    server = filled(2)
    sink, peer = Sink(server), Peer("0" * 32, "w", "here")
    body, blob = sink.control(peer, "stats", {}, b"")
    assert (body["store/samples_inserted_total"], blob) == (2, b"")
    assert sink.control(peer, "ping", {}, b"abc")[1] == b"abc"
    with pytest.raises(EchoError, match="no operation 'shutdown'"):
        sink.control(peer, "shutdown", {}, b"")


@pytest.mark.needs("echo-samplers")
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
    del held
    assert Server.from_config([table, file], example(), batch_size=7).batch_size == 7
    with pytest.raises(ConfigError, match="batch_sise.*batch_size"):
        Server.from_config({"server": {"batch_sise": 3}}, example())
    with pytest.raises(ConfigError, match="example"):
        Server.from_config(table)


# ---- weights within one process --------------------------------------------------------------


def test_publishing_counts_versions_and_names_contents() -> None:
    server = filled(0)
    assert server.stats()["weights/version"] == 0
    weights = {"w": np.arange(6.0).reshape(2, 3), "b": [np.zeros(3, np.float16)]}
    first, second = server.publish(weights), server.publish(weights)
    weights["w"][0, 0] = 7
    third = server.publish(weights)
    assert [p.version for p in (first, second, third)] == [1, 2, 3]
    assert first.digest == second.digest != third.digest
    assert 0 <= first.digest < 1 << 64
    assert server.stats()["weights/version"] == 3
    assert Sink(server).weights.version == 3
    with pytest.raises(SpecError, match="bad"):
        server.publish({"bad": object()})
    assert server.publish(weights).version > 3


# ---- fork, and Ctrl-C ------------------------------------------------------------------------


def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    server = filled(4)
    batch = server.sample(timeout=5).batch

    def child() -> None:
        calls = (
            lambda: server.submit(sample(0, 0), timeout=1),
            lambda: server.submit_batch(stacked(0, 0, 2), timeout=1),
            lambda: server.sample(timeout=1),
            lambda: next(server.dataset_iter(timeout=1)),
            lambda: server.publish(np.zeros(1)),
            server.start,
        )
        for call in calls:
            with pytest.raises(ForkError, match="fork"):
                call()
        assert batch["number"].tolist() == [0, 1]
        server.close()

    forked(child)
    assert not server.closed
    server.submit_batch(stacked(0, 4, 2), timeout=0)
    assert server.sample(timeout=5).batch["number"].tolist() == [2, 3]
    assert batch["number"].tolist() == [0, 1]


def test_forking_while_threads_wait_hangs_nobody() -> None:
    server = filled(0)
    learner = threading.Thread(target=server.sample, daemon=True)
    learner.start()
    time.sleep(0.05)

    def child() -> None:
        fresh = filled(2)
        assert fresh.sample(timeout=5).batch["number"].tolist() == [0, 1]

    forked(child)
    server.close()
    learner.join(20)
    assert not learner.is_alive()


SETUP = """
import numpy as np
from echo_core import Server
from echo_core.sink import Sink
from echo_core.testing.samples import example, sample, stacked

server = Server(example(), 1, num_buffers=2)
def fill():
    server.submit_batch(stacked(0, 0, 2), timeout=0)
    return server
"""


@pytest.mark.parametrize(
    "call",
    [
        "server.sample()",
        "server.sample(timeout=1000)",
        "list(server.dataset_iter())",
        "fill().submit(sample(0, 2), timeout=None)",
        "fill().submit(sample(0, 2), timeout=1000)",
        "fill().submit_batch(stacked(0, 2, 100), timeout=None)",
        "Sink(fill()).claim()",
    ],
)
def test_ctrl_c_ends_every_wait(call: str, tmp_path: Path) -> None:
    interrupted(SETUP, call, tmp_path)


def test_a_wait_without_end_lets_other_threads_run() -> None:
    server = filled(0, batch_size=1)
    outcome = threading.Thread(target=lambda: server.sample(), daemon=True)
    outcome.start()
    assert returns(lambda: sum(range(10_000))) == sum(range(10_000))
    server.submit(sample(0, 0))
    outcome.join(20)
    assert not outcome.is_alive()
