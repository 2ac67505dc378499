"""A peer that connects too often has to wait, and connected peers notice nothing."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_net.network import connection_rate
from echo_net.network.connection_rate import (
    BURST_SECONDS,
    BUSY_PAUSE,
    COMPLAINT_PAUSE,
    IDLE_PAUSE,
    LONGEST_SECONDS,
    OPENING_SECONDS,
    QUIET_PAUSE,
    ConnectionRateLimit,
    Crowd,
    connections_opened,
)
from echo_net.network.listening import listening_sockets
from echo_testing.processes import until

Listen = Callable[..., socket.socket]
Watch = Callable[..., tuple[ConnectionRateLimit, socket.socket]]

FLOOD = 10_000  # connections a second


# ----------------------------------------------------------------------- what is decided, without clock and sockets


def looks(crowd: Crowd, seconds: float, ours: float, others: float = 0.0, everybody: bool = False, under_way: float = 0.0) -> tuple[float, float]:
    """`ours` and `others` connections a second for so long, of which each takes `under_way` seconds to be made.

    How many of ours were let in, and for how long the door was shut."""
    let_in = foreign = shut = now = told = 0.0
    pause = IDLE_PAUSE
    making: deque[tuple[float, float]] = deque()  # when they are through, and how many
    while now < seconds:
        if crowd.shut:
            shut += pause
        else:
            making.append((now + pause + under_way, ours * pause))
        foreign += others * pause
        now += pause
        while making and making[0][0] <= now + 1e-9:
            let_in += making.popleft()[1]
        came = int(let_in + foreign * everybody) - int(told)
        told += came
        pause = crowd.look(came, pause) or QUIET_PAUSE
    return let_in, shut


@pytest.mark.parametrize("everybody", [False, True])
def test_workers_that_start_together_are_let_in(everybody: bool) -> None:
    crowd = Crowd(250, everybody)
    assert crowd.look(1000, IDLE_PAUSE) == BUSY_PAUSE
    assert not crowd.shut
    assert looks(crowd, 60, 250) == (pytest.approx(60 * 250, rel=0.01), 0)


@pytest.mark.parametrize("under_way", [0, 0.01, 0.06])
@pytest.mark.parametrize("everybody", [False, True])
def test_a_flood_is_let_in_by_the_rate(everybody: bool, under_way: float) -> None:
    """Wherever it comes from: those under way when the door is shut are through after it."""
    let_in, shut = looks(Crowd(250, everybody), 120, FLOOD, everybody=everybody, under_way=under_way)
    assert let_in < 1000 + 120 * (250 * 1.1 + FLOOD * (BUSY_PAUSE + under_way))  # what comes between two looks, and is under way, once a second
    assert shut > 60


@pytest.mark.parametrize("everybody", [False, True])
def test_pulses_are_no_way_round_it(everybody: bool) -> None:
    """A peer gains nothing by stopping for as long as it is shut out."""
    crowd, let_in, now, pause = Crowd(250, everybody), 0, 0.0, IDLE_PAUSE
    while now < 120:
        came = 0 if crowd.shut else round(FLOOD * pause)
        let_in += came
        now += pause
        pause = crowd.look(came, pause) or QUIET_PAUSE
    assert let_in < 1000 + 120 * 250 * 1.2 + FLOOD * IDLE_PAUSE


def test_a_flood_of_others_is_not_ours() -> None:
    """Where the count is everybody's: newcomers come in between, however many go elsewhere."""
    let_in, shut = looks(Crowd(250, True), 60, 5, FLOOD, everybody=True)
    assert let_in > 60 * 5 / 10 and shut < 54
    let_in, shut = looks(Crowd(250, True), 60, 5, 1000, everybody=True)
    assert let_in > 60 * 5 * 0.7 and shut < 60 * 0.3


def test_a_flood_beside_one_of_others_is_found() -> None:
    let_in, _ = looks(Crowd(250, True), 60, FLOOD, FLOOD, everybody=True)
    assert let_in < 60 * FLOOD / 5


@pytest.mark.parametrize("everybody", [False, True])
def test_a_stall_is_no_flood(everybody: bool) -> None:
    """The process stood still for a while, and counts what came meanwhile at once."""
    crowd = Crowd(250, everybody)
    crowd.look(2000, 10.0)
    assert not crowd.shut


