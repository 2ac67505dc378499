"""The state machine of a search. It decides which worker evaluates which individuals, and what follows when an epoch is complete.

    initialize -> evaluate -> optimize -> share -> evaluate ...     the workers optimise, and one of them shares its state
    evaluate -> tell -> evaluate ...                                the server optimises

It does no input or output and starts no thread. Every method may be called from any thread. Calls to others (an answer to a worker, a line of
the log) are made without the lock, in the order in which they were decided; so an epoch is in the log before anybody hears that it is complete.

An epoch is told once, with exactly one reward for each individual: the first that arrived. A worker that is removed loses its individuals
before they are given to others, and what it reports afterwards counts only where nobody else was faster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .checking import rewards_of
from .choosing import choose
from .deliveries import Deliveries
from .digests import Digests
from .epoch import Individuals
from .listener import Listener
from .progress import Part, Progress
from .ranges import Ranges
from .stragglers import Stragglers
from .tasks import Give, Kind, Member, Outcome, RefusedError, Rewards, Task
from .view import View, view_of

__all__ = ["Coordinator"]

_log = logging.getLogger("echo.es")

AT_ONCE = 16  # tasks that are made before the first of them is handed over
_COUNTS = ("evaluations", "duplicates", "reassigned", "speculated", "stale", "refused", "joined", "left", "invalid", "cancelled", "diverged")


class Coordinator:
    """Gives tasks to workers and collects their rewards.

    Args:
        population: individuals in an epoch.
        listener: is told what happens.
        max_epochs: ends after so many; 0: never.
        server_optimizes: whether the listener makes the next state, and calls `told` when it has.
        steady: rewards are told on arrival, and individuals are numbered on without end; an epoch is `population` of them.
        straggle: how many times the median duration a task may take before an idle worker does the same; floor: at least so many seconds.
        grace: seconds for which a worker that is not connected keeps its task.
        task_timeout: seconds after which a worker that has not finished its task is removed; None: never.
        max_slices: slices in one task; 0: any number.
        history: epochs whose rewards are kept for workers that missed them.
    """

    def __init__(
        self,
        population: int,
        listener: Listener,
        *,
        max_epochs: int = 0,
        server_optimizes: bool = False,
        steady: bool = False,
        straggle: float = 3.0,
        floor: float = 1.0,
        grace: float = 5.0,
        task_timeout: float | None = None,
        max_slices: int = 0,
        history: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.population, self.max_epochs, self.server_optimizes, self.steady = population, max_epochs, server_optimizes, steady
        self._listener, self._clock, self._max_slices = listener, clock, max_slices
        self._grace, self._task_timeout = grace, task_timeout
        self._lock = threading.Lock()
        self._deliveries = Deliveries()
        self._then, self._deliver = self._deliveries.then, self._deliveries.deliver
        self._members: dict[str, Member] = {}
        self._idle: dict[Member, None] = {}  # those that wait, in the order in which they came; nothing fits them until something changes
        self._search = Progress(population, max_epochs=max_epochs, server_optimizes=server_optimizes, steady=steady, history=history)
        self._stragglers = Stragglers(straggle, floor)
        self._doubled = 0  # the last epoch in which a task was given to a second worker
        self._digests = Digests()
        self.counts = dict.fromkeys(_COUNTS, 0)

    @property
    def epoch(self) -> int:
        """The number of the epoch; 1 is the first."""
        return self._search.epoch

    @property
    def phase(self) -> str:
        """What the workers do: "initialize", "evaluate", "optimize", "share", "tell" (the server optimises) or "over"."""
        return self._search.phase

    @property
    def version(self) -> int:
        """The version of the newest shared state: how many epochs were optimised; -1: there is no state."""
        return self._search.version

    @property
    def state(self) -> Any:
        """The newest shared state, as it was shared."""
        return self._search.state

    # ---- workers --------------------------------------------------------------------------------------------------------

    def join(self, id: str, cores: int, name: str = "", version: int | None = None, *, tests: bool = True) -> Member:
        """A worker comes. `version`: of the state that it already has; None: it has none. `tests`: whether it can do tasks of the kind test.

        It takes the place of a worker with the same id, whose task is given to others: a program that was started again knows nothing of it. A worker
        whose connection was only cut does not join again; it calls `take`.

        Raises RefusedError if `cores` is less than 1.
        """
        with self._lock:
            if cores < 1:
                self.counts["refused"] += 1
                raise RefusedError(f"cores: a worker evaluates at least one individual at a time, so {cores} is not possible")
            if (before := self._members.get(id)) is not None:
                self._remove(before)
                self._dispatch()
            member = self._members[id] = Member(id, name or id, cores, tests=tests)
            member.version = version if version is not None and version <= self.version else None
            self.counts["joined"] += 1
        self._deliver()
        return member

    def take(self, member: Member, give: Give) -> None:
        """The worker asks for its next task: `give` is called with it, at once or later. A task that it holds already is given again."""
        with self._lock:
            self._known(member)
            member.give, member.lost = give, None
            if member.task is not None:
                self._hand(member, member.task)
            elif member not in self._idle and not self._offer(member):
                self._idle[member], member.since = None, self._clock()
        self._deliver()

    def disconnected(self, member: Member) -> None:
        """The worker is not reachable. It keeps its task for the time of grace."""
        with self._lock:
            if self._members.get(member.id) is member and member.lost is None:
                member.lost, member.give = self._clock(), None
                self._idle.pop(member, None)

    def leave(self, member: Member) -> None:
        """The worker is gone for good. Its individuals that have no reward are given to others. Idempotent."""
        with self._lock:
            self._remove(member)
            self._dispatch()
        self._deliver()

    def members(self) -> list[Member]:
        """All workers, those that are not connected too."""
        with self._lock:
            return list(self._members.values())

    def has(self, member: Member) -> bool:
        """Whether it was not removed."""
        return self._members.get(member.id) is member

    # ---- reports --------------------------------------------------------------------------------------------------------

    def report(
        self,
        member: Member,
        task: int,
        rewards: Iterable[float] | Rewards = (),
        slices: Iterable[slice] | None = None,
        *,
        digest: str | None = None,
    ) -> Outcome:
        """The worker has done a task. For one of the kind evaluate or test it gives `rewards`, in the order of the task's slices, or of its own `slices`.
        For one of the kind optimize it may give the `digest` of its new state.

        Raises RefusedError, and the task stays, if the rewards do not fit.
        """
        with self._lock:
            self._known(member)
            before = self.phase, self.epoch
            outcome = self._report(member, task, rewards, slices, digest)
            if before != (self.phase, self.epoch):  # else there is nothing new for those that wait
                self._dispatch()
        self._deliver()
        return outcome

    def drop(self, member: Member, task: int) -> Outcome:
        """The worker gives a task back without a result, because it was cancelled. Its individuals that have no reward are given to others."""
        with self._lock:
            self._known(member)
            if member.task is None or member.task.id != task:
                return self._unexpected(member, task, "drops")
            held = member.task
            self._done(member)
            self._give_back(held)
            self._dispatch()
        self._deliver()
        return Outcome.DROPPED

    def share(self, member: Member, task: int, state: Any, *, digest: str | None = None) -> Outcome:
        """The worker sends its state, for a task of the kind initialize or share. `digest`: that workers with the same state report."""
        search = self._search
        with self._lock:
            self._known(member)
            given = member.task
            if given is None or given.id != task or given.kind not in (Kind.INITIALIZE, Kind.SHARE):
                return self._unexpected(member, task, "shares a state")
            self._done(member)
            if given.kind is Kind.INITIALIZE:
                member.version = 0
            outcome = Outcome.STALE
            if search.sharer is member and search.version < given.version:
                search.sharer, search.state, search.version = None, state, given.version
                self._digests.shared(given.version, digest)
                for other in self._members.values():
                    self._compare(other)
                self._then(self._listener.state_shared, given.version, state)
                search.next_epoch()
                self._end_if_last()
                outcome = Outcome.COUNTED
            self._dispatch()
        self._deliver()
        return outcome

    # ---- the server's side ----------------------------------------------------------------------------------------------

    def told(self, state: Any = None) -> None:
        """The server has made the next state: after `epoch_complete`, or of a search that is steady, when it likes."""
        with self._lock:
            if self.steady:
                self._search.version += 1
            elif self.phase == "tell":
                self._search.version, self._search.state = self.epoch, state
                self._search.next_epoch()
                self._end_if_last()
            self._dispatch()
        self._deliver()

    def test(self, episodes: int, state: Any = None) -> None:
        """Have `state` evaluated so often, before anything else; `tested` gets the rewards.

        Raises RefusedError while a test runs, before there is a state, and when it is over.
        """
        with self._lock:
            self._search.begin_test(episodes, state)
            self._dispatch()
        self._deliver()

    def end_test(self) -> None:
        """Give the test up. Nothing is told."""
        with self._lock:
            self._search.test = None

    def resume(self, epochs: Iterable[tuple[int, Rewards]], version: int, state: Any, partial: Iterable[Part] = (), *, digest: str | None = None) -> None:
        """Go on where an earlier coordinator ended: before any worker joins. `epoch_complete` is called again for an epoch only if the server has to
        make its state.

        Args:
            epochs: complete epochs and their rewards, in order; the last one is the newest.
            version, state: the newest state that is known, and its `digest`.
            partial: rewards of the epoch after it.
        """
        with self._lock:
            self._digests.shared(version, digest)
            if (complete := self._search.resume(epochs, version, state, partial)) is not None:
                self._then(self._listener.epoch_complete, *complete)
            self._end_if_last()
        self._deliver()

    def resume_steady(self, individuals: Individuals, version: int) -> None:
        """Go on with a search that is steady: before any worker joins.

        Args:
            individuals: those whose rewards were told, int64 of shape (n,). Others before the last of them are given again.
            version: of the newest state.
        """
        with self._lock:
            self._search.resume_steady(individuals, version)
            self._end_if_last()
        self._deliver()

    def stop(self) -> None:
        """It is over: what workers evaluate is cancelled, and each is told when it asks for a task."""
        with self._lock:
            self._over()
            self._dispatch()
        self._deliver()

    def tick(self) -> None:
        """Remove workers that were away for too long or exceed the time of a task, and give slow tasks to idle workers. Call it every so often."""
        with self._lock:
            now = self._clock()
            for member in list(self._members.values()):
                if member.lost is not None and now - member.lost > self._grace:
                    _log.warning("worker %s did not come back for %.1f s; its individuals are given to others", member.name, now - member.lost)
                    self._remove(member)
                elif self._task_timeout is not None and member.task is not None and now - member.since > self._task_timeout:
                    _log.warning("worker %s has had a task (%s) for %.1f s; it is removed", member.name, member.task.kind.value, now - member.since)
                    self._cancel(member, member.task)
                    self._remove(member)
            self._dispatch()
            self._copy_slow()
        self._deliver()

    # ---- looking --------------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """Figures, by name."""
        with self._lock:
            return {
                "workers": len(self._members),
                "epoch": self.epoch,
                "state_version": max(self.version, 0),
                "evaluated": self._search.now.evaluated,
                **{f"{name}_total": float(count) for name, count in self.counts.items()},
                "task_seconds": self._stragglers.usual,
            }

    def view(self) -> View:
        """The tasks of the workers and their ages, and the rewards of the epoch so far."""
        with self._lock:
            return view_of(self._search, self._members.values(), self._stragglers, self._clock())

    # ---- with the lock: giving tasks --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Something has changed: give every idle worker a task that fits it, the one that has waited longest first.

        It looks at all of them, so it is not for every report: with hundreds of workers that would be most of what a server does.
        """
        self._offer_in_turn(deque(self._idle))

    def _offer_in_turn(self, waiting: deque[Member]) -> None:
        """Offer tasks to some of these workers, and to the others after those tasks were handed over. So the first ones of hundreds work already while the
        tasks of the last ones are made."""
        if self.phase == "tell":
            return  # there are no tasks until the server has optimised
        for _ in range(min(len(waiting), AT_ONCE)):
            member = waiting.popleft()
            if member in self._idle and self._offer(member):
                del self._idle[member]
        if waiting:
            self._then(self._offer_to_others, waiting)

    def _offer_to_others(self, waiting: deque[Member]) -> None:
        with self._lock:
            self._offer_in_turn(waiting)

    def _offer(self, member: Member) -> bool:
        """Give the worker a task that fits it. False: there is none."""
        task = choose(self._search, member, self._members, self._max_slices)
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
            self.disconnected(member)

    def _copy_slow(self) -> None:
        """Have idle workers do the tasks that are far slower than the others as well, the slowest first."""
        search = self._search
        if search.phase != "evaluate" or search.endless is not None or search.now.free:
            return
        idle = [member for member in self._idle if member.version is not None and member.version >= search.epoch - 1]
        for slow, task in self._stragglers.slow(self._members.values(), search.epoch, self._clock()):
            missing = Ranges(*search.now.missing(task.slices))
            while missing and idle:
                member = idle.pop(0)
                del self._idle[member]
                self.counts["speculated"] += 1
                self._assign(member, search.task(Kind.EVALUATE, missing.take(member.cores, self._max_slices)))
                self._doubled = search.epoch
            slow.copied = not missing

    # ---- with the lock: taking reports ------------------------------------------------------------------------------------

    def _known(self, member: Member) -> None:
        if self._members.get(member.id) is not member:
            raise RefusedError(f"worker {member.name} was removed, because it did not answer in time; it has to join again")

    def _unexpected(self, member: Member, task: int, what: str) -> Outcome:
        """A report of a task that the worker does not hold."""
        if task == member.reported:
            return Outcome.REPEATED
        if self._search.was_given(task) and (member.task is None or member.task.id != task):
            self.counts["stale"] += 1
            return Outcome.STALE
        self.counts["refused"] += 1
        holds = "no task" if member.task is None else f"task {member.task.id} ({member.task.kind.value})"
        raise RefusedError(f"worker {member.name} {what} for task {task}, but it holds {holds}")

    def _done(self, member: Member) -> None:
        assert member.task is not None
        member.reported, member.task, member.copied = member.task.id, None, False

    def _report(self, member: Member, number: int, rewards: Iterable[float] | Rewards, slices: Iterable[slice] | None, digest: str | None) -> Outcome:
        task = member.task
        if task is None or task.id != number:
            return self._unexpected(member, number, "reports")
        if task.kind in (Kind.INITIALIZE, Kind.SHARE):
            self.counts["refused"] += 1
            raise RefusedError(f"task {number} asks worker {member.name} for its state, which has to be shared, not reported")
        if task.kind not in (Kind.EVALUATE, Kind.TEST):
            self._done(member)
            if task.kind is Kind.OPTIMIZE:
                member.version, member.digest = task.epoch, digest
                self._compare(member)
            return Outcome.COUNTED
        try:
            values = rewards_of(member, task, rewards, slices)
        except RefusedError:
            self.counts["refused"] += 1
            raise
        self.counts["invalid"] += len(values) - int(np.count_nonzero(np.isfinite(values)))
        self._done(member)
        if task.kind is Kind.TEST:
            return self._count_test(task, values)
        self._stragglers.took(self._clock() - member.since)
        return self._count_steady(member, task, values) if self.steady else self._count(member, task, values)

    def _count(self, member: Member, task: Task, values: Rewards) -> Outcome:
        if task.epoch != self.epoch or self.phase != "evaluate":
            self.counts["duplicates"] += len(values)
            return Outcome.DUPLICATE
        new = self._search.now.count(task.slices, values)
        self.counts["evaluations"] += new
        self.counts["duplicates"] += len(values) - new
        member.evaluated += new
        if new:
            self._then(self._listener.evaluated, task.epoch, task.slices, values)
            if self._doubled == self.epoch:
                self._cancel_vain()
        if (complete := self._search.complete()) is not None:
            self._then(self._listener.epoch_complete, *complete)
        return Outcome.COUNTED if new else Outcome.DUPLICATE

    def _count_steady(self, member: Member, task: Task, values: Rewards) -> Outcome:
        if self.phase == "over":
            return Outcome.STALE
        member.evaluated += len(values)
        self.counts["evaluations"] += len(values)
        self._then(self._listener.evaluated, self.epoch, task.slices, values)
        self._search.count_steady(len(values))
        self._end_if_last()
        return Outcome.COUNTED

    def _count_test(self, task: Task, values: Rewards) -> Outcome:
        test = self._search.test
        if test is None or task.id not in test.tasks:
            return Outcome.STALE
        test.episodes.count(task.slices, values)
        if test.episodes.complete:
            self._search.test = None
            self._then(self._listener.tested, test.episodes.number, test.episodes.rewards)
        return Outcome.COUNTED

    def _compare(self, member: Member) -> None:
        """A worker that has optimised to another state than the shared one is named, and is given the shared one before it evaluates again."""
        if member.version is None or not self._digests.differs(member.version, member.digest):
            return
        _log.error(
            "worker %s has optimised epoch %d to another state than the one that was shared; it is given the shared state. "
            "All workers must compute the same: look for random numbers, other library versions, or another machine's arithmetic",
            member.name,
            member.version,
        )
        self.counts["diverged"] += 1
        member.diverged += 1
        member.version = member.digest = None

    # ---- with the lock: ending --------------------------------------------------------------------------------------------

    def _end_if_last(self) -> None:
        if self._search.past_last:
            self._over()

    def _over(self) -> None:
        if self.phase != "over":
            self._search.phase = "over"
            for member in self._members.values():
                if member.task is not None:
                    self._cancel(member, member.task)
            self._then(self._listener.over)

    def _cancel_vain(self) -> None:
        """Tell the workers whose whole task was done by others."""
        for member in self._members.values():
            task = member.task
            if task is not None and task.kind is Kind.EVALUATE and task.epoch == self.epoch and not self._search.now.missing(task.slices):
                self._cancel(member, task)

    def _cancel(self, member: Member, task: Task) -> None:
        if task.kind in (Kind.EVALUATE, Kind.TEST):
            self.counts["cancelled"] += 1
            self._then(self._listener.cancelled, member, task)

    def _remove(self, member: Member) -> None:
        if self._members.get(member.id) is not member:
            return
        del self._members[member.id]  # before its individuals are given to others
        self.counts["left"] += 1
        self._idle.pop(member, None)
        if self._search.sharer is member:
            self._search.sharer = None
            if self.phase == "share":
                self._search.phase = "optimize"
        task, member.task = member.task, None
        if task is not None:
            self._give_back(task)

    def _give_back(self, task: Task) -> None:
        """Free the individuals of a task that nobody does any more."""
        search = self._search
        if task.kind is Kind.TEST and search.test is not None and task.id in search.test.tasks:
            search.test.episodes.free.give_back(task.slices)
        elif task.kind is Kind.EVALUATE and search.endless is not None:
            search.endless.free.give_back(task.slices)
        elif task.kind is Kind.EVALUATE and task.epoch == search.epoch and search.phase == "evaluate":
            others = [member.task for member in self._members.values() if member.task is not None]
            held = [part for other in others if other.kind is Kind.EVALUATE and other.epoch == search.epoch for part in other.slices]
            self.counts["reassigned"] += search.now.give_back(task.slices, held)
