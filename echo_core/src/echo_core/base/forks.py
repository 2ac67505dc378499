"""What may not cross a fork: objects that belong to the process that made them (`Origin`), and libraries that work in one process only (`OneProcess`)."""

from __future__ import annotations

import os

from .errors import ForkError

__all__ = ["OneProcess", "Origin"]

_forks = 0  # between the first process and this one


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Origin:
    """The process in which an object was made.

    The threads of an object stay in that process. In a forked child they do not exist, and a lock that one of them held is held for ever. So the public
    methods of such an object begin with `check`, before they take a lock.

    Args:
        what: names the object in the error.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._forks = _forks

    @property
    def here(self) -> bool:
        """Whether this is the process in which the object was made."""
        return self._forks == _forks

    def check(self) -> None:
        """Raises ForkError in a forked child."""
        if self._forks != _forks:
            raise ForkError(f"{self._what} was made before the fork, and its threads stayed in the parent; make a new one in the child")


class OneProcess:
    """The process that uses a library which does not survive a fork, such as gRPC or UCX.

    Args:
        library: names the library in the error.
        address: the beginning of the addresses that need it, such as "grpc://".
        instead: another remedy, which ends the error; "" for none.
    """

    def __init__(self, library: str, address: str, instead: str = "") -> None:
        self._library = library
        self._address = address
        self._instead = instead
        self._pid = 0  # 0: no process has used it yet

    def check(self) -> None:
        """Raises ForkError in a child of a process that has used the library."""
        if self._pid not in (0, os.getpid()):
            instead = f"; or {self._instead}" if self._instead else ""
            raise ForkError(
                f"{self._library} was used before this process was forked, and works in the parent only; start the process with multiprocessing's"
                f" 'spawn' or 'forkserver', or fork before the first {self._address} connection{instead}"
            )

    @property
    def used(self) -> bool:
        """Whether this process, or one that it was forked from, has used the library."""
        return self._pid != 0

    def use(self) -> None:
        """Note that this process uses the library from now on. Raises ForkError as `check`."""
        self.check()
        self._pid = os.getpid()
