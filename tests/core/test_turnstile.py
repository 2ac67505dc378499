"""Who comes too often waits outside; who is in notices nothing."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core import turnstile
from echo_core.listening import listening_sockets
from echo_core.testing.processes import until
from echo_core.turnstile import BURST_SECONDS, BUSY_PAUSE, IDLE_PAUSE, Crowd, Turnstile, connections_opened

Listen = Callable[..., socket.socket]

FLOOD = 10_000  # connections a second


# ----------------------------------------------------------------------- what is decided, without clock and sockets


def looks(crowd: Crowd, seconds: float, ours: float, others: float = 0.0) -> tuple[float, float]:
    """`ours` and `others` connections a second for so long: how many of ours were let in, and for how long the door was shut."""
    let_in = kept_out = foreign = shut = now = 0.0
    pause = IDLE_PAUSE
    while now < seconds:
        opened, dropped = -int(let_in + foreign), -int(kept_out)
        if crowd.shut:
            kept_out += ours * pause
            shut += pause
        else:
            let_in += ours * pause
        foreign += others * pause
        now += pause
        pause = crowd.look(opened + int(let_in + foreign), dropped + int(kept_out), pause)
    return let_in, shut


def test_workers_that_start_together_are_let_in() -> None:
    crowd = Crowd(250)
    assert crowd.look(1000, 0, IDLE_PAUSE) == BUSY_PAUSE
    assert not crowd.shut
    assert looks(crowd, 60, 250) == (pytest.approx(60 * 250, rel=0.01), 0)


def test_a_flood_is_let_in_by_the_rate() -> None:
    let_in, shut = looks(Crowd(250), 120, FLOOD)
    assert let_in < FLOOD * IDLE_PAUSE + 250 * (120 + BURST_SECONDS) * 1.3
    assert shut > 100


def test_a_loop_that_is_stopped_is_no_longer_kept_out() -> None:
    crowd = Crowd(250)
    crowd.look(1001, 0, IDLE_PAUSE)
    assert crowd.shut
    crowd.look(0, 1, BUSY_PAUSE)  # its next attempt waits
    assert crowd.shut, "one attempt was ours, and with it the flood ended"
    _, shut = looks(crowd, 60, 0)
    assert shut < 2 * BURST_SECONDS


def test_a_flood_of_others_costs_a_moment() -> None:
    crowd = Crowd(250)
    let_in, shut = looks(crowd, 50, 5, FLOOD)
    assert shut <= BUSY_PAUSE and let_in > 48 * 5
    _, shut = looks(crowd, 600, 5, FLOOD)
    assert shut <= 11 * BUSY_PAUSE, "a look a minute"


def test_a_flood_of_others_at_whose_end_somebody_came() -> None:
    """Nothing was dropped here while the door was shut: the flood that ended in that moment went elsewhere."""
    crowd = Crowd(250)
    crowd.look(FLOOD, 0, IDLE_PAUSE)
    assert crowd.shut
    crowd.look(0, 0, BUSY_PAUSE)
    assert not crowd.shut


def test_a_flood_beside_one_of_others_is_found() -> None:
    let_in, _ = looks(Crowd(250), 60, FLOOD, FLOOD)
    assert let_in < 60 * FLOOD / 6


@given(st.floats(1, 1000), st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 3)), max_size=200))
def test_the_door_opens_again(rate: float, history: list[tuple[int, int, int]]) -> None:
    """Whatever came, and from wherever: a few seconds after nothing comes any more it is open, and below the rate it stays so."""
    crowd = Crowd(rate)
    pause = IDLE_PAUSE
    for ours, others, dropped in history:
        pause = crowd.look(others if crowd.shut else ours + others, dropped, pause)
    _, shut = looks(crowd, 3 * BURST_SECONDS, 0)
    assert shut <= 1.5 * BURST_SECONDS + 2 * IDLE_PAUSE
    _, shut = looks(crowd, 60, 0.9 * rate)
    assert shut == 0


# ------------------------------------------------------------------------------------------------- real connections


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listening sockets, where everybody is taken in and kept."""
    with ExitStack() as stack:

        def listen(host: str = "127.0.0.1") -> socket.socket:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, 0), family=family, backlog=4096, dualstack_ipv6=host == "::")
            accepted: list[socket.socket] = []

            def accept() -> None:
                with suppress(OSError):
                    while True:
                        sock = listening.accept()[0]
                        sock.settimeout(0.5)  # one that was made while the door closed hears nothing
                        with suppress(TimeoutError):
                            if sock.recv(1) == b"s":  # "stay"
                                accepted.append(sock)
                                continue
                        sock.close()

            def end() -> None:
                with suppress(OSError):
                    listening.shutdown(socket.SHUT_RDWR)
                listening.close()
                thread.join()
                for sock in accepted:
                    sock.close()

            thread = threading.Thread(target=accept)
            thread.start()
            stack.callback(end)
            return listening

        yield listen


