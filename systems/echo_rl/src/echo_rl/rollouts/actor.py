"""An actor: it takes a ticket, makes the rollouts of its task with the policy that the ticket asks for, and sends them to the learner as one record.

The order is what makes a rollout count exactly once although any process may die at any moment: the ticket is done only after the learner has
acknowledged the result. An actor that dies before that gives its ticket back, by the end of its connection, and another actor gets it.

An actor that is told to leave stops between two tokens, if its collector can, and hands back what it has made: another actor goes on with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, Protocol

from echo_core import Client, ConnectionClosedError, EchoTimeoutError, JobEnded, SpecError
from echo_core.base.errors import HandshakeRefused
from echo_rl.rollouts import records
from echo_rl.rollouts.records import result, result_example
from echo_rl.rollouts.ticket_table import NAME, TicketTable, example
from echo_rl.rollouts.tickets import Ticket

__all__ = ["HAND_BACK", "PREFIX", "Collector", "Leave", "Partial", "Policy", "Worked", "run_actor"]

_AGAIN = 0.1  # seconds
#: What actors request of the learner: the prefix of a ticket, and to take prefixes.
PREFIX, HAND_BACK = "echo-rl/prefix", "echo-rl/hand-back"


class Policy(Protocol):
    """Published weights, such as ``echo_core.Weights``."""

    @property
    def params(self) -> Any:
        """The pytree that the learner has published."""

    @property
    def version(self) -> int:
        """The policy version."""


@dataclass(frozen=True)
class Partial:
    """The rollouts of a ticket that is not finished, for any collector of the same rules to go on with: see ``Ticket.prefix``."""

    prefix: bytes


class Leave:
    """Whether an actor is to leave.

    Attributes:
        asked: whether it is. A collector that can stop between two tokens looks at this.
    """

    def __init__(self) -> None:
        self.asked = self._waits = False

    def ask(self, *_: object) -> None:
        """Let the actor leave, without a loss. To be called by the handler of a signal, in the thread that runs ``run_actor``."""
        self.asked = True
        if self._waits:
            raise _Left

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Within this, nothing would be lost, so that ``ask`` ends the actor at once."""
        self._waits = True
        try:
            if self.asked:
                raise _Left
            yield
        finally:
            self._waits = False


class _Left(BaseException):
    """The actor was told to leave while it had nothing."""


class _Lost(Exception):
    """The connection was lost during a request. The tickets have gone back as they were, or their prefixes are taken and these copies are of no more use."""


class Collector(Protocol):
    """Makes rollouts."""

    @property
    def at_once(self) -> int:
        """How many tickets an actor takes together: the most of a call of ``collect``."""

    def collect(self, tickets: Sequence[Ticket], policy: Policy, newer: Callable[[int], Policy | None]) -> Sequence[Mapping[str, Any] | Partial]:
        """Make all rollouts of each ticket with this policy, and return each ticket's as the record that the learner's example describes.

        ``newer(version)`` returns a newer policy that has arrived meanwhile, or None. Whatever this raises ends the actor, and the tickets go to
        other ones. A collector that goes on with prefixes also returns ``version`` in a record: that of its oldest token. Without it, the version is
        the policy's.
        """


@dataclass
class Worked:
    """The counts of an actor's work.

    Attributes:
        tickets: how many tickets it has done. handed_back: how many it has not finished.
        overtaken: how many of both another actor had done before.
        version: the newest policy version that it has used.
    """

    tickets: int = 0
    handed_back: int = 0
    overtaken: int = 0
    version: int = 0


