"""Unix sockets that carry descriptors: the connections between learner and workers.

A name is an abstract address, which disappears with its socket, no matter how its process ends. A path is a file: a learner that was killed
leaves it behind, and the next learner that listens there removes it.
"""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import os
import socket
import stat
import struct
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from echo_core.base.address import Address
from echo_core.base.errors import ListenError, SecurityError
from echo_core.wire.protocol import Buffer
from echo_net.channel import Acceptor, Channel

__all__ = ["UnixAcceptor", "UnixChannel", "dial"]

log = logging.getLogger("echo")

MOST_BUFFERS = 512  # buffers of one sendmsg; the kernel takes 1024
FD_BYTES = array.array("i").itemsize
MOST_FDS = 4  # descriptors that travel together
MOST_PATH = 107  # bytes of an address in sockaddr_un


class UnixChannel(Channel):
    """See `echo_net.channel.Channel`. Descriptors travel with the bytes: see `give` and `fds`.

    Args:
        takes_descriptors: whether the other end may send any; otherwise the kernel drops them.
    """

    def __init__(self, sock: socket.socket, takes_descriptors: bool) -> None:
        self.pid, self.uid, _ = credentials(sock)
        self.peer = f"pid {self.pid}" if self.pid else f"uid {self.uid}"
        self.fds: deque[int] = deque()  # received descriptors; the code that takes one closes it
        self._sock = sock
        self._space = socket.CMSG_SPACE(FD_BYTES * MOST_FDS) if takes_descriptors else 0
        self._giving: deque[int] = deque()
        _channels.add(self)

    def give(self, fd: int) -> None:
        """Send a copy of `fd` with the next bytes."""
        self._giving.append(os.dup(fd))

    def send(self, buffers: Sequence[Buffer]) -> None:
        parts = [view for view in (memoryview(b).cast("B") for b in buffers) if len(view)]
        at = 0
        while at < len(parts):
            giving = list(self._giving)[:MOST_FDS]
            extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", giving))] if giving else []
            sent = self._sock.sendmsg(parts[at : at + MOST_BUFFERS], extra)
            for _ in giving:
                os.close(self._giving.popleft())
            while at < len(parts) and sent >= len(parts[at]):
                sent -= len(parts[at])
                at += 1
            if sent:
                parts[at] = parts[at][sent:]

    def recv_into(self, buffer: memoryview) -> int:
        if not self._space:
            return self._sock.recv_into(buffer)
        count, extra, flags, _ = self._sock.recvmsg_into([buffer], self._space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % FD_BYTES])
                self.fds.extend(found)
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "no descriptor is left for the memory that the learner hands over; raise `ulimit -n`")
        return count

    def shutdown(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for fds in (self.fds, self._giving):
            while fds:
                os.close(fds.popleft())
        self._sock.close()


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the other end, as the kernel knows them; pid is 0 if the process is in a foreign pid namespace."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("iii", data)
    return pid, uid, gid


def place(path: str, uid: int) -> str:
    """The socket address of a name or an absolute path.

    Raises ValueError if it is too long for a socket address.
    """
    found = path if path.startswith("/") else f"\0echo-shm-{uid}-{path}"
    if len(os.fsencode(found)) > MOST_PATH:
        raise ValueError(f"shm://{path} is too long: a socket's address has at most {MOST_PATH} bytes; choose a shorter name or folder")
    return found


def dial(address: Address, options: Any, timeout: float) -> UnixChannel:
    """Reach the learner at `address`. Raises OSError if no process listens there now.

    Raises SecurityError if the process that listens there belongs to another user.
    """
    uid = os.geteuid() if options.uid < 0 else options.uid
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        try:
            sock.connect(place(address.path, uid))
        except OSError as error:
            hint = "" if address.path.startswith("/") else " (a learner in another container is reached by a path that both share: shm:///folder/name.sock)"
            raise OSError(error.errno, f"nobody listens at {address}: {error.strerror or error}{hint}") from None
        sock.settimeout(None)
        theirs = credentials(sock)[1]
        if theirs not in (uid, 0):
            raise SecurityError(f"{address} is held by user {theirs}, not by user {uid}; if that is right, connect with uid={theirs}")
        return UnixChannel(sock, takes_descriptors=True)
    except BaseException:
        sock.close()
        raise


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold a lock against other learners that take or free an address in `folder`. The lock needs no file of its own."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class UnixAcceptor(Acceptor):
    """Listens at a name or a path.

    Raises OSError, which names the address, if another learner has it or its folder cannot be written.
    """

    def __init__(self, path: str, other_users: bool) -> None:
        self.address = Address("shm", path=path)
        self._path = path
        self._users = None if other_users else {os.geteuid(), 0}
        self._inode = 0
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind(place(path, os.geteuid()), other_users)
            self._sock.listen(128)
        except OSError as error:
            self._sock.close()
            known = {errno.EADDRINUSE: "another learner listens there; choose another name", errno.ENOENT: "make the folder first"}
            said = known.get(error.errno or 0, str(error.strerror or error))
            raise ListenError(error.errno, f"cannot listen at {self.address}: {said}") from None
        except BaseException:
            self._sock.close()
            raise
        _acceptors.add(self)

    def leave_to_parent(self) -> None:
        """Let go in a forked child: the socket belongs to the parent, and so does its place in the file system."""
        self._inode = 0
        self._sock.close()

    def _bind(self, where: str, other_users: bool) -> None:
        if where.startswith("\0"):
            self._sock.bind(where)
            return
        with _locked(os.path.dirname(where)):
            self._remove_stale(where)
            self._sock.bind(where)
            os.chmod(where, 0o666 if other_users else 0o600)
            self._inode = os.stat(where).st_ino

    @staticmethod
    def _remove_stale(where: str) -> None:
        """Remove the socket of a learner that was killed."""
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(where).st_mode):
                raise OSError(errno.EEXIST, "it is a file of something else")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.settimeout(1.0)
                    probe.connect(where)
                except ConnectionRefusedError:
                    os.unlink(where)
                except OSError as error:
                    raise OSError(errno.EADDRINUSE, str(error)) from None

    def accept(self) -> UnixChannel:
        while True:
            sock, _ = self._sock.accept()
            try:
                channel = UnixChannel(sock, takes_descriptors=False)
            except OSError:
                sock.close()
                continue
            if self._users is None or channel.uid in self._users:
                return channel
            channel.close()
            log.warning("%s turned a process of user %d away; other_users=True would let it in", self.address, channel.uid)

    def shutdown(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._inode:
            with suppress(OSError), _locked(os.path.dirname(self._path)):
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)
        self._sock.close()


_acceptors: weakref.WeakSet[UnixAcceptor] = weakref.WeakSet()
_channels: weakref.WeakSet[UnixChannel] = weakref.WeakSet()  # accepted and dialled


def _leave_all_to_parent() -> None:
    """Close the child's copies of all sockets. A name is in use and a connection stands as long as any copy is open, and data loaders may outlive a learner.

    The learner's workers would then go on to put samples into a store that nobody reads, and would never reach the learner that is started next.
    In the same way, a worker that was killed would stay a peer. The close does not disturb the parent's copies.
    """
    for acceptor in list(_acceptors):
        acceptor.leave_to_parent()
    for channel in list(_channels):
        with suppress(OSError):
            channel.close()


os.register_at_fork(after_in_child=_leave_all_to_parent)
