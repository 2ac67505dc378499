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
class Copy:
    """A copy of a ticket in the queue or in an actor's hands, and what this actor and those before have made: the version of each token."""

    number: int
    part: int
    versions: list[int] = field(default_factory=list)


def run(batch: int, eta: int, updates: int, seed: int, *, ordered: bool = False, leave: float = 1.0) -> Tickets:
    """Let actors begin, take newer weights, die, leave in the middle, finish, and report twice, and the learner be restarted, in a random order.

    The model is a few collections: the tickets in the queue, the tokens of each actor and of each prefix, and the tickets that are trained.
    """
    generator = random.Random(seed)
    tickets = Tickets(batch, eta, ordered=ordered)
    queue: list[Copy] = []
    working: list[Copy] = []
    prefixes: dict[tuple[int, int], list[int]] = {}  # by number and part
    trained: dict[int, int] = {}
    done: set[int] = set()
    refused = late = delivered = handed_back = 0

    def one_of(copies: list[Copy]) -> Copy:
        return copies.pop(generator.randrange(len(copies)))

    while tickets.version <= updates:
        queue += [Copy(ticket.number, ticket.part) for ticket in tickets.issue(lambda number: number + 1000)]
        assert tickets.room == 0
        event = generator.choices(["begin", "swap", "die", "leave", "finish", "restart"], [4, 2, 1, leave, 4, 0.2])[0]
        if event == "begin" and queue:
            copy = one_of(queue)
            ticket = tickets.lent(copy.number, copy.part)
            if ticket is None:
                assert copy.number in done or (copy.number, copy.part + 1) in prefixes, "there is nothing left to do for this copy, which is forgotten"
            else:
                assert list(ticket.prefix) == prefixes.get((copy.number, ticket.part), [])
                working.append(Copy(copy.number, ticket.part, [*ticket.prefix, tickets.version]))
        elif event == "swap" and working:
            generator.choice(working).versions.append(tickets.version)
        elif event == "die" and working:
            copy = one_of(working)
            queue.append(Copy(copy.number, copy.part))  # its own tokens are lost, and its ticket goes back as it was
        elif event == "leave" and working:
            copy = one_of(working)
            again = tickets.hand_back(copy.number, copy.part, bytes(copy.versions))
            if again is None:
                assert copy.number in done or (copy.number, copy.part + 1) in prefixes
                refused += 1
            else:
                handed_back += 1
                prefixes[again.number, again.part] = copy.versions
                queue.append(Copy(again.number, again.part))
            if generator.random() < 0.2:  # it died before it could say that its copy is done
                queue.append(Copy(copy.number, copy.part))
        elif event == "finish" and working:
            copy = one_of(working)
            for _ in range(1 + (generator.random() < 0.1)):
                delivered += 1
                late += not tickets.arrive(copy.number, (copy.number, copy.versions))
                done.add(copy.number)
        elif event == "restart":
            state, tickets = tickets.state(), Tickets(batch, eta, ordered=ordered)
            tickets.restore(state)
            # Those who work may still be heard, if they have outlived the restart.
            working = [copy for copy in working if generator.random() < 0.5]
            queue = [Copy(ticket.number, ticket.part) for ticket in tickets.issue_again()]
        # None is lost: somebody has the newest part of each ticket without a result, or can take it.
        assert {(ticket.number, ticket.part) for ticket in tickets.outstanding} <= {(copy.number, copy.part) for copy in [*queue, *working]}
        groups = tickets.take()
        if groups is None:
            continue
        assert len(groups) == batch
        for group in groups:
            number, versions = group.rollouts
            assert number == group.ticket.number and group.ticket.task == 1000 + number and number not in trained and versions == sorted(versions)
            assert group.ticket.version <= min(versions) and 0 <= tickets.version - min(versions) <= tickets.version - group.ticket.version <= eta
            trained[number] = tickets.version
        if ordered:
            assert [group.ticket.number for group in groups] == list(range((tickets.version - 1) * batch, tickets.version * batch))
        tickets.updated()
    assert tickets.state()["issued"] == len(trained) + tickets.arrived + len(tickets.outstanding)
    assert tickets.duplicates == refused + late and delivered - late == len(trained) + tickets.arrived and tickets.handed_back == handed_back
    assert sum(tickets.lags.values()) == len(trained) == updates * batch
    return tickets


@settings(max_examples=1000, deadline=None)
@given(batch=st.integers(1, 6), eta=st.integers(0, 4), seed=st.integers(0, 2**32), ordered=st.booleans())
def test_no_group_is_too_old_none_is_lost_and_none_is_trained_twice(batch: int, eta: int, seed: int, ordered: bool) -> None:
    run(batch, eta, 8, seed, ordered=ordered)


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
    assert run(4, 2, 20, seed=3, leave=6.0).handed_back > 40
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
