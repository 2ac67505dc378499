"""Measure what it costs a model to compute the rest of a sequence whose prefix is cached."""

import time

from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine.forward import decode_and_prefill
from echo_rl.engine.model import Model
from echo_rl.engine.pool import BlockPool, token_bytes
from echo_rl.engine.radix import RadixIndex

UNMEASURED = CalibratedCost(c0=1e-3, c1=1e-4, c2=1e-8)
"""Seconds that a scheduler assumes while nobody has measured."""


def measure(model: Model, seconds: float = 2.0) -> CalibratedCost:
    """Compute prompts of several lengths, with and without cached prefixes, for about ``seconds``, and return the fitted cost in seconds.

    Raise ValueError if the model's context is below 8 tokens, since three different lengths don't fit.
    """
    longest = min(model.config.context, 2048)
    if longest < 8:
        raise ValueError(f"context={model.config.context} is too short to measure a cost; it must be at least 8")
    cases = [(length, reused) for length in (longest // 8, longest // 4, longest // 2, longest) for reused in (0, length // 2)]
    # The fastest of the repetitions is kept: a busy machine only ever adds time.
    best: dict[tuple[int, int], float] = {}
    for case in cases:
        _prefill(model, *case)
    end = time.perf_counter() + seconds
    while len(best) < len(cases) or time.perf_counter() < end:
        for case in cases:
            best[case] = min(_prefill(model, *case), best.get(case, float("inf")))
    found = CalibratedCost.fit([length for length, _ in best], [reused for _, reused in best], list(best.values()))
    # Noise can make a small coefficient negative; a cost must grow with the work.
    return CalibratedCost(max(found.c0, 0.0), max(found.c1, 1e-9), max(found.c2, 0.0))


def _prefill(model: Model, length: int, reused: int) -> float:
    tree = RadixIndex(BlockPool(model.config, (length + 16) * token_bytes(model.config), model.device))
    if reused:
        prefix, _ = tree.insert([0] * reused)
        prefix.filled = reused
    node, _ = tree.insert([0] * length)
    begin = time.perf_counter()
    decode_and_prefill(model, tree.pool, [], [(node, 0, length - reused)]).sum().item()
    return time.perf_counter() - begin
