"""Limits the rate of new connections. Connections beyond the limit wait in the kernel, and cost the connected workers nothing.

Accepting a connection, reading from it and dropping it costs a learner 75 µs over TCP and 150 µs in grpcio, so one client that only
connects in a loop keeps a core busy. New connections are therefore counted in a token bucket. While there are too many, the listening sockets
drop the packets that begin another one. TCP sends such a packet again by itself after a second: a worker connects a little later, and a
client that connects in a loop is stopped. Established connections are not affected.

The limit acts through the smallest TTL (`IP_MINTTL`, RFC 5082) that a listening socket accepts. Every process may set it, but a packet
filter needs a privilege on Linux 6.18. Packets are sent with a TTL of 64 or 128; a client that sends with 255 from the learner's own network
is not kept out. An accepted connection inherits the setting, so its packets would be dropped too if its handshake is under way when the
sockets are shut. `let_in` takes the setting back. If a library accepts the connections, nobody calls `let_in`: such a handshake fails when its
time is over, and the worker connects again.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["CONNECTION_RATE", "ConnectionRateLimit", "Crowd", "check_connection_rate"]

log = logging.getLogger("echo")

CONNECTION_RATE = 250.0  # new connections a second that a learner accepts in the long run; the default of the option
BURST_SECONDS = 4.0  # connections of so many seconds may come at once, for instance from all workers of a cluster that starts
LONGEST_SECONDS, OPENING_SECONDS = 1.0, 0.25  # the sockets open when so many seconds of a burst are left; they are shut for at most the sum of the two
SETTLE_SECONDS, JUDGE_SECONDS = 0.3, 0.1  # time for the handshakes under way after the sockets are shut; then time to count the connections of other processes
QUIET_PAUSE, IDLE_PAUSE, BUSY_PAUSE = 0.25, 0.05, 0.02  # seconds between two looks; the first only where nobody tells who comes
COMPLAINT_PAUSE = 5.0  # seconds between two lines of the log

IP_MINTTL, IPV6_MINHOPCOUNT = 21, 73  # not in the socket module
SHUT, OPEN = 255, 0
SO_MEMINFO, MEMINFO, DROPS = 55, struct.Struct("9I"), 8
TCP_INFO, QUEUED = struct.Struct("8B5I"), 12  # the beginning of it; of a listening socket this is who waits to be accepted
COUNTERS = "/proc/self/net/snmp"


def check_connection_rate(rate: float) -> None:
    """Raises ValueError if `max_connection_rate` is invalid."""
    if not 0 <= rate < math.inf:
        raise ValueError(f"max_connection_rate must be connections per second, or 0 for any number, not {rate!r}")


class Crowd:
    """A token bucket that decides when the sockets are shut. It has neither a clock nor a socket: the caller passes everything to `look`.

    Args:
        rate: connections a second that are let in, in the long run; those of `BURST_SECONDS` may come at once.
        everybody: whether `look` gets the connections of all servers of the machine (or container). Those that still come while the sockets are
            shut belong to other servers, and are subtracted.

    Attributes:
        shut: whether the sockets must let nobody in until the next look.
    """

    def __init__(self, rate: float, everybody: bool = False) -> None:
        self.shut = False
        self._rate = rate
        self._burst = rate * BURST_SECONDS
        self._everybody = everybody
        self._level = 0.0  # connections that were let in, minus those that the rate allows
        self._speed = 0.0  # connections a second when the sockets were shut
        self._shut_for = 0.0  # seconds
        self._judged = (0, 0.0)  # connections to other servers, and the seconds in which they came

    def look(self, came: int, seconds: float) -> float | None:
        """Counts `came` connections in the `seconds` since the last look.

        Returns:
            In how many seconds to look again, or None to wait for the next connection.
        """
        opening = self._burst - OPENING_SECONDS * self._rate
        if self.shut and self._everybody:
            self._level = max(0.0, self._level - self._rate * seconds)
            self._judge(came, seconds)
        else:
            self._level = max(0.0, self._level + came - self._rate * seconds)
        if self.shut:
            self._shut_for += seconds
            if self._shut_for >= LONGEST_SECONDS + OPENING_SECONDS:  # clients that get in although the sockets are shut must not keep the others out
                self._level = min(self._level, opening)
            judging = self._everybody and self._speed > 0
            self.shut = judging or self._level > opening
        elif self._level > self._burst:
            self.shut = True
            self._speed, self._shut_for, self._judged = came / seconds, 0.0, (0, 0.0)
        # The sockets open again soon, however many connections there were.
        self._level = min(self._level, self._burst + LONGEST_SECONDS * self._rate)
        if self.shut or self._level > self._burst / 4:
            return BUSY_PAUSE
        return IDLE_PAUSE if self._level else None

    def _judge(self, came: int, seconds: float) -> None:
        """Subtracts the connections of other servers, once each time the sockets are shut."""
        if self._speed and self._shut_for >= SETTLE_SECONDS:
            count, span = self._judged[0] + came, self._judged[1] + seconds
            self._judged = count, span
            if span >= JUDGE_SECONDS:
                self._level *= max(0.0, 1.0 - count / span / self._speed)
                self._speed = 0.0


class ConnectionRateLimit:
    """Watches the listening sockets of a learner in a thread, and shuts them for moments while too many connections come.

    If the kernel does not support this, every connection is let in.

    Args:
        rate: new connections a second that are let in, in the long run; 0 lets in any number.
        told: whether `let_in` is called for every connection. If not, a library accepts them, and the kernel's count is used, which is that of
            the whole machine (or container).

    Attributes:
        held_off: the number of dropped packets that would have begun a connection, including those that TCP sent again.
    """

    def __init__(self, rate: float, told: bool = True) -> None:
        self.held_off = 0
        self._sockets: list[socket.socket] = []
        self._where = ""
        self._rate = rate
        self._told = told
        self._let_in = 0
        self._counters = -1
        self._over = threading.Event()
        self._somebody = threading.Event()  # set when a connection came, and by close()
        self._thread: threading.Thread | None = None
        self._complained_at = -COMPLAINT_PAUSE

    def watch(self, sockets: Iterable[socket.socket], where: str) -> None:
        """Watches the sockets until `close` is called.

        Args:
            sockets: the listening sockets. The caller keeps them, and calls `close` before closing them.
            where: the learner's address, for the log.
        """
        if not self._rate:
            return
        self._sockets, self._where = list(sockets), where
        try:
            if not self._sockets:
                raise OSError("its listening sockets were not found")
            self._set(OPEN)
            dropped = self._drops()
            if not self._told:
                self._counters = os.open(COUNTERS, os.O_RDONLY | os.O_CLOEXEC)  # opened now, because no descriptor may be left later
            thread = threading.Thread(target=self._watch, args=(self._count(), dropped), name="echo-connection-rate", daemon=True)
            thread.start()
            self._thread = thread
        except (OSError, ValueError, struct.error, RuntimeError) as error:  # RuntimeError: no more threads
            log.warning("%s lets in any number of connections a second (max_connection_rate): %s", where, error)
            self._forget()

    def let_in(self, sock: socket.socket | None = None) -> None:
        """Counts a connection that was accepted.

        Args:
            sock: its socket, if the caller has it. Its packets then pass while the listening sockets are shut.
        """
        self._let_in += 1  # by one thread at a time
        if not self._somebody.is_set():
            self._somebody.set()
        if sock is not None and self._thread is not None:
            with suppress(OSError):  # it has gone again
                _set(sock, OPEN)

    def close(self) -> None:
        """Stops watching. In a forked child it changes nothing, because the sockets are the parent's."""
        if self._thread is not None and self._thread.is_alive():
            self._over.set()
            self._somebody.set()
            if self._thread is not threading.current_thread():  # the garbage collector may close a learner in this very thread
                self._thread.join()
        self._forget()

    def _forget(self) -> None:
        if self._counters >= 0:
            os.close(self._counters)
            self._counters = -1

    def _watch(self, count: int, dropped: int) -> None:
        """Keep the limit until stopped. The sockets are always open at the end, and while a line is logged, because a reader of the log may block it."""
        crowd, at = Crowd(self._rate, not self._told), time.monotonic()
        pause: float | None = None
        failed: Exception | None = None
        try:
            while self._wait(pause):
                counted, count, dropped_before, dropped = count, self._count(), dropped, self._drops()
                looked, at = at, time.monotonic()
                was_shut = crowd.shut
                pause = crowd.look(count - counted, max(at - looked, 1e-6))
                if crowd.shut != was_shut:
                    self._set(SHUT if crowd.shut else OPEN)
                if was_shut:
                    self.held_off += max(0, dropped - dropped_before)  # of 32 bits
                    if not crowd.shut:
                        self._complain(at)
        except Exception as error:
            failed = error
        finally:
            with suppress(OSError):
                self._set(OPEN)
        if failed is not None and not (isinstance(failed, OSError) and failed.errno == errno.EBADF):  # EBADF: the sockets were closed meanwhile
            log.warning("%s lets in any number of connections a second from now on: %s", self._where, failed)

    def _wait(self, seconds: float | None) -> bool:
        """Waits for so many seconds, or until a connection comes. Returns False after `close`."""
        if seconds is not None:
            return not self._over.wait(seconds)
        self._somebody.wait(None if self._told else QUIET_PAUSE)
        self._somebody.clear()
        return not self._over.is_set()

    def _count(self) -> int:
        if not self._told:
            return connections_opened(self._counters)
        infos = [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size) for sock in self._sockets]
        return self._let_in + sum(int(TCP_INFO.unpack(info)[QUEUED]) for info in infos)

    def _drops(self) -> int:
        return sum(int(MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size))[DROPS]) for sock in self._sockets)

    def _set(self, least: int) -> None:
        """Sets the limit of every socket, and raises only after the last one."""
        failed: OSError | None = None
        for sock in self._sockets:
            try:
                _set(sock, least)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def _complain(self, now: float) -> None:
        if now - self._complained_at >= COMPLAINT_PAUSE:
            self._complained_at = now
            log.warning(
                "%s: more than %g new connections a second came; the others wait for a second or so, and connected workers are not affected"
                " (max_connection_rate; held_off_total %d)",
                self._where,
                self._rate,
                self.held_off,
            )


def _set(sock: socket.socket, least: int) -> None:
    sock.setsockopt(socket.IPPROTO_IP, IP_MINTTL, least)  # of IPv6 sockets too, for their clients of IPv4
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MINHOPCOUNT, least)


def connections_opened(counters: int) -> int:
    """TCP connections that listening sockets of this machine (or container) have let in since it started, from the open file `COUNTERS`."""
    names, values = (line.split() for line in os.pread(counters, 16384, 0).decode().splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("PassiveOpens")])
