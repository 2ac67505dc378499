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
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .assignments import Assignments
from .checking import rewards_of
from .deliveries import Deliveries
from .digests import Digests
from .epoch import Individuals
from .listener import Listener
from .progress import Part, Progress
from .stragglers import Stragglers
from .tasks import Give, Kind, Member, Outcome, RefusedError, Rewards, Task
from .view import View, view_of

__all__ = ["Coordinator"]

_log = logging.getLogger("echo.es")

_COUNTS = ("evaluations", "duplicates", "reassigned", "speculated", "stale", "refused", "joined", "left", "invalid", "cancelled", "diverged")


class Coordinator:
    """Gives tasks to workers and collects their rewards.

    Args:
        population: how many individuals an epoch has.
        listener: gets a call for everything that happens in the search.
        max_epochs: the search stops after this many epochs. 0 means that there is no limit.
        server_optimizes: whether the listener makes the next state. It calls `told` afterwards.
        steady: whether the listener gets each reward when it arrives. The numbers of the individuals then never start again at 0, and `population` rewards
            count as an epoch.
        straggle: a task that takes longer than this many times the median duration is also given to an idle worker.
        floor: the fewest seconds that pass before a task is given to a second worker.
        grace: for how many seconds a worker that has lost its connection keeps its task.
        task_timeout: seconds after which a worker that has not finished its task is removed. None means that there is no limit.
        max_slices: the largest number of slices in one task. 0 means that there is no limit.
        history: for how many epochs the rewards are kept, so that workers that missed an epoch can get them.
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
        self._listener, self._clock = listener, clock
        self._grace, self._task_timeout = grace, task_timeout
        self._lock = threading.Lock()
        self._deliveries = Deliveries()
        self._then, self._deliver = self._deliveries.then, self._deliveries.deliver
        self._search = Progress(population, max_epochs=max_epochs, server_optimizes=server_optimizes, steady=steady, history=history)
        self._digests = Digests()
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._assignments = Assignments(
            self._search,
            Stragglers(straggle, floor),
            self.counts,
            lock=self._lock,
            then=self._then,
            cancelled=listener.cancelled,
            max_slices=max_slices,
            clock=clock,
        )

    @property
    def epoch(self) -> int:
        """The number of the epoch; 1 is the first."""
        return self._search.epoch

    @property
    def phase(self) -> str:
        """What the workers do: "initialize", "evaluate", "optimize", "share", "tell" (the server optimises) or "over"."""
        return self._search.phase

    @property
    def finished(self) -> bool:
        """Whether the last epoch is over. It is False for a search that was stopped before."""
        return self._search.past_last

    @property
    def version(self) -> int:
        """The version of the newest shared state: how many epochs were optimised. It is -1 if there is no state."""
        return self._search.version

    @property
    def state(self) -> Any:
        """The newest shared state, as it was shared."""
        return self._search.state

    # ---- workers --------------------------------------------------------------------------------------------------------

    def join(self, id: str, cores: int, name: str = "", version: int | None = None, *, tests: bool = True) -> Member:
        """Add a worker.

        It takes the place of a worker with the same id, whose task is given to others: a program that was started again knows nothing of it. A worker
        whose connection was only cut does not join again; it calls `take`.

        Args:
            version: the version of the state that it already has. None means that it has no state.
            tests: whether it can do tasks of the kind test.

        Raises RefusedError if `cores` is less than 1.
        """
        with self._lock:
            if cores < 1:
                self.counts["refused"] += 1
                raise RefusedError(f"cores: a worker evaluates at least one individual at a time, so {cores} is not possible")
            if (before := self._assignments.members.get(id)) is not None:
                self._assignments.remove(before)
                self._assignments.dispatch()
            member = self._assignments.members[id] = Member(id, name or id, cores, tests=tests)
            member.version = version if version is not None and version <= self.version else None
            self.counts["joined"] += 1
        self._deliver()
        return member

    def take(self, member: Member, give: Give) -> None:
        """The worker asks for its next task: `give` is called with it, at once or later. A task that it holds already is given again."""
        with self._lock:
            self._assignments.take(member, give)
        self._deliver()

    def disconnected(self, member: Member) -> None:
        """The worker is not reachable. It keeps its task for the time of grace."""
        with self._lock:
            self._assignments.disconnected(member)

    def leave(self, member: Member) -> None:
        """The worker is gone for good. Its individuals that have no reward are given to others. Idempotent."""
        with self._lock:
            self._assignments.remove(member)
            self._assignments.dispatch()
        self._deliver()

    def members(self) -> list[Member]:
        """All workers, those that are not connected too."""
        with self._lock:
            return list(self._assignments.members.values())

    def has(self, member: Member) -> bool:
        """Whether it was not removed."""
        return self._assignments.members.get(member.id) is member

    # ---- reports --------------------------------------------------------------------------------------------------------

    def report(
        self,
        member: Member,
        task: int,
        rewards: Iterable[float] | Rewards = (),
        slices: Iterable[slice] | None = None,
        *,
        digest: str | None = None,
        observed: Callable[[], None] | None = None,
    ) -> Outcome:
        """The worker has done a task. For one of the kind evaluate or test it gives `rewards`, in the order of the task's slices, or of its own `slices`.
        For one of the kind optimize it may give the `digest` of its new state. `observed` is called if the rewards fit, before anybody hears of them;
        it is not called for a report that came twice.

        Raises RefusedError, and the task stays, if the rewards do not fit.
        """
        with self._lock:
            self._assignments.known(member)
            before = self.phase, self.epoch
            outcome = self._report(member, task, rewards, slices, digest, observed)
            if before != (self.phase, self.epoch):  # else there is nothing new for those that wait
                self._assignments.dispatch()
        self._deliver()
        return outcome

    def drop(self, member: Member, task: int) -> Outcome:
        """The worker gives a task back without a result, because it was cancelled. Its individuals that have no reward are given to others."""
        with self._lock:
            self._assignments.known(member)
            if member.task is None or member.task.id != task:
                return self._unexpected(member, task, "drops")
            held = member.task
            self._assignments.done(member)
            self._assignments.give_back(held)
            self._assignments.dispatch()
        self._deliver()
        return Outcome.DROPPED

    def share(self, member: Member, task: int, state: Any, *, digest: str | None = None) -> Outcome:
        """The worker sends its state, for a task of the kind initialize or share. `digest`: that workers with the same state report."""
        search = self._search
        with self._lock:
            self._assignments.known(member)
            given = member.task
            if given is None or given.id != task or given.kind not in (Kind.INITIALIZE, Kind.SHARE):
                return self._unexpected(member, task, "shares a state")
            self._assignments.done(member)
            if given.kind is Kind.INITIALIZE:
                member.version = 0
            outcome = Outcome.STALE
            if search.sharer is member and search.version < given.version:
                search.sharer, search.state, search.version = None, state, given.version
                self._digests.shared(given.version, digest)
                for other in self._assignments.members.values():
                    self._compare(other)
                self._then(self._listener.state_shared, given.version, state)
                search.next_epoch()
                self._end_if_last()
                outcome = Outcome.COUNTED
            self._assignments.dispatch()
        self._deliver()
        return outcome

    # ---- the server's side ----------------------------------------------------------------------------------------------

    def told(self, state: Any = None) -> None:
        """The server has made the next state. It calls this after `epoch_complete`. In a steady search it may call this at any time."""
        with self._lock:
            if self.steady:
                self._search.version += 1
            elif self.phase == "tell":
                self._search.version, self._search.state = self.epoch, state
                self._search.next_epoch()
                self._end_if_last()
            self._assignments.dispatch()
        self._deliver()

    def test(self, episodes: int, state: Any = None) -> None:
        """Have workers evaluate `state` `episodes` times, before anything else. The listener's `tested` gets the rewards.

        Raises RefusedError while a test runs, before there is a state, and when it is over.
        """
        with self._lock:
            self._search.begin_test(episodes, state)
            self._assignments.dispatch()
        self._deliver()

    def end_test(self) -> None:
        """Cancel the test. The listener gets no rewards of it."""
        with self._lock:
            self._search.test = None

    def resume(self, epochs: Iterable[tuple[int, Rewards]], version: int, state: Any, partial: Iterable[Part] = (), *, digest: str | None = None) -> None:
        """Continue where an earlier coordinator ended. Call this before any worker joins. `epoch_complete` is called again for an epoch only if the server has
        to make its state.

        Args:
            epochs: complete epochs and their rewards, in order; the last one is the newest.
            version, state: the newest known state and its version. `digest` is the digest of this state.
            partial: the rewards of the epoch after the last complete one.
        """
        with self._lock:
            self._digests.shared(version, digest)
            if (complete := self._search.resume(epochs, version, state, partial)) is not None:
                self._then(self._listener.epoch_complete, *complete)
            self._end_if_last()
        self._deliver()

    def resume_steady(self, individuals: Individuals, version: int) -> None:
        """Continue a steady search. Call this before any worker joins.

        Args:
            individuals: the individuals whose rewards were told, int64 of shape (n,). Those between them that are missing are evaluated again.
            version: the version of the newest state.
        """
        with self._lock:
            self._search.resume_steady(individuals, version)
            self._end_if_last()
        self._deliver()

    def stop(self) -> None:
        """It is over: what workers evaluate is cancelled, and each is told when it asks for a task."""
        with self._lock:
            self._over()
            self._assignments.dispatch()
        self._deliver()

    def refused(self) -> None:
        """Count something that a worker sent and that does not count."""
        with self._lock:
            self.counts["refused"] += 1

    def tick(self) -> None:
        """Remove workers that were away for too long or exceed the time of a task, and give slow tasks to idle workers. Call it several times a second."""
        with self._lock:
            now = self._clock()
            for member in list(self._assignments.members.values()):
                if member.lost is not None and now - member.lost > self._grace:
                    _log.warning("worker %s did not come back for %.1f s; its individuals are given to others", member.name, now - member.lost)
                    self._assignments.remove(member)
                elif self._task_timeout is not None and member.task is not None and now - member.since > self._task_timeout:
                    _log.warning("worker %s has had a task (%s) for %.1f s; it is removed", member.name, member.task.kind.value, now - member.since)
                    self._assignments.cancel(member, member.task)
                    self._assignments.remove(member)
            self._assignments.dispatch()
            self._assignments.copy_slow()
        self._deliver()

    # ---- looking --------------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """Figures, by name."""
        with self._lock:
            return {
                "workers": len(self._assignments.members),
                "epoch": self.epoch,
                "state_version": max(self.version, 0),
                "evaluated": self._search.now.evaluated,
                **{f"{name}_total": float(count) for name, count in self.counts.items()},
                "task_seconds": self._assignments.stragglers.usual,
            }

    def view(self) -> View:
        """The tasks of the workers and their ages, and the rewards of the epoch so far."""
        with self._lock:
            return view_of(self._search, self._assignments.members.values(), self._assignments.stragglers, self._clock())

    # ---- with the lock: taking reports ------------------------------------------------------------------------------------

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

    def _report(
        self,
        member: Member,
        number: int,
        rewards: Iterable[float] | Rewards,
        slices: Iterable[slice] | None,
        digest: str | None,
        observed: Callable[[], None] | None,
    ) -> Outcome:
        task = member.task
        if task is None or task.id != number:
            return self._unexpected(member, number, "reports")
        if task.kind in (Kind.INITIALIZE, Kind.SHARE):
            self.counts["refused"] += 1
            raise RefusedError(f"task {number} asks worker {member.name} for its state, which has to be shared, not reported")
        if task.kind not in (Kind.EVALUATE, Kind.TEST):
            self._assignments.done(member)
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
        self._assignments.done(member)
        if observed is not None:
            self._then(observed)
        if task.kind is Kind.TEST:
            return self._count_test(task, values)
        self._assignments.stragglers.took(self._clock() - member.since)
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
            self._assignments.cancel_vain()
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
            for member in self._assignments.members.values():
                if member.task is not None:
                    self._assignments.cancel(member, member.task)
            self._then(self._listener.over)
