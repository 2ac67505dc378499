"""Which task a worker gets next. Nothing here waits, and the coordinator's lock is held."""

from __future__ import annotations

from collections.abc import Mapping

from .progress import Progress
from .tasks import Kind, Member, Task

__all__ = ["choose"]


def choose(search: Progress, member: Member, members: Mapping[str, Member], max_slices: int) -> Task | None:
    """The task that fits the worker, or None if it has to wait. The individuals of the task are not free any more."""
    if search.phase == "over":
        return search.task(Kind.STOP)
    if search.server_optimizes:
        member.version = search.version
    elif (task := _for_its_state(search, member, members)) is not None:
        return task
    elif member.version is None or search.phase != "evaluate" or member.version < search.epoch - 1:
        return None
    return _to_evaluate(search, member, max_slices) if search.phase == "evaluate" else None


def _for_its_state(search: Progress, member: Member, members: Mapping[str, Member]) -> Task | None:
    """The task by which a worker that optimises gets the newest state, or shares its own."""
    if member.version is None:
        if search.version < 0 and search.sharer is None:
            search.sharer = member
            return search.task(Kind.INITIALIZE, version=0)
        if search.version < 0:
            return None
        if search.phase != "evaluate" and any(other.version is not None for other in members.values()):
            return None  # its state is about to be replaced by one of theirs; if they have all left, it optimises itself
        return _welcome(search, member)
    if member.version < search.epoch - (search.phase in ("initialize", "evaluate")):
        return _catch_up(search, member)
    if search.phase in ("optimize", "share") and search.sharer is None and search.version < member.version:
        search.sharer, search.phase = member, "share"
        return search.task(Kind.SHARE, version=member.version)
    return None


def _catch_up(search: Progress, member: Member) -> Task:
    """The first epoch that the worker has not optimised yet, or the whole state if its rewards are not kept any more."""
    assert member.version is not None
    for epoch, rewards in search.told:
        if epoch == member.version + 1:
            return search.task(Kind.OPTIMIZE, epoch=epoch, version=member.version, rewards=rewards)
    return _welcome(search, member)


def _welcome(search: Progress, member: Member) -> Task:
    member.version = search.version
    return search.task(Kind.WELCOME, state=search.state)


def _to_evaluate(search: Progress, member: Member, max_slices: int) -> Task | None:
    test = search.test
    if test is not None and test.episodes.free and member.tests:
        task = search.task(Kind.TEST, test.episodes.take(member.cores, max_slices), state=test.state)
        test.tasks.add(task.id)
        return task
    if search.endless is not None:
        return search.task(Kind.EVALUATE, search.endless.take(member.cores, max_slices))
    if search.now.free:
        return search.task(Kind.EVALUATE, search.now.take(member.cores, max_slices))
    return None
