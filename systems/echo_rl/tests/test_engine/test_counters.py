"""The engine's counters tell what happened."""

import random

from echo_rl.engine import Engine, Model, ModelConfig


def test_hits_equal_an_independent_trie(configs: dict[str, ModelConfig]) -> None:
    """Without eviction, every prompt hits as many tokens as the longest prefix that was seen before."""
    rng = random.Random(5)
    engine = Engine(Model.random(configs["gpt2"], scale=0.3), slots=1, room=16)
    seen: set[tuple[int, ...]] = {()}
    hits = asked = 0
    for _ in range(80):
        prompt = tuple(rng.randrange(2) for _ in range(rng.randrange(1, 30)))
        known = prompt[:-1]
        hits += max(n for n in range(len(known) + 1) if known[:n] in seen)
        asked += len(known)
        request = engine.submit(prompt, 4)
        engine.run()
        computed = request.tokens[:-1]
        seen |= {computed[:n] for n in range(len(computed) + 1)}
    stats = engine.stats()
    assert (stats["hit_tokens"], stats["asked_tokens"]) == (hits, asked)
    assert stats["tree_tokens"] == len(seen) - 1


def test_a_new_version_flushes_the_old_ones_keys(configs: dict[str, ModelConfig]) -> None:
    """The first request after a swap hits nothing, and running requests compute their prefix again."""
    model = Model.random(configs["gpt2"], scale=0.3)
    engine = Engine(model, slots=2, room=16)
    request = engine.submit([1, 2, 3, 4, 5], 6)
    for _ in range(4):
        engine.step()
    made = len(request.output)
    engine.update_weights(Model.random(configs["gpt2"], 1, scale=0.3), 1)
    assert not any(node.filled for node in engine.tree.nodes())
    other = engine.submit([9, 8, 7], 2)
    engine.run()
    assert other.cached == 0
    assert request.versions == [0] * made + [1] * (6 - made)


def test_one_prefill_serves_requests_that_arrive_together(configs: dict[str, ModelConfig]) -> None:
    """Sixteen equal prompts of 39 tokens cost one computation of 38 and one decode each per new token."""
    engine = Engine(Model.random(configs["llama"], scale=0.3), slots=16, room=4)
    for _ in range(16):
        engine.submit(range(1, 40), 4)
    engine.run()
    assert engine.stats()["computed_tokens"] == 38 + 16 * 4


def test_a_draw_does_not_depend_on_the_batch(configs: dict[str, ModelConfig]) -> None:
    """A seeded request makes the same tokens alone and among others."""
    model = Model.random(configs["gpt2"], scale=0.3)
    outputs = []
    for others in (0, 7):
        engine = Engine(model, slots=8, room=16)
        request = engine.submit([3, 1, 4], 12, top_p=0.9, seed=11)
        for i in range(others):
            engine.submit([i, 3], 9)
        engine.run()
        outputs.append(request.output)
    assert outputs[0] == outputs[1]
