"""Results fetched ahead: who closes the iterator waits for nothing."""

from __future__ import annotations

import threading

from echo_core.prefetch import Prefetch


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "echo-prefetch"]


def test_leaving_does_not_wait_for_a_fetch_that_cannot_be_stopped() -> None:
    release, started = threading.Event(), threading.Event()

    def fetch() -> int:
        started.set()
        release.wait(60)
        return 0

    with Prefetch(fetch, 1, threading.Event()):
        started.wait(60)
        (fetching,) = threads()
    assert fetching.is_alive()
    release.set()
    fetching.join(20)
    assert not threads()
