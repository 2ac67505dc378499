"""Tickets, against a model in plain Python and over random histories of actors that are slow, die and report twice."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_core import ConfigError
from echo_rl.rollouts.tickets import Tickets


def run(batch: int, eta: int, updates: int, seed: int, *, ordered: bool = False) -> Tickets:
    """Let actors begin, take newer weights, die, finish, and report twice, and the learner be restarted, in a random order.

    The model is a few sets: which tickets are in the queue, which versions each actor's tokens have, and which tickets are trained.
    """
    generator = random.Random(seed)
    tickets = Tickets(batch, eta, ordered=ordered)
    queue: list[int] = []
    working: dict[int, list[int]] = {}  # by ticket: the version of each token so far
    trained: dict[int, int] = {}
    refused = delivered = 0
    while tickets.version <= updates:
        queue += [ticket.number for ticket in tickets.issue(lambda number: number + 1000)]
        assert tickets.room == 0
        event = generator.choices(["begin", "swap", "die", "finish", "restart"], [4, 2, 1, 4, 0.2])[0]
        if event == "begin" and queue:
            number = queue.pop(generator.randrange(len(queue)))
            working[number] = [tickets.version]
        elif event == "swap" and working:
            working[generator.choice(list(working))].append(tickets.version)
        elif event == "die" and working:
            number = generator.choice(list(working))
            del working[number]  # its tokens are lost, and its ticket goes back
            queue.append(number)
        elif event == "finish" and working:
            number = generator.choice(list(working))
            versions = working.pop(number)
            for _ in range(1 + (generator.random() < 0.1)):
                delivered += 1
                refused += not tickets.arrive(number, (number, versions))
        elif event == "restart":
            state, tickets = tickets.state(), Tickets(batch, eta, ordered=ordered)
            tickets.restore(state)
            # Those who work may still be heard, if they have outlived the restart; the others' tickets are the new ones.
            lost = [number for number in working if generator.random() < 0.5]
            for number in lost:
                del working[number]
            assert sorted(ticket.number for ticket in tickets.issue_again()) == sorted({*queue, *working, *lost})
            queue += lost
        groups = tickets.take()
        if groups is None:
            assert queue or working, f"nobody works, and the learner waits for {tickets.missing()}"
            continue
        assert len(groups) == batch
        for group in groups:
            number, versions = group.rollouts
            assert number == group.ticket.number and group.ticket.task == 1000 + number and number not in trained
            assert group.ticket.version <= min(versions) and 0 <= tickets.version - min(versions) <= tickets.version - group.ticket.version <= eta
            trained[number] = tickets.version
        if ordered:
            assert [group.ticket.number for group in groups] == list(range((tickets.version - 1) * batch, tickets.version * batch))
        tickets.updated()
    # None is lost: each ticket that was issued is trained, there, being worked on, or in the queue.
    issued = len(trained) + tickets.arrived + len(working) + len(queue)
    assert issued == tickets.state()["issued"] and sorted({*queue, *working}) == [ticket.number for ticket in tickets.outstanding]
    assert tickets.duplicates == refused == delivered - len(trained) - tickets.arrived
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
