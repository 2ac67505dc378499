"""A worker hears that its task is in vain, and no other task is hit."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from echo_core import ConnectionClosedError
from echo_es import cancelled
from echo_es.workers.watch import Watch
from echo_testing.processes import until

WAIT = 30.0


class Server:
    """Answers `es/watch` with the numbers that the test puts."""

    def __init__(self) -> None:
        self.cancelled: queue.Queue[int | None] = queue.Queue()
        self.known = 0  # the number of which the watch knows

    def request(self, op: str, body: dict[str, Any], timeout: float) -> tuple[dict[str, Any], bytes]:
        assert op == "es/watch"
        self.known = body["cancelled"]
        number = self.cancelled.get(timeout=WAIT)
        if number is None:
            raise ConnectionClosedError("the test is over")
        return {"cancelled": number}, b""


class Watched:
    def __init__(self) -> None:
        self.server, self.called, self.present = Server(), threading.Event(), list[bool]()
        self.watch = Watch(self.server, self.cancel)  # type: ignore[arg-type]
        self.flag = threading.Event()

    def cancel(self) -> None:
        self.present.append(self.flag.is_set())
        self.called.set()


@pytest.fixture
def watched() -> Any:
    made = Watched()
    yield made
    made.watch.end()
    made.server.cancelled.put(None)


def test_a_cancelled_task_has_its_event_set_before_it_is_cancelled(watched: Watched) -> None:
    with watched.watch.working(7) as watched.flag:
        assert not cancelled()
        watched.server.cancelled.put(7)
        assert watched.called.wait(WAIT)
        assert cancelled()
    assert watched.present == [True]


def test_another_task_is_not_hit(watched: Watched) -> None:
    with watched.watch.working(7) as watched.flag:
        watched.server.cancelled.put(6)
        watched.server.cancelled.put(8)
        until(lambda: watched.server.known == 8, "the watch knows of both", WAIT)
        assert not cancelled()
    with watched.watch.working(8) as flag:  # it was cancelled before it began
        assert flag.wait(WAIT)
    assert watched.present == []


def test_the_end_of_the_watch_cancels_the_present_task_and_all_that_begin_later(watched: Watched) -> None:
    with watched.watch.working(7) as watched.flag:
        watched.watch.end()
        assert cancelled()
    assert watched.present == [True], "a worker takes a cancellation without the event for that of its own caller"
    with watched.watch.working(8):
        assert cancelled()