def come(listening: socket.socket, host: str, patience: float) -> bool:
    """Connect and hang up."""
    try:
        socket.create_connection((host, listening.getsockname()[1]), timeout=patience).close()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(("host", "from_host"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("::", "::1")])
def test_a_flood_waits_outside(
    listen: Listen, host: str, from_host: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnstile, "BURST_SECONDS", 0.5)  # so that it is shut for less than a second
    try:
        listening = listen(host)
    except OSError as error:
        pytest.skip(f"no {host} here: {error}")
    place = from_host, listening.getsockname()[1]
    with closing(Turnstile([listening], 200, "tcp://here")) as door, socket.create_connection(place) as worker:
        worker.send(b"s")
        came_in = 0
        for number in itertools.count():
            came_in += come(listening, from_host, 0.02)
            if door.held_off >= 5:
                break
            assert number < 100_000, "the door is never shut"
        assert came_in >= 100
        start = time.monotonic()
        assert come(listening, from_host, 30), "TCP tries again until it is let in"
        assert time.monotonic() - start > 0.1, "the kernel's first try was dropped"
        worker.send(b"who is in notices nothing")
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 <= len(lines) <= 3 and "tcp://here" in lines[0] and "max_connection_rate" in lines[0]
    assert come(listening, from_host, 5), "a door that is no longer watched is open"


def test_a_flood_of_others_keeps_nobody_out(listen: Listen) -> None:
    ours, other = listen(), listen()
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            come(other, "127.0.0.1", 5)

    with closing(Turnstile([ours], 250, "tcp://here")):
        thread = threading.Thread(target=flood)
        thread.start()
        try:
            over_at, tries, slow = time.monotonic() + 3, 0, 0
            while time.monotonic() < over_at:
                tries += 1
                slow += not come(ours, "127.0.0.1", 0.5)
                time.sleep(0.02)
        finally:
            over.set()
            thread.join()
        assert slow <= max(3, tries / 10), f"{slow} of {tries}"


def test_any_number(listen: Listen, monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    """Where it is not wanted, or the kernel does not count: nobody watches."""
    listening = listen()
    with closing(Turnstile([listening], 0, "tcp://here")) as door:
        assert door.held_off == 0 and "echo-turnstile" not in [thread.name for thread in threading.enumerate()]
    monkeypatch.setattr(turnstile, "COUNTERS", turnstile.Path(tmp_path) / "nowhere")
    with closing(Turnstile([listening], 5, "tcp://here")):
        assert "echo-turnstile" not in [thread.name for thread in threading.enumerate()]
        assert all(come(listening, "127.0.0.1", 5) for _ in range(100))


def test_a_socket_closed_under_it(listen: Listen, caplog: pytest.LogCaptureFixture) -> None:
    listening = listen()
    with closing(listening.dup()) as sock:
        door = Turnstile([sock], 5, "tcp://here")
    until(lambda: "echo-turnstile" not in [thread.name for thread in threading.enumerate()], "the thread ends")
    door.close()
    assert door.held_off == 0 and not caplog.records


def test_a_forked_child_leaves_it_to_the_parent(listen: Listen) -> None:
    listening = listen()
    with closing(Turnstile([listening], 5, "tcp://here")) as door:
        if not (child := os.fork()):
            with suppress(BaseException):
                door.close()
                os._exit(door.held_off)
            os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(100_000):
            come(listening, "127.0.0.1", 0.02)
            if door.held_off:
                break
        assert door.held_off, "the parent's goes on"


def test_connections_are_counted(listen: Listen) -> None:
    listening = listen()
    before = connections_opened()
    for _ in range(10):
        assert come(listening, "127.0.0.1", 5)
    assert connections_opened() >= before + 10


def test_sockets_of_a_library_are_found(listen: Listen) -> None:
    listening, other = listen(), listen()
    (found,) = listening_sockets("localhost", listening.getsockname()[1])
    with found:
        assert os.fstat(found.fileno()).st_ino == os.fstat(listening.fileno()).st_ino
    assert listening_sockets("127.0.0.2", other.getsockname()[1]) == []
    before = len(os.listdir("/proc/self/fd"))
    assert listening_sockets("127.0.0.1", 1) == []
    assert len(os.listdir("/proc/self/fd")) == before
