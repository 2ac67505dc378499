"""What a scheduler does to a load, in a simulated clock: the real engine computes with a tiny model, and each step takes the time that a cost says."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine.engine import Engine
from echo_rl.engine.model import Model, ModelConfig
from echo_rl.engine.pool import token_bytes
from echo_rl.engine.request import Request

MODEL = ModelConfig("gpt2", vocab=64, layers=1, heads=1, width=4, inner=4, context=4096)


@dataclass(frozen=True)
class Arrival:
    """A request that comes at ``at`` seconds and asks for ``new`` tokens."""

    at: float
    prompt: tuple[int, ...]
    new: int


@dataclass(frozen=True)
class Outcome:
    """Seconds from the first arrival to the last token, each request's seconds from its arrival to its last token, and the token hit rate."""

    makespan: float
    latencies: tuple[float, ...]
    hit_rate: float

    @property
    def mean(self) -> float:
        """The mean latency."""
        return sum(self.latencies) / len(self.latencies)

    @property
    def p99(self) -> float:
        """The latency that 99 of 100 requests do not exceed."""
        return sorted(self.latencies)[int(0.99 * (len(self.latencies) - 1))]


def families(requests: int, seconds: float, *, count: int = 12, shared: int = 512, seed: int = 0) -> list[Arrival]:
    """Requests that arrive evenly spread over ``seconds``; each has one of ``count`` prefixes of ``shared`` tokens, and tokens of its own.

    Their own prompt tokens (8 .. 256) and new tokens (2 .. 128) are log-uniform: many short requests and a few long ones.
    """
    rng = random.Random(seed)
    stems = [tuple(rng.randrange(64) for _ in range(shared)) for _ in range(count)]
    found = []
    for at in sorted(rng.random() * seconds for _ in range(requests)):
        own = tuple(rng.randrange(64) for _ in range(round(8 * 32 ** rng.random())))
        found.append(Arrival(at, rng.choice(stems) + own, round(2 * 64 ** rng.random())))
    return found


def simulate(load: Sequence[Arrival], scheduler: str, *, slots: int = 8, kv_tokens: int = 1 << 18, cost: CalibratedCost | None = None) -> Outcome:
    """Serve a load. A step takes c0 + c1 tokens; the scheduler is told the same cost. The first arrivals should come first."""
    cost = cost or CalibratedCost(1e-3, 5e-5, 0.0)
    now = 0.0
    kv_bytes = kv_tokens * token_bytes(MODEL)
    engine = Engine(Model.random(MODEL), slots, 128, kv_bytes, scheduler, seed=0, cost=cost, clock=lambda: now)
    waiting, ended = list(load)[::-1], dict[Request, float]()
    while waiting or len(ended) < len(load):
        if waiting and not engine.live:
            now = max(now, waiting[-1].at)
        while waiting and waiting[-1].at <= now:
            arrival = waiting.pop()
            engine.submit(arrival.prompt, arrival.new, arrived=arrival.at)
        before = engine.stats()["computed_tokens"]
        done = engine.step()
        now += cost.c0 + cost.c1 * (engine.stats()["computed_tokens"] - before)
        ended |= dict.fromkeys(done, now)
    return Outcome(now - load[0].at, tuple(end - request.arrived for request, end in ended.items()), engine.stats()["hit_rate"])
