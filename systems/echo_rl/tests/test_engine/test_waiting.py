"""The columns of waiting requests."""

from __future__ import annotations

import random

import pytest

from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine import Engine, Model, ModelConfig


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "hrrn", "bandwidth", "value"])
def test_the_choice_is_that_of_the_formulas(policy: str, configs: dict[str, ModelConfig]) -> None:
    """While requests come, run, end and evict each other's prefixes, each choice has the greatest score that the documented formula gives."""
    rng, now = random.Random(1), [0.0]
    engine = Engine(Model.random(configs["gpt2"]), 3, 16, 160 << 9, policy, seed=0, block=4, clock=lambda: now[0])
    stems = [[rng.randrange(40) for _ in range(20)] for _ in range(4)]
    checked = 0
    for _ in range(60):
        now[0] += rng.random()
        for _ in range(2):
            engine.submit([*rng.choice(stems)[: rng.randrange(1, 20)], rng.randrange(40)], rng.randrange(1, 9), value=rng.choice([0.5, 1.0, 3.0]))
        scheduler, hits = engine.scheduler, {r: engine.tree.match(r.prompt[:-1]) for r in engine.waiting}
        work = {r: scheduler.cost(len(r.prompt), hit) + r.room * (scheduler.cost.c0 / 3 + scheduler.cost.c1) for r, hit in hits.items()}

        def score(r: object, hits: dict = hits, work: dict = work, mean: float = scheduler.mean_wait) -> float:
            wait, t, hit = now[0] - r.arrived, len(r.prompt), hits[r]
            return {
                "fcfs": wait,
                "lpm": hit,
                "hrrn": 1 + wait / work[r],
                "bandwidth": r.value / (t * (t + 1) / 2 - hit * (hit + 1) / 2 + wait + 1e-6),
                "value": r.value * (1 + wait / (mean or 1.0)) / work[r],
            }[policy]

        chosen, oldest = scheduler.choose(engine.waiting, now[0]), min(engine.waiting, key=lambda r: (r.arrived, r.number))
        if scheduler.admitted and now[0] - oldest.arrived > 6 * scheduler.mean_wait > 0:
            assert chosen is oldest
        else:
            assert score(chosen) == pytest.approx(max(map(score, engine.waiting)))
            checked += 1
        engine.step()
    assert checked > 20


@pytest.mark.parametrize("policy", ["hrrn", "value"])
def test_ten_thousand_waiting_requests_cost_no_walk(policy: str, configs: dict[str, ModelConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step looks up, and estimates the cost of, only the requests whose cached tokens it changes: those of the admitted one's family."""
    engine = Engine(Model.random(configs["gpt2"]), 1, 4, scheduler=policy)
    for i in range(10_000):
        engine.submit([i % 40, i // 40 % 40, i // 1600, 5], 1)
    looked_up, estimated = [], []
    match, of = engine.waiting._match, CalibratedCost.of
    monkeypatch.setattr(engine.waiting, "_match", lambda row: (looked_up.append(row), match(row))[1])
    monkeypatch.setattr(CalibratedCost, "of", lambda cost, length, hit: (estimated.append(len(length)), of(cost, length, hit))[1])
    for _ in range(5):
        engine.step()
    assert estimated[0] == 10_000 and 0 < sum(estimated[1:]) < 1000
    assert 0 < len(looked_up) < 1000
    assert all(engine.waiting.column("hit")[row] == engine.tree.match(r.prompt[:-1]) for row, r in enumerate(engine.waiting))
