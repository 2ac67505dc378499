"""The threads that have the sockets. Only one thread may use a socket of ZeroMQ, so each socket has a thread of its own."""

from __future__ import annotations

import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from .channel import BEAT, END, HELLO, LINGER_SECONDS, PIECE_BYTES, ZmqChannel

BEAT_SECONDS = 0.5
AT_ONCE = 256  # messages received before others are sent
LOST = zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class Post(threading.Thread, ABC):
    """Sends and receives for all channels of one socket.

    Attributes:
        channels: by the identity that the socket gives to the other end; changed by this thread alone.
    """

    def __init__(self, kind: int) -> None:
        super().__init__(name="echo-zmq", daemon=True)
        self.channels: dict[bytes, ZmqChannel] = {}
        self.sock: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self.sock.setsockopt(zmq.IPV6, 1)
        self.sock.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        self.sock.setsockopt(zmq.MAXMSGSIZE, PIECE_BYTES + 1)  # a stranger cannot make us allocate more
        self.sock.setsockopt(zmq.SNDHWM, 0)  # credit bounds what waits here, in bytes; at a mark of its own ZeroMQ would drop messages
        self.poller = zmq.Poller()
        self.poller.register(self.sock, zmq.POLLIN)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.poller.register(self._bell, zmq.POLLIN)
        self._bell_lock = threading.Lock()  # it is rung by threads that may outlive it
        self._ending = False

    def ring(self) -> None:
        """There is something to send. From any thread."""
        with self._bell_lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def end(self) -> None:
        """End every channel, then the thread, and free the socket. From any other thread."""
        self._ending = True
        for channel in list(self.channels.values()):
            channel.shutdown()
        self.ring()
        self.join()

    def free(self) -> None:
        self.sock.close()
        with self._bell_lock:
            os.close(self._bell)
            self._bell = -1

    def run(self) -> None:
        beat_at = 0.0
        while self.channels or not self._ending:
            if self._bell in dict(self.poller.poll(int(BEAT_SECONDS * 1000))):
                os.eventfd_read(self._bell)
            self.look()
            with suppress(zmq.Again):
                for _ in range(AT_ONCE):
                    self.arrived(self.sock.recv_multipart(zmq.NOBLOCK, copy=False))
            beats = [BEAT] if time.monotonic() >= beat_at else []
            if beats:
                beat_at = time.monotonic() + BEAT_SECONDS
            for identity, channel in list(self.channels.items()):
                for message in channel.messages() + beats:
                    self.send(identity, message)
                if channel.is_over():
                    del self.channels[identity]
        self.free()

    def look(self) -> None:
        """Do what else this thread has to do; nothing by default."""

    @abstractmethod
    def arrived(self, frames: list[zmq.Frame]) -> None:
        """Take one message that has arrived."""

    @abstractmethod
    def send(self, identity: bytes, message: bytes) -> None:
        """Send a message to one peer. It never waits."""


class WorkersPost(Post):
    """A DEALER with one channel. What ZeroMQ notices of its connection comes from a monitor."""

    def __init__(self, endpoint: str, peer: str) -> None:
        super().__init__(zmq.DEALER)
        self.sock.setsockopt(zmq.RECONNECT_IVL, -1)  # Echo knows better what has arrived
        self._monitor = self.sock.get_monitor_socket(LOST)
        self.poller.register(self._monitor, zmq.POLLIN)
        self.channel = self.channels[b""] = ZmqChannel(peer, self.ring, self.end)
        self.sock.connect(endpoint)
        self.sock.send(HELLO)

    def look(self) -> None:
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            with suppress(zmq.Again):  # what came before that; the learner's goodbye, most likely
                while True:
                    self.arrived(self.sock.recv_multipart(zmq.NOBLOCK, copy=False))
            self.channel.lose(ConnectionRefusedError(f"{self.channel.peer} is not there, or hung up"))

    def arrived(self, frames: list[zmq.Frame]) -> None:
        self.channel.take(frames[0].buffer)

    def send(self, identity: bytes, message: bytes) -> None:
        self.sock.send(message, zmq.NOBLOCK)

    def free(self) -> None:
        self.sock.disable_monitor()
        self._monitor.close()
        super().free()


class LearnersPost(Post):
    """A ROUTER. It says that a worker has gone only when something is sent there, which a beat does soon.

    Args:
        most: channels that wait to be accepted.
    """

    def __init__(self, endpoint: str, most: int) -> None:
        super().__init__(zmq.ROUTER)
        self.arrivals: queue.SimpleQueue[ZmqChannel | None] = queue.SimpleQueue()  # None: no more
        self.deaf = False  # no more are taken
        self._most = most
        self.sock.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an error for a message to nobody
        self.endpoint = ""
        try:
            self.sock.bind(endpoint)
        except zmq.ZMQError:
            self.free()
            raise
        self.endpoint = self.sock.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def free(self) -> None:
        if self.endpoint:
            monitor = self.sock.get_monitor_socket(zmq.EVENT_CLOSED)
            self.sock.unbind(self.endpoint)
            monitor.poll(int(LINGER_SECONDS * 1000))  # ZeroMQ frees the address in a thread of its own
            self.sock.disable_monitor()
            monitor.close()
        super().free()

    def arrived(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:
            return
        identity, message = frames[0].bytes, frames[1].buffer
        channel = self.channels.get(identity)
        if channel is not None:
            channel.take(message)
        elif bytes(message[:1]) == HELLO and not self.deaf and self.arrivals.qsize() < self._most:
            channel = self.channels[identity] = ZmqChannel(peer_address(frames[1]), self.ring)
            self.arrivals.put(channel)
        elif bytes(message[:1]) != END:
            self.send(identity, END)  # its channel is over, whatever it thinks

    def send(self, identity: bytes, message: bytes) -> None:
        try:
            self.sock.send_multipart([identity, message], zmq.NOBLOCK)
        except zmq.ZMQError:
            if identity in self.channels:
                self.channels[identity].lose(ConnectionResetError("the worker hung up"))


def peer_address(message: zmq.Frame) -> str:
    """The address that a message came from. ZeroMQ knows none for a peer of ZMTP 1.0, which any noise can look like."""
    try:
        return str(message.get("Peer-Address"))
    except zmq.ZMQError:
        return "an unknown address"