def run_actor(
    address: Any,
    leaves: Mapping[str, Any],
    collector: Collector,
    *,
    table: str = "rollouts",
    timeout: float = 60.0,
    leave: Leave | None = None,
    **options: Any,
) -> Worked:
    """Work until the learner ends the job, or until the actor is told to leave.

    Args:
        address: the learner's address.
        leaves: the example of what ``collector`` returns.
        collector: makes the rollouts.
        table: the name of the table of results.
        timeout: the most seconds that weights, an acknowledgement or a new connection may take. A ticket is waited for as long as the job lasts.
        leave: tells the actor to leave. The tickets that it has then are done, or handed back if the collector returns ``Partial``. With it, the actor asks
            the learner for prefixes of its tickets.
        options: of ``echo_core.Client``, such as ``token``.

    Raises:
        EchoTimeoutError: the learner gave no weights, or took no result, within ``timeout``.
        SpecError: the learner describes its records otherwise, because its echo-rl or its rules are others.
        HandshakeRefused: the learner's echo-core is another version.
        What the collector raises.
    """
    worked = Worked()
    wait: Callable[[], AbstractContextManager[None]] = nullcontext if leave is None else leave.waits
    try:
        connected = Client(address, result_example(leaves), table=table, tables={NAME: example(collector.at_once)}, timeout=timeout, **options)
    except SpecError as error:
        raise SpecError(
            f"this actor does not fit the learner: it has echo-rl {metadata.version('echo-rl')}, protocol {records.PROTOCOL}. {error}. "
            "Install the same echo-rl at both ends, and give both the same rules"
        ) from error
    with connected as client:

        def newer(version: int) -> Policy | None:
            try:
                return client.weights(0.0, newer_than=version)
            except EchoTimeoutError:
                return None

        while True:
            try:
                with wait():
                    lent = TicketTable.take(client, math.inf)
            except (JobEnded, _Left):
                return worked
            except HandshakeRefused:
                raise  # the learner that has come back is another one
            except ConnectionClosedError:
                time.sleep(_AGAIN)  # the learner is restarted, or the connection was lost; then the tickets have gone back
                continue
            try:
                tickets = lent.tickets if leave is None else _still_to_do(client, lent.tickets, timeout)
                policy = client.weights(timeout, newer_than=max(ticket.version for ticket in lent.tickets) - 1)
                made = list(zip(tickets, collector.collect(tickets, policy, newer), strict=True)) if tickets else []
                for ticket, record in made:
                    if not isinstance(record, Partial):
                        client.send(result(record, ticket.number, policy.version), timeout)
                client.wait(timeout)
                back = [(ticket, partial.prefix) for ticket, partial in made if isinstance(partial, Partial)]
                _hand_back(client, back, timeout)
                done = TicketTable.done(client, lent)
            except JobEnded:
                return worked
            except _Lost:
                continue
            worked.tickets, worked.handed_back = worked.tickets + len(made) - len(back), worked.handed_back + len(back)
            worked.overtaken += 0 if done else len(made)
            worked.version = policy.version


def _still_to_do(client: Client, tickets: Sequence[Ticket], timeout: float) -> list[Ticket]:
    """The tickets without those that are done, or handed back, by another actor; with their prefixes."""
    body, blob = _requested(client, PREFIX, {"tickets": [[ticket.number, ticket.part] for ticket in tickets]}, b"", timeout)
    found, at = [], 0
    for ticket, (part, size) in zip(tickets, body["parts"], strict=True):
        if part is not None:
            found.append(replace(ticket, part=part, prefix=blob[at : at + size]))
            at += size
    return found


def _hand_back(client: Client, back: Sequence[tuple[Ticket, bytes]], timeout: float) -> None:
    """All in one request, so that one actor gets them together."""
    if back:
        parts = [[ticket.number, ticket.part, len(prefix)] for ticket, prefix in back]
        _requested(client, HAND_BACK, {"parts": parts}, b"".join(prefix for _, prefix in back), timeout)


def _requested(client: Client, op: str, body: dict[str, Any], blob: bytes, timeout: float) -> tuple[dict[str, Any], bytes]:
    try:
        return client.request(op, body, blob, timeout)
    except (JobEnded, HandshakeRefused):
        raise
    except ConnectionClosedError as error:
        raise _Lost from error