@given(
    st.floats(1, 1000),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 20_000)), max_size=200),
)
def test_the_door_opens_again(rate: float, everybody: bool, history: list[tuple[int, int]]) -> None:
    """Whatever came, and from wherever: it is never shut for longer than it may be, and stays open below the rate."""
    longest = LONGEST_SECONDS + OPENING_SECONDS + 2 * BUSY_PAUSE + 1e-6
    crowd, pause, shut_for = Crowd(rate, everybody), IDLE_PAUSE, 0.0
    for ours, others in history:
        shut_for = shut_for + pause if crowd.shut else 0.0
        assert shut_for <= longest
        pause = crowd.look(ours + others * everybody, pause) or QUIET_PAUSE  # some of ours come in while it is shut, as with a TTL of 255
    _, shut = looks(crowd, BURST_SECONDS + 2, 0)
    assert shut <= longest
    _, shut = looks(crowd, 60, 0.9 * rate)
    assert shut == 0


# ------------------------------------------------------------------------------------------------- real connections


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listening sockets, where everybody is taken in (`let_in` is told) and kept who asks for it."""
    with ExitStack() as stack:

        def listen(host: str = "127.0.0.1", let_in: Callable[[socket.socket], None] = lambda sock: None) -> socket.socket:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, 0), family=family, backlog=1024, dualstack_ipv6=host == "::")
            accepted: list[socket.socket] = []
            over = threading.Event()

            def accept() -> None:
                while not over.is_set():
                    try:
                        sock = listening.accept()[0]
                    except OSError:  # the end, or a test that leaves no descriptors for a moment
                        over.wait(0.01)
                        continue
                    let_in(sock)
                    sock.settimeout(0.5)  # one that was made while the door closed may hear nothing
                    said = b""
                    with suppress(OSError):
                        said = sock.recv(1)
                    if said == b"s":  # "stay"
                        accepted.append(sock)
                    else:
                        sock.close()

            def end() -> None:
                over.set()
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


@pytest.fixture
def watch(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """`watch(rate, host, told)` watches a listening socket, at which few may come at once."""
    monkeypatch.setattr(connection_rate, "BURST_SECONDS", 0.5)
    with ExitStack() as stack:

        def watch(rate: float = 200, host: str = "127.0.0.1", told: bool = True) -> tuple[ConnectionRateLimit, socket.socket]:
            door = stack.enter_context(closing(ConnectionRateLimit(rate, told)))
            try:
                listening = listen(host, door.let_in if told else lambda sock: None)
            except OSError as error:
                pytest.skip(f"no {host} here: {error}")
            door.watch([listening], "tcp://here")
            return door, listening

        yield watch


def come(listening: socket.socket, host: str = "127.0.0.1", patience: float = 5) -> bool:
    """Connect and hang up."""
    try:
        socket.create_connection((host, listening.getsockname()[1]), timeout=patience).close()
    except TimeoutError:
        return False
    return True


def flood(door: ConnectionRateLimit, listening: socket.socket) -> None:
    """Come until one has to wait."""
    for _ in range(100_000):
        come(listening, patience=0.02)
        if door.held_off:
            return
    raise AssertionError("the door is never shut")


def watched() -> bool:
    return "echo-connection-rate" in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("host", "from_host"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("::", "::1")])
def test_a_flood_waits_outside(watch: Watch, host: str, from_host: str, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    door, listening = watch(host=host, told=told)
    with socket.create_connection((from_host, listening.getsockname()[1])) as worker:
        worker.send(b"s")
        came_in = 0
        for number in itertools.count():
            came_in += come(listening, from_host, 0.02)
            if door.held_off >= 5:
                break
            assert number < 100_000, "the door is never shut"
        assert came_in >= 100
        assert come(listening, from_host, 70), "TCP tries again, later each time, until it is let in"
        worker.send(b"who is in notices nothing")
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 <= len(lines) <= 1 + (time.monotonic() - began) / COMPLAINT_PAUSE and "tcp://here" in lines[0] and "max_connection_rate" in lines[0]
    door.close()
    assert come(listening, from_host), "a door that is no longer watched is open"


@pytest.mark.parametrize("told", [True, False])
def test_a_flood_of_others_keeps_nobody_out(listen: Listen, told: bool) -> None:
    with closing(ConnectionRateLimit(250, told)) as door:
        ours, other = listen(let_in=door.let_in if told else lambda sock: None), listen()
        door.watch([ours], "tcp://here")
        over = threading.Event()

        def storm() -> None:
            while not over.is_set():
                come(other)

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            over_at, tries, slow = time.monotonic() + 3, 0, 0
            while time.monotonic() < over_at:
                tries += 1
                slow += not come(ours, patience=0.02)
                time.sleep(0.02)
        finally:
            over.set()
            thread.join()
    assert tries - slow >= tries / 10, "in between they are let in"
    assert told <= (door.held_off == 0), "where it is known whose they are, nobody waits"


def test_a_connection_made_while_the_door_is_shut_hears(listen: Listen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, closing(ConnectionRateLimit(250)) as door:
        door.watch([listening], "tcp://here")
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)  # a handshake is over when the client says something
        with socket.create_connection(listening.getsockname()) as client:
            connection_rate._set(listening, connection_rate.SHUT)
            client.send(b"a")
            with listening.accept()[0] as sock:
                assert sock.recv(1) == b"a"
                client.send(b"b")
                sock.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    sock.recv(1)  # it is deaf
                door.let_in(sock)
                sock.settimeout(20)
                assert sock.recv(1) == b"b", "TCP says it again"


def test_any_number(watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where it is not wanted, or the kernel does not count: nobody watches."""
    watch(0)
    assert not watched() and not caplog.records
    monkeypatch.setattr(connection_rate, "COUNTERS", str(tmp_path / "nowhere"))
    _, listening = watch(5, told=False)
    assert not watched() and "any number" in caplog.text
    assert all(come(listening) for _ in range(100))


