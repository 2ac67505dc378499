"""The server looks at what a worker sends before it counts, and refuses by name what it cannot read: states, statistics, and fields of other types."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nursery import Counting, rewards_of

from echo_core import Client, EchoError, SpecError
from echo_es import ESServer, OpenAIES
from echo_es import state as states
from echo_es.observations import ObservationStats
from echo_es.server import EXAMPLE

pytestmark = pytest.mark.needs("echo-tcp")
STATE = {"w": np.arange(6.0), "name": "x", "n": 3}


@contextmanager
def joined(server: ESServer, cores: int = 4) -> Iterator[Callable[..., dict[str, Any]]]:
    """A worker that sends what the test wants."""
    client = Client(server.address, EXAMPLE, name="junk")
    try:
        client.request("es/join", {"api": 1, "cores": cores})
        yield lambda op, body, blob=b"": client.request(op, body, blob)[0]
        client.request("es/leave")
    finally:
        client.close(0)


def damaged() -> Iterator[bytes]:
    """Bytes that are no state; most of them begin as one."""
    packed, noise = states.pack(STATE), random.Random(5)
    yield from (b"", b"junk!", bytes(8), bytes(100), b"\xff" * 50, b"null", packed[8:], packed + packed)
    for _ in range(300):
        yield packed[: noise.randrange(len(packed))]
        spoilt = bytearray(packed)
        for _ in range(noise.randrange(1, 4)):
            spoilt[noise.randrange(len(spoilt))] = noise.randrange(256)
        yield bytes(spoilt)
        yield noise.randbytes(noise.randrange(200))


def test_bytes_that_are_no_state_are_named() -> None:
    """Damage within the numbers themselves cannot be seen."""
    refused = 0
    for data in damaged():
        try:
            states.check(data)
        except SpecError:
            refused += 1
            with pytest.raises(SpecError):
                states.unpack(data)
        else:
            states.unpack(data)
    assert refused > 500


def test_junk_in_place_of_the_first_state_does_not_count() -> None:
    with ESServer(4, "tcp://127.0.0.1:0", max_epochs=2) as server:
        with joined(server) as send:
            task = send("es/next", {})
            assert task["kind"] == "initialize"
            for junk in (b"junk!", b"", states.pack(STATE)[:-1]):
                with pytest.raises(EchoError, match="es/share: worker junk sent something else than a state, and it does not count"):
                    send("es/share", {"task": task["task"]}, junk)
            assert server.coordinator.phase == "initialize" and server.coordinator.counts["refused"] == 3
            assert send("es/next", {})["task"] == task["task"]  # the task stays
        asyncio.run(Counting(str(server.address), 4).start())
        assert server.state() == {"epochs": 2.0, "total": sum(rewards_of(1, 4) + rewards_of(2, 4))}


WRONG = [
    {"count": 2**63 - 1, "mean": np.zeros(3), "m2": np.zeros(3)},
    {"count": 1.5, "mean": np.zeros(3), "m2": np.zeros(3)},
    {"count": np.ones(3), "mean": np.zeros(3), "m2": np.zeros(3)},
    {"count": float("inf"), "mean": np.zeros(3), "m2": np.zeros(3)},
    {"count": "many", "mean": np.zeros(3), "m2": np.zeros(3)},
    {"count": 1, "mean": "mean", "m2": np.zeros(3)},
    {"mean": np.zeros(3), "m2": np.zeros(3)},
    {"count": 1},
    [1, 2, 3],
    3.0,
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_statistics_that_are_none_are_refused_and_the_task_stays(wrong: Any) -> None:
    with ESServer(transport="tcp://127.0.0.1:0", strategy=OpenAIES(2, 8, table_size=1), observations=(3,), max_epochs=1) as server, joined(server, 8) as send:
        task = send("es/next", {})
        for seen in (states.pack(wrong), b"junk!"):
            with pytest.raises(EchoError, match="^.*observations: "):
                send("es/next", {"done": task["task"], "rewards": 8}, bytes(64) + seen)
        assert server["default"].stats()["observations_total"] == 0 and server.coordinator.counts["evaluations"] == 0
        good = ObservationStats((3,))
        good.add(np.ones((5, 3)))
        assert send("es/next", {"done": task["task"], "rewards": 8}, bytes(64) + states.pack(good.arrays()))["kind"] == "stop"
        assert server["default"].stats()["observations_total"] == 5


def test_statistics_of_a_refused_report_do_not_count() -> None:
    """The worker sends the report again, and they would count twice."""
    stats = ObservationStats((3,))
    stats.add(np.ones((5, 3)))
    seen = states.pack(stats.arrays())
    with ESServer(transport="tcp://127.0.0.1:0", strategy=OpenAIES(2, 8, table_size=1), observations=(3,), max_epochs=1) as server, joined(server, 8) as send:
        task = send("es/next", {})
        with pytest.raises(EchoError, match="exactly one reward for each"):
            send("es/next", {"done": task["task"], "rewards": 7}, bytes(56) + seen)
        assert send("es/next", {"done": task["task"], "rewards": 8}, bytes(64) + seen)["kind"] == "stop"
        assert server["default"].stats()["observations_total"] == 5
        assert send("es/next", {"done": task["task"], "rewards": 8}, bytes(64) + seen)["kind"] == "stop"  # as if the answer had been lost
        assert server["default"].stats()["observations_total"] == 5


def test_statistics_that_together_are_too_large_are_left_out() -> None:
    stats = ObservationStats((1,))
    stats.merge({"count": 1, "mean": [1e154], "m2": [0.0]})
    with pytest.raises(ValueError, match="too large"):
        stats.merge({"count": 1, "mean": [-1e154], "m2": [0.0]})
    assert stats.count == 1 and stats.mean.tolist() == [1e154]


@pytest.mark.parametrize(
    ("op", "body", "text"),
    [
        ("es/join", {"api": 1, "cores": 2**40}, "cores must be an integer up to"),
        ("es/join", {"api": 1, "cores": 1.0}, "cores must be an integer"),
        ("es/join", {"api": 1, "cores": 1, "version": "1"}, "version an integer or null"),
        ("es/join", {"api": 1, "cores": 1, "experiment": [1]}, "no experiment"),
        ("es/status", {"experiment": [1]}, "no experiment"),
        ("es/next", {"done": "1"}, "done: it must be a whole number"),
        ("es/next", {"done": 1, "slices": 5}, "slices: they must be a list"),
        ("es/next", {"done": 1, "slices": [[0, "1"]]}, r"slices: each must be \[start, stop\]"),
        ("es/next", {"done": 1, "digest": [1]}, "digest: it must be text"),
        ("es/next", {"done": 1, "rewards": -1}, "are not -1 rewards"),
        ("es/share", {"task": None}, "task: it must be a whole number"),
        ("es/watch", {}, "cancelled: it must be a whole number"),
    ],
)
def test_bodies_of_other_types(op: str, body: dict[str, Any], text: str) -> None:
    with ESServer(4, "tcp://127.0.0.1:0") as server, joined(server) as send, pytest.raises(EchoError, match=text):
        send(op, body, states.pack(STATE) if op == "es/share" else b"")
