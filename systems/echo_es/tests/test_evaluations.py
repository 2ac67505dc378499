"""How a worker may divide the individuals in its report: in any way in which each has exactly one reward."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from echo_es.search.checking import rewards_of
from echo_es.search.tasks import Kind, Member, RefusedError, Task
from echo_es.server import ESServer
from echo_es.workers.evaluation import Eval, checked
from echo_es.workers.worker import Worker

WAIT = 60


def numbers(slices: Iterable[slice]) -> list[int]:
    return [number for part in slices for number in range(part.start, part.stop)]


def divided(chance: random.Random, individuals: list[int]) -> list[slice]:
    """These individuals as slices: neighbours are joined or not, the order is any, and some slices are empty."""
    parts: list[slice] = []
    for number in sorted(individuals):
        if parts and parts[-1].stop == number and chance.random() < 0.5:
            parts[-1] = slice(parts[-1].start, number + 1)
        else:
            parts.append(slice(number, number + 1))
    chance.shuffle(parts)
    return parts + [slice(3, 3)] * chance.randrange(2)


@pytest.mark.parametrize("seed", range(200))
def test_any_division_is_put_in_order_and_any_other_individuals_are_refused(seed: int) -> None:
    chance = random.Random(seed)
    asked = chance.sample(range(30), chance.randint(1, 12))
    task = Task(1, Kind.EVALUATE, 1, 0, tuple(divided(chance, asked)))
    member = Member("w", "w", 12)
    given = divided(chance, asked)
    assert rewards_of(member, task, [float(number) for number in numbers(given)], given).tolist() == numbers(task.slices)
    other = [*asked]
    other[chance.randrange(len(other))] = chance.choice([number for number in range(31) if number not in asked])
    twice = [*asked[1:], asked[-1]]
    for wrong in [other] + [twice] * (len(asked) > 1):
        slices = [slice(number, number + 1) for number in wrong]
        with pytest.raises(RefusedError, match="exactly one reward for each"):
            rewards_of(member, task, [0.0] * len(asked), slices)


@pytest.mark.parametrize("given", [[slice(0, 6), slice(6, 4)], [slice(-4, 0)], [slice(2**80, 2**80 + 4)], [slice(0, 2**40), slice(2**40, 4)], []])
def test_slices_that_are_impossible_are_refused(given: list[slice]) -> None:
    with pytest.raises(RefusedError, match="exactly one reward for each"):
        rewards_of(Member("w", "w", 4), Task(1, Kind.EVALUATE, 1, 0, (slice(0, 4),)), [0.0] * 4, given)


def test_a_refusal_of_many_slices_is_short() -> None:
    task = Task(1, Kind.EVALUATE, 1, 0, (slice(0, 10_000),))
    with pytest.raises(RefusedError, match="0:1, .* and 9991 more; give exactly") as refused:
        rewards_of(Member("w", "w", 10_000), task, [0.0] * 9_999, [slice(number, number + 1) for number in range(9_999)])
    assert len(str(refused.value)) < 300


REPORTS: dict[str, Callable[[list[slice]], Any]] = {
    "as given": lambda slices: [Eval(part, [float(i) for i in numbers([part])]) for part in slices],
    "reversed": lambda slices: [Eval(part, [float(i) for i in numbers([part])]) for part in slices][::-1],
    "each alone": lambda slices: [Eval(slice(i, i + 1), [float(i)]) for i in numbers(slices)][::-1],
    "as one": lambda slices: [Eval(slice(slices[0].start, slices[-1].stop), [float(i) for i in numbers(slices)])],
    "arrays": lambda slices: [Eval(slice(np.int64(part.start), np.int32(part.stop)), np.arange(part.start, part.stop)) for part in slices],  # type: ignore[arg-type]
    "a generator": lambda slices: (Eval(part, (float(i) for i in numbers([part]))) for part in slices),  # type: ignore[arg-type]
}


class Reporting(Worker[dict[str, float]]):
    heard: list[float]

    def __init__(self, address: str, report: Callable[[list[slice]], Any]) -> None:
        super().__init__(address, cores=6)
        self.report = report

    def initialize(self) -> dict[str, float]:
        return {"epochs": 0.0}

    def evaluate(self, epoch: int, slices: list[slice]) -> Any:
        return self.report(slices)

    def optimize(self, epoch: int, rewards: list[float]) -> dict[str, float]:
        self.heard = rewards
        return {"epochs": float(epoch)}


@pytest.mark.needs("echo-tcp")
@pytest.mark.parametrize("report", REPORTS)
def test_rewards_reach_their_individuals_over_echo(report: str) -> None:
    with ESServer(6, "tcp://127.0.0.1:0", max_epochs=2) as server:
        worker = Reporting(str(server.address), REPORTS[report])
        asyncio.run(asyncio.wait_for(worker.start(), WAIT))
        assert worker.heard == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert server.stats()["es/refused_total"] == 0


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (None, TypeError, "evaluate returned None; return a list of Eval"),
        (1.5, TypeError, "an object of the type float; return a list of Eval"),
        ([{"slice": slice(0, 1), "rewards": [1.0]}], TypeError, "contains an object of the type dict; each element must be an Eval"),
        (Eval(slice(0, 1), [1.0]), TypeError, "each element must be an Eval"),
        ([Eval(slice(None, 1), [1.0])], TypeError, "needs a start and a stop"),
        ([Eval(slice(0, 2), 7)], TypeError, "not real numbers: 7"),  # type: ignore[arg-type]
        ([Eval(slice(0, 1), [None])], TypeError, "not real numbers"),  # type: ignore[list-item]
        ([Eval(slice(0, 1), [1j])], TypeError, "not real numbers"),  # type: ignore[list-item]
        ([Eval(slice(0, 1), ["1"])], TypeError, "not real numbers"),  # type: ignore[list-item]
        ([Eval(slice(0, 3), [1.0, 2.0]), Eval(slice(3, 5), [3.0, 4.0, 5.0])], ValueError, r"shape \(2,\) for the 3 individuals"),
        ([Eval(slice(0, 2), np.ones((2, 1)))], ValueError, r"shape \(2, 1\)"),  # type: ignore[arg-type]
        ([Eval(slice(0, 4, 2), [1.0, 2.0])], ValueError, "one number for each individual"),
        ([Eval(slice(2, 0), [])], ValueError, "for the 0 individuals"),
    ],
)
def test_what_is_no_list_of_evals_is_refused_by_name(returned: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        checked(returned)