def test_a_socket_closed_under_it(listen: Listen, caplog: pytest.LogCaptureFixture) -> None:
    with closing(ConnectionRateLimit(5, told=False)) as door:
        with closing(listen().dup()) as sock:
            door.watch([sock], "tcp://here")
        until(lambda: not watched(), "the thread ends")
    assert door.held_off == 0 and not caplog.records


@pytest.mark.parametrize("told", [True, False])
def test_without_descriptors_it_goes_on(watch: Watch, told: bool) -> None:
    """A peer that takes them all must not get rid of it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    door, listening = watch(told=told)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        time.sleep(3 * QUIET_PAUSE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    flood(door, listening)


def test_a_forked_child_leaves_it_to_the_parent(watch: Watch) -> None:
    door, listening = watch()
    if not (child := os.fork()):
        with suppress(BaseException):
            door.close()
            os._exit(door.held_off)
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    flood(door, listening)  # the parent's goes on


def test_whatever_goes_wrong_the_door_is_open(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that raises, while a flood is told of."""
    door, listening = watch()

    told = []

    def warning(self: logging.Logger, *args: object) -> None:
        told.append(args)
        if len(told) == 1:
            raise MemoryError("no log")

    monkeypatch.setattr(logging.Logger, "warning", warning)
    flood(door, listening)
    until(lambda: not watched(), "the thread ends")
    assert come(listening, patience=0.5), "it is open"
    assert len(told) == 2, "and the log says that it stays so"


def test_connections_are_counted(listen: Listen) -> None:
    listening = listen()
    counters = os.open(connection_rate.COUNTERS, os.O_RDONLY)
    try:
        before = connections_opened(counters)
        for _ in range(10):
            assert come(listening)
        assert connections_opened(counters) >= before + 10
    finally:
        os.close(counters)


def test_sockets_of_a_library_are_found(listen: Listen) -> None:
    listening, other = listen(), listen()
    os.set_blocking(listening.fileno(), False)
    socket.setdefaulttimeout(30)
    try:
        (found,) = listening_sockets("localhost", listening.getsockname()[1])
    finally:
        socket.setdefaulttimeout(None)
    with found:
        assert not os.get_blocking(listening.fileno()) and os.get_blocking(other.fileno()), "nothing about them is changed"
        assert os.fstat(found.fileno()).st_ino == os.fstat(listening.fileno()).st_ino
    assert listening_sockets("127.0.0.2", other.getsockname()[1]) == []
    before = len(os.listdir("/proc/self/fd"))
    assert listening_sockets("127.0.0.1", 1) == []
    assert len(os.listdir("/proc/self/fd")) == before
