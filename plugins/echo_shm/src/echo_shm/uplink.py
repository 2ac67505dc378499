"""A worker's session over shared memory, and the thread that puts samples that had to wait (the pump).

Everything except samples and weights travels over the unix socket, by `echo_net.channel`: handshake, requests, goodbye, reconnecting.
`Direct` puts samples into the learner's store or into the worker's lane. Samples that it cannot put at once go to the session's window, from
which the pump puts them in order, as soon as there is space. If the learner shares no memory, the window is sent over the socket.

For the window, samples in a lane already belong to the learner. If the connection is lost, the next one takes back the samples that were
not copied.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.wire.protocol import REPLY, Buffer, Header, Kind, frame, pack_request, parse_reply, parse_request
from echo_net.channel.link import Link, Work
from echo_net.channel.uplink import Uplink

from ._direct import Direct, Mapping
from .acknowledgement import DirectSamples, Progress
from .board import Notice, Reader
from .sockets import UnixChannel

if TYPE_CHECKING:
    from echo_core.base.address import Address
    from echo_core.spec.spec import Spec
    from echo_net.channel import Channel
    from echo_net.channel.window import Window

    from .options import ShmConnectOptions

__all__ = ["WEIGHTS", "ShmUplink"]

ATTACH = 1 << 60  # number of the request that asks for the store; requests of callers count from 1
SAID = ATTACH + 1  # number of requests whose answer does not matter
WEIGHTS = ATTACH + 2  # number of the learner's notices of weights
CATCH_UP_SECONDS = 0.05  # how long a call waits for earlier samples while they are going out
GOING_SECONDS = 0.01  # samples count as going out if one went within the last so many seconds
PUMP_SECONDS = 0.05  # slice of a wait of the pump, which must end early when the link ends


class ShmUplink(Uplink):
    """A session whose samples are put into the learner's memory while it shares that.

    Attributes:
        settled: whether the learner has said how samples get to it; guarded by `gate.lock`.
        attached: whether its store or a lane is mapped here.
        mode: what is mapped: "direct" for the store, "private" for a lane, "socket" for nothing.
    """

    direct: Direct
    window: Window

    def __init__(self, dial: Callable[[Address, Any, float], Channel], address: Address, spec: Spec, options: ShmConnectOptions) -> None:
        self.settled = False
        self.attached = False
        self.mode = "socket"
        self.direct = Direct(spec, options.patience)
        self._put = DirectSamples(self.direct)
        self._board: Reader | None = None
        self._pumping = False
        self._pumped_at = 0.0  # time.monotonic() at which the pump put the last sample
        self._pump_thread: threading.Thread | None = None
        self._drop_thread: threading.Thread | None = None
        # An observer puts no samples, and does not get the memory for them.
        self._asks = {"records": 1 + options.reservations, "mode": options.mode} if options.role == "worker" else None
        super().__init__(dial, address, spec, options)

    # ------------------------------------------------------------------------ getting the store

    def on_connected(self, link: Link) -> None:
        if self._asks is None:
            self.settled = True
        else:
            link.post(frame(Kind.CONTROL, pack_request("shm/attach", {**self._asks, "rows": self.window.most}), seq=ATTACH))

    def on_control(self, link: Link, header: Header, payload: Buffer) -> None:
        if header.flags & REPLY and header.seq == ATTACH:
            self._attach(link, payload)
        elif header.seq == WEIGHTS:
            self._weights_put(link, payload)
        else:
            super().on_control(link, header, payload)
            if header.seq == SAID:  # a record that was given up may be idle now, and `reserve` may wait for it
                with self.gate.lock:
                    self.gate.changed.notify_all()

    def _attach(self, link: Link, payload: Buffer) -> None:
        channel = link.channel
        assert isinstance(channel, UnixChannel)
        body, _ = parse_reply(payload)
        mode: Any = body.get("mode")
        records: Any = body.get("records")
        rows: Any = body.get("rows")
        handed = len(channel.fds) >= (2 if mode == "direct" else 1) and {
            "direct": isinstance(records, list) and bool(records) and all(type(r) is int and 0 < r < 1024 for r in records),
            "private": type(rows) is int and rows > 0,
        }.get(str(mode), False)
        if mode != "socket" and not handed:
            raise ProtocolError("the learner offered its memory and did not hand it over; install the same echo-shm at both ends")
        with self.gate.lock:
            # The former copier has ended, because otherwise the learner would not have answered. So this connection takes the samples that are not copied.
            count, data, labelled = self.direct.take_back()
            if count:
                self.window.put_first(count, data, labelled)
        if mode != "socket":
            fd = channel.fds.popleft()
            try:
                self.direct.attach(fd, channel.fds.popleft(), records) if mode == "direct" else self.direct.attach_lane(fd, rows, self.takes_labels)
            except (EchoError, MemoryError, OSError) as error:
                remedy = '; mode="private" needs less' if mode == "direct" else ""
                self.end(EchoError(f"the memory of {self.address} cannot be used: {error}{remedy}"))
                return
            finally:
                os.close(fd)
        with self.gate.lock:
            self.settled = True
            self.mode, self.attached = str(mode), mode != "socket"
            self.open_if_idle()
            if self.window.taken != self.window.acknowledged:
                self.start_pump()
            self.gate.changed.notify_all()
            self.gate.work.notify_all()

    def _weights_put(self, link: Link, payload: Buffer) -> None:
        """A version lies on the learner's board."""
        _, body, _ = parse_request(payload)
        try:
            notice = Notice(int(body["version"]), int(body["generation"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a malformed notice of weights: {error!r}") from error
        if body.get("new"):
            channel = link.channel
            assert isinstance(channel, UnixChannel)
            if not channel.fds:
                raise ProtocolError("a notice of weights came without their memory")
            fd = channel.fds.popleft()
            try:
                self._board = Reader(fd)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENOMEM):
                    self.end(EchoError(f"the learner's weights cannot be mapped: {error}; raise `ulimit -n` (descriptors) or `ulimit -v` (addresses)"))
                    return
                raise ProtocolError(f"the learner's weights cannot be mapped: {error}") from error
            finally:
                os.close(fd)
        whole = self._board.copy(notice.version) if self._board is not None else None
        if whole is not None:
            self.hold_weights(link, *whole)
            return
        with self.gate.lock:
            link.post(frame(Kind.CONTROL, pack_request("shm/again", {}), seq=SAID))

    def on_lost(self, link: Link) -> None:
        self.direct.detach()
        self._board = None
        with self.gate.lock:
            self.attached = self.settled = False
            # The samples that the pump has put must count as acknowledged before this end tells the learner their number.
            self.gate.changed.wait_for(lambda: not self._pumping)

    def forget(self) -> None:
        self.direct.abandon()
        super().forget()

    # ------------------------------------------------------------------------------ reservations

    def give_up(self, record: int, mapping: Mapping) -> None:
        """Ask the learner to take back the slot of `record`, unless `mapping` is gone: in another mapping the number belongs to another reservation."""
        with self.gate.lock:
            if self.link is not None and self.direct.mapping is mapping:
                self.link.post(frame(Kind.CONTROL, pack_request("shm/give_up", {"record": record}), seq=SAID))

    def watch_dropped(self) -> None:
        """From now on, tell the learner about reservations that were dropped and found by the garbage collector."""
        with self.gate.lock:
            if self._drop_thread is None:
                thread = threading.Thread(target=self._give_up_dropped, name="echo-dropped", daemon=True)
                thread.start()
                self._drop_thread = thread

    def _give_up_dropped(self) -> None:
        while (dropped := self.direct.dropped.get()) is not None:
            self.give_up(*dropped)
            del dropped  # it would keep the learner's memory mapped

    # ------------------------------------------------- samples in a lane; called with `gate.lock` held

    def under_way(self) -> int:
        return super().under_way() + self._put.under_way()

    def taken(self) -> int:
        return super().taken() + self._put.taken()

    def wait_progress(self, ready: Callable[[], bool], seconds: float, waiting: Callable[[], str]) -> None:
        self.wait_on(Progress(self.direct, self.gate), ready, seconds, waiting)

    def has_room(self, count: int) -> bool:
        """Whether the window has room for `count` more samples. Samples in the lane count too."""
        return self.window.has_room(count, self._put.under_way())

    # ----------------------------------------------------------------- samples that have to wait

    def add(self, count: int, data: bytes, labels: bytes | None) -> None:
        """Put samples into the window. From now on all samples go through it, so that the caller's next sample cannot overtake these."""
        self.direct.open(False)
        self.start_pump()
        super().add(count, data, labels)

    def open_if_idle(self) -> None:
        """Let callers put samples themselves if none is waiting. Called with `gate.lock` held."""
        self.direct.open(self.attached and self.window.acknowledged == self.window.taken and not self.closing)

    def catch_up(self) -> bool:
        """Whether a call may put its samples itself again, after all earlier samples.

        A sample that goes through the window costs many times more. After the store was full for a moment, a caller that sends without a break would
        refill the window again and again and never get out of it. So it waits for the window to become empty, but only while samples go out.
        """
        with self.gate.lock:
            end = time.monotonic() + CATCH_UP_SECONDS
            while self.attached and not (self.direct.ready or self.closing or self.over.is_set()):
                left = min(end, self._pumped_at + GOING_SECONDS) - time.monotonic()
                if left <= 0:
                    break
                self.gate.changed.wait(left)
            return bool(self.direct.ready)

    def work(self) -> Work | None:
        if not self.settled or self.attached:
            return None
        return super().work()

    def start_pump(self) -> None:
        """Start the pump unless it runs. Called with `gate.lock` held."""
        if self._pump_thread is None and self.attached:
            thread = threading.Thread(target=self._pump, name="echo-pump", daemon=True)
            thread.start()  # fails at a limit of threads; then the next call tries again
            self._pump_thread = thread

    def _pump(self) -> None:
        try:
            while self._pump_some():
                pass
        except Exception as error:
            self.end(EchoError(f"connection to {self.address} failed: {error!r}"))

    def _pump_some(self) -> bool:
        """Put the entries of about one frame. False if the connection has ended."""
        window, lock = self.window, self.gate.lock
        with lock:
            # Samples that were sent over the socket before come first.
            while not self.over.is_set() and not (self.attached and window.has_unsent and not window.under_way):
                self.gate.work.wait()
            if self.over.is_set():
                return False
            entries = window.next_entries()
            self._pumping = True
        try:
            for entry in entries:
                row = max(0, window.acknowledged + 1 - entry.first)
                while row < entry.count:
                    put = self.direct.pump(entry.payload(), entry.count, row, entry.labelled, PUMP_SECONDS)
                    if put is None:
                        return True  # the store is lost; the samples are put when there is one again
                    if put:
                        row += put
                        with lock:
                            self._pumped_at = time.monotonic()
                            window.acknowledge(entry.first + row - 1)
                            self.gate.changed.notify_all()
                    if self.over.is_set():
                        return True
        finally:
            with lock:
                self._pumping = False
                self.open_if_idle()
                self.gate.changed.notify_all()
        return True

    def close(self, seconds: float) -> None:
        with self.gate.lock:
            self.direct.open(False)
        try:
            super().close(seconds)
        finally:
            self.direct.drop_lane()

    def leftovers(self) -> Sequence[tuple[int, Buffer, bool]]:
        self.gate.changed.wait_for(lambda: not self._pumping)  # what the pump has put into the lane is no longer in the window
        lane = self.direct.leftovers()
        return [*([lane] if lane[0] else ()), *super().leftovers()]

    def end(self, error: EchoError) -> None:
        super().end(error)
        self.direct.dropped.put(None)
        with self.gate.lock:
            self.gate.work.notify_all()
