"""When a connection gives up a learner that breaks the protocol, and when it takes the fault for damage on the way."""

from __future__ import annotations

from echo_net.network.broken_links import MOST, BrokenLinks


def test_links_in_a_row_without_progress_are_believed() -> None:
    links = BrokenLinks()
    assert [links.believed("messages", 7) for _ in range(MOST)] == [False] * (MOST - 1) + [True]


def test_progress_begins_the_count_anew() -> None:
    links = BrokenLinks()
    assert not any(links.believed("messages", progress) for progress in (1, 1, 2, 2, 3, 3, 4))


def test_each_kind_counts_by_itself() -> None:
    links = BrokenLinks()
    assert not any(links.believed("messages", progress) or links.believed("weights", 0) for progress in range(MOST - 1))
    assert links.believed("weights", 0), "progress of other messages says nothing about weights"
