"""Which worker has which task, and which workers wait for one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .choosing import choose
from .progress import Progress
from .ranges import Ranges
from .stragglers import Stragglers
from .tasks import Give, Kind, Member, RefusedError, Task

__all__ = ["AT_ONCE", "Assignments"]

AT_ONCE = 16  # tasks that are made before the first of them is handed over


class Assignments:
    """The workers of a search and their tasks. The coordinator's lock is held for every call.

    Args:
        search: how far the search is.
        stragglers: finds slow tasks.
        counts: the figures of the coordinator, which are updated here.
        lock: the coordinator's lock.
        then: queues a call that is made without the lock.
        cancelled: is called with a worker and its task if nobody needs the result any more.
        max_slices: the largest number of slices in one task. 0 means that there is no limit.
        clock: returns the time in seconds.

    Attributes:
        members: all workers by their id, with those that are not connected.
        idle: the workers that wait, in the order in which they came. No task fits them until something changes.
        stragglers: as it was given.
    """

    def __init__(
        self,
        search: Progress,
        stragglers: Stragglers,
        counts: dict[str, int],
        *,
        lock: threading.Lock,
        then: Callable[..., None],
        cancelled: Callable[[Member, Task], Any],
        max_slices: int,
        clock: Callable[[], float],
    ) -> None:
        self._search, self.stragglers, self.counts = search, stragglers, counts
        self._lock, self._then, self._cancelled = lock, then, cancelled
        self._max_slices, self._clock = max_slices, clock
        self.members: dict[str, Member] = {}
        self.idle: dict[Member, None] = {}
        self._doubled = 0  # the last epoch in which a task was given to a second worker

    def take(self, member: Member, give: Give) -> None:
        """The worker asks for its next task. A task that it holds already is given again."""
        self.known(member)
        member.give, member.lost = give, None
        if member.task is not None:
            self._hand(member, member.task)
        elif member not in self.idle and not self.offer(member):
            self.idle[member], member.since = None, self._clock()

    def disconnected(self, member: Member) -> None:
        """The worker is not reachable. It keeps its task."""
        if self.members.get(member.id) is member and member.lost is None:
            member.lost, member.give = self._clock(), None
            self.idle.pop(member, None)

    def dispatch(self) -> None:
        """Give every idle worker a task that fits it, if there is one. The worker that has waited for the longest time comes first.

        Call this when something has changed. It looks at all idle workers, so do not call it for every report: with hundreds of workers, that would be
        most of a server's work.
        """
        self._offer_in_turn(deque(self.idle))

    def _offer_in_turn(self, waiting: deque[Member]) -> None:
        """Offer tasks to some of these workers, and to the others after those tasks were handed over. So the first ones of hundreds work already while the
        tasks of the last ones are made."""
        if self._search.phase == "tell":
            return  # there are no tasks until the server has optimised
        for _ in range(min(len(waiting), AT_ONCE)):
            member = waiting.popleft()
            if member in self.idle and self.offer(member):
                del self.idle[member]
        if waiting:
            self._then(self._offer_to_others, waiting)

    def _offer_to_others(self, waiting: deque[Member]) -> None:
        with self._lock:
            self._offer_in_turn(waiting)

    def offer(self, member: Member) -> bool:
        """Give the worker a task that fits it. Returns False if there is none."""
        task = choose(self._search, member, self.members, self._max_slices)
        if task is None:
            return False
        self._assign(member, task)
        return True

    def _assign(self, member: Member, task: Task) -> None:
        member.task, member.since, member.copied = task, self._clock(), False
        self._hand(member, task)

    def _hand(self, member: Member, task: Task) -> None:
        give, member.give = member.give, None
        if give is not None:
            self._then(self._give, give, member, task)

    def _give(self, give: Give, member: Member, task: Task) -> None:
        if not give(task):
            with self._lock:
                self.disconnected(member)

    def copy_slow(self) -> None:
        """Give the tasks that are far slower than the others to idle workers as well, the slowest first."""
        search = self._search
        if search.phase != "evaluate" or search.endless is not None or search.now.free:
            return
        idle = [member for member in self.idle if member.version is not None and member.version >= search.epoch - 1]
        for slow, task in self.stragglers.slow(self.members.values(), search.epoch, self._clock()):
            missing = Ranges(*search.now.missing(task.slices))
            while missing and idle:
                member = idle.pop(0)
                del self.idle[member]
                self.counts["speculated"] += 1
                self._assign(member, search.task(Kind.EVALUATE, missing.take(member.cores, self._max_slices)))
                self._doubled = search.epoch
            slow.copied = not missing

    def known(self, member: Member) -> None:
        """Raise RefusedError if the worker was removed."""
        if self.members.get(member.id) is not member:
            raise RefusedError(f"worker {member.name} was removed, because it did not answer in time; it has to join again")

    def done(self, member: Member) -> None:
        """The worker has ended its task."""
        assert member.task is not None
        member.reported, member.task, member.copied = member.task.id, None, False

    def cancel_vain(self) -> None:
        """Cancel the tasks of this epoch that others have done completely."""
        if self._doubled != self._search.epoch:
            return  # no task was given to a second worker
        for member in self.members.values():
            task = member.task
            if task is not None and task.kind is Kind.EVALUATE and task.epoch == self._search.epoch and not self._search.now.missing(task.slices):
                self.cancel(member, task)

    def cancel(self, member: Member, task: Task) -> None:
        """Tell the worker that nobody needs the result of its task any more."""
        if task.kind in (Kind.EVALUATE, Kind.TEST):
            self.counts["cancelled"] += 1
            self._then(self._cancelled, member, task)

    def remove(self, member: Member) -> None:
        """Forget the worker. Its individuals that have no reward are free again. A second call does nothing."""
        if self.members.get(member.id) is not member:
            return
        del self.members[member.id]  # before its individuals are given to others
        self.counts["left"] += 1
        self.idle.pop(member, None)
        if self._search.sharer is member:
            self._search.sharer = None
            if self._search.phase == "share":
                self._search.phase = "optimize"
        task, member.task = member.task, None
        if task is not None:
            self.give_back(task)

    def give_back(self, task: Task) -> None:
        """Free the individuals of a task that nobody does any more."""
        search = self._search
        if task.kind is Kind.TEST and search.test is not None and task.id in search.test.tasks:
            search.test.episodes.free.give_back(task.slices)
        elif task.kind is Kind.EVALUATE and search.endless is not None:
            search.endless.free.give_back(task.slices)
        elif task.kind is Kind.EVALUATE and task.epoch == search.epoch and search.phase == "evaluate":
            others = [member.task for member in self.members.values() if member.task is not None]
            held = [part for other in others if other.kind is Kind.EVALUATE and other.epoch == search.epoch for part in other.slices]
            self.counts["reassigned"] += search.now.give_back(task.slices, held)
