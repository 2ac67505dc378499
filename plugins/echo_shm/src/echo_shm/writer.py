"""A worker that writes to the learner's store, and how the learner notices its end."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_net.channel.sessions import Session

    from ._reaper import SharedStore

__all__ = ["Writer"]


class Writer:
    """A worker that has mapped the store. This object lives until neither the worker nor a child of it can write there any more.

    Two signs show when its process has ended, and each has a gap. No pidfd can be opened for a process in a foreign pid namespace, for one that is dead
    already, or where a filter forbids it. The `lifeline` is a pipe whose other end stays open while the store is mapped there; a child may hold it too.
    """

    def __init__(self, shared: SharedStore, records: list[int], pid: int, session: Session, name: str) -> None:
        self.records, self.session, self.name = records, session, name
        self.gone_since = 0.0  # time.monotonic() at which its connection ended
        self._shared = shared
        ours, self.lifeline = os.pipe()
        self._ends, self._watched = select.poll(), [ours]
        self._ends.register(ours, 0)  # reports only a hang-up, not bytes that are written to it
        with suppress(OSError):
            if pid > 0:
                self._watched.append(os.pidfd_open(pid))
                self._ends.register(self._watched[-1], select.POLLIN)

    def handed_over(self) -> None:
        """The other end of the lifeline belongs to the worker now, or is lost together with the message that carried it."""
        os.close(self.lifeline)

    @property
    def samples(self) -> int:
        return sum(map(self._shared.samples, self.records))

    def revoked(self) -> int:
        return sum(map(self._shared.revoked, self.records))

    @property
    def waiting(self) -> float:
        return self._shared.waiting(self.records[0])

    def dead(self) -> bool:
        """Whether its process has ended or never got the store. Then it writes nothing any more, even if it was in the middle of a sample."""
        return bool(self._ends.poll(0))

    def left(self) -> bool:
        """Whether it has said that it makes no more changes."""
        return all(map(self._shared.left, self.records))

    def reap(self) -> None:
        for record in self.records:
            self._shared.reap(record)
        self.forget()

    def forget(self) -> None:
        while self._watched:
            os.close(self._watched.pop())
