"""Calls that wait to be accepted: every connection has its turn."""

from __future__ import annotations

import threading

import pytest

from echo_grpc.arrivals import Arrivals


def test_connections_take_turns_and_calls_of_one_come_in_order() -> None:
    arrivals: Arrivals[str] = Arrivals(10)
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        assert arrivals.put(name[0], name) is None
    assert [arrivals.get(0) for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_of_too_many_the_oldest_of_the_largest_crowd_gives_way() -> None:
    arrivals: Arrivals[str] = Arrivals(3)
    assert [arrivals.put("crowd", f"c{i}") for i in range(5)] == [None, None, None, "c0", "c1"]
    assert arrivals.put("worker", "w") == "c2"
    assert [arrivals.get(0) for _ in range(4)] == ["c3", "w", "c4", None]


def test_many_workers_at_once_are_no_crowd() -> None:
    arrivals: Arrivals[int] = Arrivals(3)
    assert [arrivals.put(f"worker {i}", i) for i in range(20)] == [None] * 20
    assert [arrivals.get(0) for _ in range(20)] == list(range(20))


def test_who_has_gone_is_not_accepted_and_keeps_no_place() -> None:
    arrivals: Arrivals[str] = Arrivals(2)
    arrivals.put("a", "a1")
    arrivals.put("a", "a2")
    arrivals.discard("a", "a1")
    arrivals.discard("a", "a1")
    arrivals.discard("b", "b1")
    assert arrivals.put("b", "b1") is None
    assert [arrivals.get(0), arrivals.get(0), arrivals.get(0)] == ["a2", "b1", None]


def test_who_waits_is_woken() -> None:
    arrivals: Arrivals[str] = Arrivals(2)
    for wake, answer in ((arrivals.look, None), (lambda: arrivals.put("a", "a1"), "a1")):
        timer = threading.Timer(0.05, wake)
        timer.start()
        assert arrivals.get(20) == answer
        timer.join()
    timer = threading.Timer(0.05, arrivals.close)
    timer.start()
    with pytest.raises(EOFError):
        arrivals.get(None)
    timer.join()
