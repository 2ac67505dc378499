"""A learner's door under a flood: connections beyond a rate wait outside, in the kernel, and cost those who are served nothing.

To accept a connection, read what it says and drop it takes a learner 75 µs over TCP and 150 in grpcio: one stranger who does nothing but
connect takes a core. So connections are counted as they come, as in a token bucket, and while too many have come the listening sockets
drop what begins another one. TCP tries again by itself, after 1 s, 3 s and 7 s: a worker comes in a little later, who connects in a loop
is stopped. Connections that stand notice nothing.

The valve is the smallest TTL (`IP_MINTTL`, RFC 5082) that a listening socket takes. Every process may set it, where a filter of packets
needs a privilege since Linux 6.18. Packets are sent with a TTL of 64 or 128; who sends with 255 from the same network is not kept out.
A connection inherits it: one that is just being made when the door closes hears nothing, and is made again when the handshake's time is over.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["CONNECTION_RATE", "Crowd", "Turnstile", "check_connection_rate"]

log = logging.getLogger("echo")

CONNECTION_RATE = 250.0  # new connections a second that a learner takes for long, unless told otherwise
BURST_SECONDS = 4.0  # so many seconds' connections may come at once: all workers of a cluster, when it starts
IDLE_PAUSE, BUSY_PAUSE = 0.1, 0.05  # seconds between two looks
OTHERS_SECONDS = 60.0  # for so long what was seen to go elsewhere is taken to go on ...
OTHERS_MARGIN = 1.1  # ... and may grow by so much
COMPLAINT_PAUSE = 5.0  # seconds between two lines of the log

IP_MINTTL, IPV6_MINHOPCOUNT = 21, 73  # not in the socket module
SHUT, OPEN = 255, 0
SO_MEMINFO, MEMINFO, DROPS = 55, struct.Struct("9I"), 8
COUNTERS = Path("/proc/self/net/snmp")


def check_connection_rate(rate: float) -> None:
    """Raises ValueError for an option `max_connection_rate` that is none."""
    if not 0 <= rate < math.inf:
        raise ValueError(f"max_connection_rate is a number of connections a second, or 0 for any number, not {rate!r}")


class Crowd:
    """Decides when the door is to be shut. It has neither clock nor socket; `look` is told everything.

    The kernel counts the connections of all listening sockets of a machine (or container) together. Whose they are shows when the door is shut:
    a flood that is ours goes out, and its attempts are dropped here; one that is not goes on, and is left out of account for a while.

    Args:
        rate: connections a second that are let in for long; `BURST_SECONDS` of them may come at once.

    Attributes:
        shut: whether to let nobody in until the next look.
    """

    def __init__(self, rate: float) -> None:
        self.shut = False
        self._rate = rate
        self._burst = rate * BURST_SECONDS
        self._level = 0.0  # connections let in, less what is allowed
        self._others = 0.0  # connections a second that go elsewhere, at most
        self._others_left = 0.0  # seconds until that is forgotten
        self._before = 0.0  # connections a second when the door was shut, until it is known whose they were

    def look(self, opened: int, dropped: int, seconds: float) -> float:
        """`opened` connections on this machine in the `seconds` since the last look, `dropped` attempts at our sockets. Returns when to look again."""
        self._level = max(0.0, self._level - self._rate * seconds)
        self._others_left -= seconds
        if self._others_left <= 0:
            self._others = 0.0
        if self.shut:
            elsewhere = opened / seconds
            self._others, self._others_left = max(self._others, elsewhere), OTHERS_SECONDS
            if self._before:
                self._level *= max(0.0, 1.0 - elsewhere / self._before) if dropped else 0.0
                self._before = 0.0
            self.shut = self._level > self._burst / 2
        else:
            self._level += max(0.0, opened - OTHERS_MARGIN * self._others * seconds)
            if self._level > self._burst:
                self.shut = True
                self._level = min(self._level, 2 * self._burst)  # so that the door opens again soon, however many there were
                self._before = opened / seconds
        return BUSY_PAUSE if self._before or self._level > self._burst / 10 else IDLE_PAUSE


class Turnstile:
    """Watches the door of a learner, in a thread, and shuts it for moments while too many come.

    Args:
        sockets: that listen. They stay the caller's, who calls `close` before he closes them.
        rate: new connections a second that are let in for long; 0 lets in any number.
        where: the learner's address, for the log.

    Where the kernel cannot tell or do what this takes, anybody is let in.
    """

    def __init__(self, sockets: Iterable[socket.socket], rate: float, where: str) -> None:
        self._sockets = list(sockets)
        self._where = where
        self._rate = rate
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._complained_at = -COMPLAINT_PAUSE
        if not rate or not self._sockets:
            return
        try:
            self._set(OPEN)
            self._drops()
            opened = connections_opened()
        except (OSError, ValueError) as error:
            log.debug("%s lets in any number of connections a second: %s", where, error)
            return
        thread = threading.Thread(target=self._watch, args=(opened,), name="echo-turnstile", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            log.warning("%s lets in any number of connections a second: %s", where, error)
            return
        self._thread = thread

    @property
    def held_off(self) -> int:
        """Attempts to connect that the kernel dropped at these sockets, tries of TCP's own included."""
        if self._thread is not None and not self._over.is_set():
            with suppress(OSError):
                self._dropped = self._drops()
        return self._dropped

    def close(self) -> None:
        """Watch no longer. In a forked child it leaves everything to the parent."""
        if self._thread is None or not self._thread.is_alive():
            return
        _ = self.held_off
        self._over.set()
        self._thread.join()

    def _watch(self, opened: int) -> None:
        crowd, dropped, pause, then = Crowd(self._rate), self._drops(), IDLE_PAUSE, time.monotonic()
        try:
            while not self._over.wait(pause):
                opened_before, dropped_before, before, was_shut = opened, dropped, then, crowd.shut
                opened, dropped, then = connections_opened(), self._drops(), time.monotonic()
                pause = crowd.look(opened - opened_before, dropped - dropped_before, then - before)
                if crowd.shut != was_shut:
                    self._set(SHUT if crowd.shut else OPEN)
                elif crowd.shut:  # and it was our door that they came to
                    self._complain(then)
        except OSError as error:  # of a socket that was closed under us, too
            if error.errno != errno.EBADF:
                log.warning("%s lets in any number of connections a second from now on: %s", self._where, error)
        finally:
            with suppress(OSError):
                self._set(OPEN)

    def _set(self, least: int) -> None:
        for sock in self._sockets:
            sock.setsockopt(socket.IPPROTO_IP, IP_MINTTL, least)  # of IPv6 sockets too, for their clients of IPv4
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MINHOPCOUNT, least)

    def _drops(self) -> int:
        """32 bits of each: nobody waits for them to overflow, and a look that saw it would do no harm."""
        return sum(MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size))[DROPS] for sock in self._sockets)

    def _complain(self, now: float) -> None:
        if now - self._complained_at >= COMPLAINT_PAUSE:
            self._complained_at = now
            log.warning(
                "%s: more than %g new connections a second; further ones wait outside for some seconds, workers that are connected do not notice"
                " (max_connection_rate; %d attempts held off so far)",
                self._where,
                self._rate,
                self.held_off,
            )


def connections_opened() -> int:
    """TCP connections that listening sockets of this machine (or container) have let in since it started. OSError or ValueError if nobody knows."""
    names, values = (line.split() for line in COUNTERS.read_text().splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("PassiveOpens")])
