"""Tickets: which tasks may be begun, and for which policy version, so that no rollout is too old and none is thrown away.

An actor begins a task only with a ticket. While the policy has version v (the first is 1), at most ``(v + eta) * batch`` tickets have been issued in
all, and a batch of ``batch`` groups makes version v + 1. A ticket carries the version at which it was issued, and an update waits for the results of
old tickets where younger ones would take their places. So no group is more than ``eta`` versions old when it is trained. The pace of the actors keeps
this bound; nothing is generated and dropped.

A task can be delivered twice, after the death of an actor. The first result counts, and each later one is refused and counted.

An actor that leaves hands back what it has made of a ticket: its prefix. The ticket is then lent again with this prefix, as its next part. It keeps its
version, so that the bound holds for the oldest token.

Nothing here does input or output. ``TicketTable`` takes tickets to the actors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from echo_core import ConfigError

__all__ = ["Group", "Ticket", "Tickets"]


@dataclass(frozen=True, order=True)
class Ticket:
    """The right to work on one task.

    Attributes:
        number: counts the tickets from 0.
        task: the task, usually the seed of its environment.
        version: the policy version at which it was issued. Its rollouts are made by this version or a newer one.
        attempt: how often it was issued before, since its first result has not come.
        part: how often it was handed back with a prefix. A copy with a smaller part is of no more use.
        prefix: what the actors before have made of it, as their collector wrote it; empty if they have made nothing.
    """

    number: int
    task: int
    version: int
    attempt: int = 0
    part: int = 0
    prefix: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True)
class Group:
    """A result: all rollouts of one ticket."""

    ticket: Ticket
    rollouts: Any


class Tickets:
    """Issues tickets, takes the results, and decides what is trained next. Not thread-safe.

    Args:
        batch: how many groups an update trains on.
        eta: by how many versions a group may be older than the policy that it is trained for; 0 is the synchronous loop.
        ordered: whether groups are trained in the order of their tickets. Then a run does not depend on which actor is faster.

    Attributes:
        version: the policy version. It is 1 before the first update.
        duplicates: how many results, whole ones and prefixes, were refused because an earlier one of the same ticket counts.
        handed_back: how many prefixes were taken.
        lags: how many groups were trained at each age, in versions.
    """

    def __init__(self, batch: int, eta: int = 1, *, ordered: bool = False) -> None:
        for name, value, least in (("batch", batch, 1), ("eta", eta, 0)):
            if type(value) is not int or value < least:
                raise ConfigError(f"tickets: {name} has to be a whole number of at least {least}, not {value!r}")
        self.batch, self.eta, self.ordered = batch, eta, ordered
        self.version, self.duplicates, self.handed_back = 1, 0, 0
        self.lags: Counter[int] = Counter()
        self._issued = 0
        self._waiting: dict[int, Ticket] = {}  # by number: issued, and without a result
        self._arrived: dict[int, Group] = {}  # by number: with a result, and not trained

    @property
    def room(self) -> int:
        """How many tickets may be issued now."""
        return (self.version + self.eta) * self.batch - self._issued

    @property
    def outstanding(self) -> list[Ticket]:
        """The tickets without a result, oldest first."""
        return sorted(self._waiting.values())

    @property
    def arrived(self) -> int:
        """How many groups wait to be trained."""
        return len(self._arrived)

    def issue(self, task_of: Callable[[int], int] = int) -> list[Ticket]:
        """Issue as many tickets as the bound allows. ``task_of`` gives the task that belongs to a ticket's number; by default they are the same."""
        numbers = range(self._issued, self._issued + self.room)
        new = [Ticket(number, int(task_of(number)), self.version) for number in numbers]
        self._waiting.update((ticket.number, ticket) for ticket in new)
        self._issued += len(new)
        return new

    def issue_again(self) -> list[Ticket]:
        """Issue every ticket without a result once more, because the earlier ones are lost. Their versions stay, so that the bound holds."""
        for number, ticket in self._waiting.items():
            self._waiting[number] = replace(ticket, attempt=ticket.attempt + 1)
        return self.outstanding

    def arrive(self, number: int, rollouts: Any) -> bool:
        """Take the result of a ticket. Returns False, and counts it, if there is one already.

        Raises ValueError if no such ticket was issued.
        """
        self._check(number)
        ticket = self._waiting.pop(number, None)
        if ticket is None:
            self.duplicates += 1
            return False
        self._arrived[number] = Group(replace(ticket, prefix=b""), rollouts)
        return True

    def hand_back(self, number: int, part: int, prefix: bytes) -> Ticket | None:
        """Take what an actor has made of a part of a ticket. Returns the ticket of the next part, which is to be lent.

        Returns None, and counts it, if the ticket has a result already, or if this part was handed back before, by another actor.
        Raises ValueError if no such ticket was issued.
        """
        self._check(number)
        ticket = self._waiting.get(number)
        if ticket is None or part < ticket.part:
            self.duplicates += 1
            return None
        # A part after the present one comes from a learner that was killed: its last checkpoint is older than the part, which is of use all the same.
        self._waiting[number] = again = replace(ticket, part=part + 1, prefix=prefix)
        self.handed_back += 1
        return again

    def lent(self, number: int, part: int) -> Ticket | None:
        """The ticket with its prefix, for an actor that has got this part of it; None if there is nothing left to do for this part.

        Raises ValueError if no such ticket was issued.
        """
        self._check(number)
        ticket = self._waiting.get(number)
        return None if ticket is None or part < ticket.part else ticket

    def again(self, number: int) -> Ticket | None:
        """The ticket as its next attempt, because its result cannot be used; None if it has another one."""
        ticket = self._waiting.get(number)
        if ticket is not None:
            self._waiting[number] = ticket = replace(ticket, attempt=ticket.attempt + 1)
        return ticket

    def missing(self) -> list[Ticket]:
        """The tickets without a result that the next update waits for, oldest first; all of them if fewer than a batch of groups are there."""
        return self._choose()[1]

    def take(self) -> list[Group] | None:
        """The groups of the next update, in the order of their tickets; None if it has to wait. They are counted as trained."""
        chosen, missing = self._choose()
        if missing or len(chosen) < self.batch:
            return None
        groups = [self._arrived.pop(number) for number in sorted(chosen)]
        self.lags.update(self.version - group.ticket.version for group in groups)
        return groups

    def updated(self) -> None:
        """The update is made: the policy has the next version. Call it once after each ``take`` that gave groups."""
        self.version += 1

    def _check(self, number: int) -> None:
        if not 0 <= number < self._issued:
            raise ValueError(f"a result came for ticket {number}, but only {self._issued} tickets were issued")

    def _choose(self) -> tuple[list[int], list[Ticket]]:
        """The groups for the next update by number, and the tickets that it waits for.

        A ticket of version u has to be trained at version u + eta or earlier. The groups with the earliest such deadlines are chosen. The update may take
        them if every other ticket can still meet its deadline: at most ``(w - version) * batch`` of the others have a deadline of w or earlier. Without
        this, fast actors could use up the places of a slow one.
        """
        if self.ordered:
            last = self.version * self.batch
            return [number for number in self._arrived if number < last], [ticket for ticket in self.outstanding if ticket.number < last]
        chosen = sorted(self._arrived, key=lambda number: (self._arrived[number].ticket.version, number))[: self.batch]
        if len(chosen) < self.batch:
            return chosen, self.outstanding
        others = Counter(self._arrived[number].ticket.version for number in self._arrived.keys() - set(chosen))
        others.update(ticket.version for ticket in self._waiting.values())
        left = 0
        for version in sorted(others):
            left += others[version]
            deadline = version + self.eta
            if left > (deadline - self.version) * self.batch:
                return chosen, [ticket for ticket in self.outstanding if ticket.version <= version]
        return chosen, []

    # ---- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs. The groups that wait to be trained are in it as they are."""
        return {
            "batch": self.batch,
            "eta": self.eta,
            "version": self.version,
            "issued": self._issued,
            "duplicates": self.duplicates,
            "handed_back": self.handed_back,
            "lags": {str(lag): count for lag, count in self.lags.items()},
            "waiting": [_saved(ticket) for ticket in self.outstanding],
            "arrived": [{"ticket": _saved(group.ticket), "rollouts": group.rollouts} for _, group in sorted(self._arrived.items())],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Call ``issue_again`` afterwards: the actors that had the tickets without a result may be gone.

        Raises ConfigError if the state was made with another batch or eta, because its tickets would break this bound.
        """
        for name in ("batch", "eta"):
            if state[name] != getattr(self, name):
                raise ConfigError(f"tickets: the checkpoint was made with {name}={state[name]}, and this run has {name}={getattr(self, name)}")
        self.version, self._issued, self.duplicates = int(state["version"]), int(state["issued"]), int(state["duplicates"])
        self.handed_back = int(state.get("handed_back", 0))
        self.lags = Counter({int(lag): int(count) for lag, count in state["lags"].items()})
        self._waiting = {ticket["number"]: _read(ticket) for ticket in state["waiting"]}
        self._arrived = {entry["ticket"]["number"]: Group(_read(entry["ticket"]), entry["rollouts"]) for entry in state["arrived"]}


def _saved(ticket: Ticket) -> dict[str, Any]:
    state = asdict(ticket)
    prefix = state.pop("prefix")
    return {**state, "prefix": np.frombuffer(prefix, np.uint8)} if prefix else state


def _read(state: Mapping[str, Any]) -> Ticket:
    return Ticket(**{**state, "prefix": np.asarray(state.get("prefix", ()), np.uint8).tobytes()})
