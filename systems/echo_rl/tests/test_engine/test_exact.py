"""Random mixes of requests give what a computation without any cache gives."""

import os
import random
from collections import Counter

import pytest
import torch

from echo_rl.engine import Engine, Model, ModelConfig, Request
from echo_rl.engine.pool import token_bytes

MIXES = 250 if os.environ.get("ECHO_SOAK_SECONDS") else 20
"""Mixes of each kind of model; a soak run does 500 in all."""


def recomputed(model: Model, tokens: tuple[int, ...]) -> torch.Tensor:
    """Return the (T, vocab) log-probabilities of one sequence by plain causal attention."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).transpose(0, 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True).transpose(0, 1)

    return model.logits(model.hidden(torch.tensor(tokens), torch.arange(len(tokens)), attend)).log_softmax(-1)


def nucleus(logprobs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the likeliest tokens until their probabilities add up to ``top_p``."""
    order = logprobs.argsort(descending=True)
    total = logprobs[order].exp().cumsum(0)
    count = int((total < top_p).sum()) + 1
    kept = torch.full_like(logprobs, float("-inf"))
    kept[order[:count]] = logprobs[order[:count]]
    return kept.log_softmax(-1)


def check_blocks(engine: Engine) -> None:
    """Compare the pool's counters with the blocks that nodes and requests have."""
    pool, nodes, running = engine.pool, list(engine.tree.nodes()), engine.filling + engine.decoding
    held = {block for node in nodes for block in node.blocks}
    used = {block for node in nodes if node.locks for block in node.blocks} | {block for r in running for block in r.reserved}
    assert (len(held), len(used), len(held | used)) == (pool.held, pool.used, pool.count - pool.free)
    assert engine.stats()["used_bytes"] <= engine.kv_bytes
    assert engine.tree.tokens == sum(len(n.tokens) for n in nodes) and engine.tree.count == len(nodes)
    # What a request may write belongs to nobody else.
    theirs = Counter(place for node in nodes for place in pool.places(node.blocks, node.start, node.end))
    own = [pool.places(r.reserved, r.after, r.position + r.room) for r in running]
    theirs.update(place for places in own for place in places)
    assert all(theirs[place] == 1 for places in own for place in places)
    for row, r in enumerate(engine.waiting.requests):
        assert engine.waiting.column("hit")[row] == engine.tree.match(r.prompt[:-1])


def check(request: Request, models: dict[int, Model]) -> None:
    known = {version: recomputed(models[version], request.tokens) for version in set(request.versions)}
    for i, (token, logprob, version) in enumerate(zip(request.output, request.logprobs, request.versions, strict=True)):
        logprobs = known[version][len(request.prompt) - 1 + i]
        if request.temperature:
            logprobs = nucleus((logprobs / request.temperature).log_softmax(-1), request.top_p)
        assert abs(float(logprobs[token]) - logprob) < 1e-4, (request.number, i, version)


@pytest.mark.parametrize("seed", range(MIXES))
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_mix_equals_recomputation(device: str, kind: str, seed: int, configs: dict[str, ModelConfig]) -> None:
    """Also with a small budget, aborts, forks and new versions between tokens. The recomputation is the CPU's, whatever the engine runs on."""
    rng = random.Random(seed)
    models = {0: Model.random(configs[kind], seed, scale=0.3)}
    tokens = rng.choice([90, 200, 5000])
    engine = Engine(
        models[0].to(device),
        rng.choice([1, 3, 8]),
        24,
        tokens * token_bytes(models[0].config),
        rng.choice(["fcfs", "lpm", "hrrn", "bandwidth", "value"]),
        seed,
        chunk=rng.choice([3, 16, 512]),
        block=rng.choice([1, 3, 8, 16]),
    )
    stems = [[rng.randrange(40) for _ in range(rng.randrange(1, 40))] for _ in range(3)]
    requests: list[Request] = []
    for _ in range(60):
        event = rng.random()
        live = [r for r in requests if r.finish is None]
        if event < 0.4:
            prompt = rng.choice(stems)[: rng.randrange(1, 40)] + [rng.randrange(40) for _ in range(rng.randrange(0, 12))]
            requests.append(engine.submit(prompt, rng.randrange(1, 20), temperature=rng.choice([0, 0.7, 1.0]), top_p=rng.choice([0.6, 1.0]), stop=[0]))
        elif event < 0.46 and live:
            assert engine.abort(rng.choice(live))
        elif event < 0.5 and live:
            requests += engine.fork(rng.choice(live), 2, 5)
        elif event < 0.54:
            version = max(models) + 1
            models[version] = Model.random(configs[kind], seed + 1000 * version, scale=0.3)
            engine.update_weights(models[version], version)
        engine.step()
        if event < 0.2:
            check_blocks(engine)
    engine.run()
    check_blocks(engine)
    assert engine.pool.used == 0
    assert not any(n.locks or n.filled < len(n.tokens) for n in engine.tree.nodes())
    if tokens == 90:
        assert engine.stats()["evicted_tokens"] > 0
    for request in requests:
        assert request.finish is not None
        check(request, models)
