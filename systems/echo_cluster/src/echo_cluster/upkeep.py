"""The thread that keeps a learner's shards: it asks who is there, dials those that have no connection, and asks for masses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from echo_core import ConfigError

from .keys import MOST_SHARDS
from .shard import Shard

if TYPE_CHECKING:
    from .members import Member, Members

__all__ = ["Upkeep"]

_log = logging.getLogger("echo")

LOOK_SECONDS = 0.1
MEMBERS_SECONDS = 1.0
END_SECONDS = 0.2  # for upkeep that is under way at the end
MOST_AT_ONCE = 32  # shards that are dialled or asked at the same time


class Upkeep:
    """Keeps the shards of one learner up to date.

    Args:
        members: says who is there.
        make: makes the `Shard` of a number and a member.
        patience: seconds in which a shard must answer.

    Attributes:
        shards: all that ever were there, by number. A shard keeps its number when it comes back.
    """

    def __init__(self, members: Members, make: Callable[[int, Member], Shard], patience: float) -> None:
        self._members, self._make, self._patience = members, make, patience
        self.shards: list[Shard] = []
        self._by_name: dict[str, Shard] = {}
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._over = False
        self._asked_members = float("-inf")
        self._failed = ""
        self._look_for_members()  # in the caller's thread, so that mistakes are raised there
        self._thread = threading.Thread(target=self._run, name="echo-cluster", daemon=True)
        self._thread.start()

    def ask_now(self) -> None:
        """Ask all shards for their masses at once: those that are known are all 0."""
        for shard in self.shards:
            shard._told = 0.0
        self._wake.set()

    def wait(self, seconds: float) -> None:
        """Wait until a shard has answered, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def _run(self) -> None:
        while not self._over:
            try:
                if time.monotonic() - self._asked_members > MEMBERS_SECONDS:
                    self._look_for_members()
                    self._failed = ""
            except Exception as error:  # a disk or a name server may fail for a while, and a function of the user may raise anything
                self._asked_members = time.monotonic()
                why = str(error) or type(error).__name__
                if why != self._failed:  # once for each error
                    self._failed = why
                    _log.warning("the members of the cluster could not be found, those known stay: %s", why)
            busy = sum(shard.busy for shard in self.shards)
            for shard in self.shards:
                if busy < MOST_AT_ONCE and not shard.busy and shard.due():
                    shard.busy, busy = True, busy + 1
                    try:  # a daemon, because nothing should wait for a dial that takes long
                        threading.Thread(target=self._keep, args=(shard,), name="echo-cluster-upkeep", daemon=True).start()
                    except RuntimeError:  # the interpreter ends, and nobody has closed the learner
                        return
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def _keep(self, shard: Shard) -> None:
        try:
            shard.keep_up(self._patience)
        finally:
            shard.busy = False
            with self._changed:
                self._changed.notify_all()

    def _look_for_members(self) -> None:
        found = {member.name: member for member in self._members()}
        if self._over:  # meanwhile, and no shard must be there again
            return
        self._asked_members = time.monotonic()
        for name, member in found.items():
            shard = self._by_name.get(name)
            if shard is None:
                if len(self.shards) == MOST_SHARDS:
                    raise ConfigError(f"a learner has at most {MOST_SHARDS} shards")
                shard = self._by_name[name] = self._make(len(self.shards), member)
                self.shards.append(shard)
            shard.member, shard.present = member, True
        for name, shard in self._by_name.items():
            if name not in found and shard.present:
                shard.leave()

    def close(self) -> None:
        """End the thread and all connections. A dial that is under way ends by itself within `DIAL_SECONDS`, and leaves no connection."""
        self._over = True
        self._wake.set()
        self._thread.join(END_SECONDS)  # a name server may take long
        for shard in self.shards:
            shard.leave()
        ends = time.monotonic() + END_SECONDS
        while any(shard.busy for shard in self.shards) and (left := ends - time.monotonic()) > 0:
            self.wait(left)
