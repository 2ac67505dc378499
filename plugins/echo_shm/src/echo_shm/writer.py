"""A worker that writes to the learner's store, and how the learner knows that it is gone."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_core.store.shared.shared_store import SharedStore
    from echo_core.wire.channel.sessions import Session

__all__ = ["Writer"]


class Writer:
    """A worker that has the store mapped, from then until nothing of it can write there any more.

    Two things tell when its process has ended. A pidfd is not to be had of a process in a foreign pid namespace, nor of one that has died by now, nor
    where a filter forbids it. The `lifeline`, a pipe whose other end stays open for as long as the store is mapped there, may be held by a child of it.
    """

    def __init__(self, shared: SharedStore, records: list[int], pid: int, session: Session, name: str) -> None:
        self.records, self.session, self.name = records, session, name
        self.gone_since = 0.0  # its connection ended, at this time.monotonic()
        self._shared = shared
        ours, self.lifeline = os.pipe()
        self._ends, self._watched = select.poll(), [ours]
        self._ends.register(ours, 0)  # hung up, whatever is written to it
        with suppress(OSError):
            if pid > 0:
                self._watched.append(os.pidfd_open(pid))
                self._ends.register(self._watched[-1], select.POLLIN)

    def handed_over(self) -> None:
        """The other end of the lifeline is the worker's now, or lost with what was on its way to it."""
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
        """Its process has ended, or never got the store: it writes nothing, whatever it was doing."""
        return bool(self._ends.poll(0))

    def left(self) -> bool:
        """It has said that it makes no more changes."""
        return all(map(self._shared.left, self.records))

    def reap(self) -> None:
        for record in self.records:
            self._shared.reap(record)
        self.forget()

    def forget(self) -> None:
        while self._watched:
            os.close(self._watched.pop())
