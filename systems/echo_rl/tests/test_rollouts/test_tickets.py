"""Tickets, against a model in plain Python and over random histories of actors that are slow, die, leave in the middle and report twice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_core import ConfigError
from echo_rl.rollouts.tickets import Tickets


@dataclass
class Lent:
    """A copy of a ticket in the queue or in an actor's hands, and what the copy's actor has made: the version of each token."""

    number: int
    part: int
    made: list[int] = field(default_factory=list)
    taken: bool = False


def run(
    batch: int,
    eta: int,
    updates: int,
    seed: int,
    *,
    ordered: bool = False,
    deaths: float = 0.1,
    twice: float = 0.1,
    restarts: float = 0.02,
    leaves: float = 0.2,
    copies: float = 0.1,
) -> Tickets:
    """Let actors work in a random order, token by token; some leave in the middle, and some die after that, so that the old copy comes back.

    Each result is checked: no ticket is trained twice, none is older than `eta`, and its tokens are those that its actors have made, in their order.
    """
    generator = random.Random(seed)
    tickets = Tickets(batch, eta, ordered=ordered)
    queue: list[Lent] = []
    prefixes: dict[tuple[int, int], list[int]] = {}  # by number and part: what the model knows of each prefix that was taken
    trained: dict[int, int] = {}
    refused = delivered = late = handed_back = 0
    while tickets.version <= updates:
        queue += [Lent(ticket.number, ticket.part) for ticket in tickets.issue(lambda number: number + 1000)]
        assert tickets.room == 0
        if queue and generator.random() > deaths:  # an actor that dies leaves its ticket in the queue, without what it has made
            lent = queue.pop(generator.randrange(len(queue)))
            if not lent.taken:
                found = tickets.lent(lent.number, lent.part) if lent.part else None
                if lent.part and found is None:
                    continue  # of no more use
                lent.part = lent.part if found is None else found.part
                lent.made, lent.taken = list(found.prefix) if found is not None else [], True
                assert lent.made == prefixes.get((lent.number, lent.part), [])
            length = 1 + lent.number % 5
            lent.made += [tickets.version] * generator.randint(0, length - len(lent.made))
            if len(lent.made) < length and generator.random() < leaves:
                again = tickets.hand_back(lent.number, lent.part, bytes(lent.made))
                if again is None:
                    refused += 1
                else:
                    handed_back += 1
                    assert again.part > lent.part and again.version <= min(lent.made, default=tickets.version)
                    prefixes[again.number, again.part] = list(lent.made)
                    queue.append(Lent(again.number, again.part))
                if generator.random() < copies:  # it died before it could say that the copy is done
                    queue.append(Lent(lent.number, lent.part))
            elif len(lent.made) < length:
                queue.append(lent)  # it works on
            else:
                for _ in range(1 + (generator.random() < twice)):
                    delivered += 1
                    late += not tickets.arrive(lent.number, lent.made)
        if generator.random() < restarts:
            state, tickets = tickets.state(), Tickets(batch, eta, ordered=ordered)
            tickets.restore(state)
            queue = [Lent(ticket.number, ticket.part) for ticket in tickets.issue_again()]
        groups = tickets.take()
        if groups is None:
            assert queue, f"nobody works, and the learner waits for {tickets.missing()}"
            continue
        assert len(groups) == batch
        for group in groups:
            number = group.ticket.number
            assert group.ticket.task == 1000 + number and number not in trained
            assert len(group.rollouts) == 1 + number % 5 and group.rollouts == sorted(group.rollouts), "whole, and each actor goes on with a newer policy"
            assert group.ticket.version <= min(group.rollouts) and 0 <= tickets.version - min(group.rollouts) <= eta
            assert tickets.version - group.ticket.version <= eta and not group.ticket.prefix
            trained[number] = tickets.version
        if ordered:
            assert [group.ticket.number for group in groups] == list(range((tickets.version - 1) * batch, tickets.version * batch))
        tickets.updated()
    assert tickets.duplicates == refused + late and delivered - late == len(trained) + tickets.arrived and tickets.handed_back == handed_back
    assert sum(tickets.lags.values()) == len(trained) == updates * batch
    return tickets


@settings(max_examples=300, deadline=None)
@given(batch=st.integers(1, 6), eta=st.integers(0, 4), seed=st.integers(0, 2**32), ordered=st.booleans())
def test_no_group_is_too_old_none_is_lost_and_none_is_trained_twice(batch: int, eta: int, seed: int, ordered: bool) -> None:
    run(batch, eta, 12, seed, ordered=ordered)


def test_a_slow_actor_does_not_make_its_group_too_old() -> None:
    tickets = Tickets(batch=2, eta=2)
    slow = tickets.issue()[0]
    while (groups := tickets.take()) is not None or tickets.missing() != [slow]:
        if groups is not None:
            tickets.updated()
            tickets.issue()
        for ticket in tickets.outstanding:
            if ticket.number != slow.number:
                tickets.arrive(ticket.number, None)
    assert tickets.version == slow.version + 2  # all others were trained meanwhile, and now the learner waits for this one
    tickets.arrive(slow.number, None)
    taken = tickets.take()
    assert taken is not None and taken[0].ticket == slow


def test_without_staleness_every_group_is_of_the_present_version() -> None:
    assert set(run(4, 0, 20, seed=1).lags) == {0}


def test_prefixes_go_from_actor_to_actor_and_a_copy_of_an_earlier_part_is_of_no_use() -> None:
    assert run(4, 2, 20, seed=3, leaves=0.7).handed_back > 40
    tickets = Tickets(batch=2, eta=1)
    tickets.issue()
    second = tickets.hand_back(1, 0, b"ab")
    assert second is not None and (second.part, second.prefix, second.version) == (1, b"ab", 1) and tickets.lent(1, 1) == second
    assert tickets.lent(1, 0) is None and tickets.hand_back(1, 0, b"x") is None and tickets.duplicates == 1
    restored = Tickets(batch=2, eta=1)
    restored.restore(tickets.state())
    issued = {ticket.number: ticket for ticket in restored.issue_again()}
    assert (issued[1].attempt, issued[1].part, issued[1].prefix) == (1, 1, b"ab") and issued[0].prefix == b""
    later = restored.hand_back(1, 4, b"abcd")  # of a learner that was killed after its last checkpoint
    assert later is not None and later.part == 5
    assert restored.arrive(1, "whole") and restored.lent(1, 5) is None and restored.hand_back(1, 5, b"y") is None
    with pytest.raises(ValueError, match="ticket 4, but only 4"):
        restored.hand_back(4, 0, b"")


def test_a_result_without_a_ticket_is_refused() -> None:
    tickets = Tickets(2)
    tickets.issue()
    with pytest.raises(ValueError, match="ticket 4, but only 4"):
        tickets.arrive(4, None)


@pytest.mark.parametrize(
    ("arguments", "name"), [({"batch": 0}, "batch"), ({"batch": 2.0}, "batch"), ({"batch": 2, "eta": -1}, "eta"), ({"batch": 2, "eta": True}, "eta")]
)
def test_wrong_arguments_are_named(arguments: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Tickets(**arguments)  # type: ignore[arg-type]


def test_a_checkpoint_of_another_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="eta=2, and this run has eta=1"):
        Tickets(2, 1).restore(Tickets(2, 2).state())
