"""An engine that computes with a trainer's own parameters."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from echo_rl.engine import Engine, Model, ModelConfig, Request  # noqa: E402
from echo_rl.engine.linear import PlainLinear  # noqa: E402
from echo_rl.models import SharedModel, TrainableTransformer  # noqa: E402

SIZE = {"vocab": 40, "layers": 2, "heads": 4, "width": 32, "inner": 48, "context": 64}
CONFIGS = {
    "gpt2": ModelConfig("gpt2", **SIZE),
    "llama, untied, biases": ModelConfig("llama", **SIZE, kv_heads=2, tied=False, bias=True, mlp_bias=True),
    "qwen3": ModelConfig("qwen3", **SIZE, kv_heads=2, head_dim=16),
}
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, n] for n in range(4)]


def submitted(engine: Engine, **options: float) -> list[Request]:
    return [engine.submit(prompt, 8, seed=n, **options) for n, prompt in enumerate(PROMPTS)]  # type: ignore[arg-type]


def memory(shared: SharedModel) -> set[int]:
    """Return the addresses of all weights that the products and lookups of a model read."""
    found, todo = set(), [shared._blocks, shared._head]
    while todo:
        each = todo.pop()
        if isinstance(each, torch.Tensor):
            found.add(each.data_ptr())
        elif isinstance(each, dict):
            todo += [value for key, value in each.items() if key != "_frequencies"]  # of the rotary positions; they are no weights
        elif isinstance(each, (list, tuple)):
            todo += each
        elif isinstance(each, PlainLinear) or type(each).__module__.startswith("echo_rl.engine.families"):
            todo.append(vars(each))
    return found


def step(module: TrainableTransformer, optimizer: torch.optim.Optimizer, requests: list[Request]) -> None:
    """Take a training step on what the requests made."""
    tokens = torch.tensor([token for request in requests for token in request.tokens])
    cu_seqlens = torch.tensor([0, *(len(request.tokens) for request in requests)]).cumsum(0)
    optimizer.zero_grad()
    module.score(tokens, cu_seqlens).log_probs.sum().neg().backward()
    optimizer.step()


def check(module: TrainableTransformer, requests: list[Request], version: int) -> None:
    """Compare the engine's log-probabilities with the trainer's."""
    for request in requests:
        with torch.no_grad():
            scores = module.score(torch.tensor(request.tokens), torch.tensor([0, len(request.tokens)]))
        torch.testing.assert_close(scores.log_probs[-len(request.output) :], torch.tensor(request.logprobs), atol=1e-5, rtol=0)
        assert set(request.versions) == {version}


@pytest.mark.parametrize(("name", "optimizer"), [*((name, "adam") for name in CONFIGS), *(("gpt2", kind) for kind in ("fused", "foreach", "sgd"))])
def test_a_training_step_is_seen_and_nothing_is_copied(name: str, optimizer: str) -> None:
    module = TrainableTransformer.random(CONFIGS[name], scale=0.3)
    options = {"fused": {"fused": True}, "foreach": {"foreach": True}}.get(optimizer, {})
    # SGD does not bound the size of a step, and with a larger rate these weights grow without end on some processors.
    kind, rate = (torch.optim.SGD, 1e-3) if optimizer == "sgd" else (torch.optim.AdamW, 0.05)
    optimiser = kind(module.parameters(), lr=rate, **options)
    shared = SharedModel(module)
    engine = Engine(shared, slots=4, room=16, version=7)
    for version in (7, 8, 9):
        ours = submitted(engine)
        engine.run()
        check(module, ours, version)
        # The last prompt's own token and the others' are new; what came before it is in the tree already.
        again = engine.submit(PROMPTS[0], 2)
        engine.run()
        assert again.cached == len(PROMPTS[0]) - 1 and engine.version == version
        tokens_before = engine.stats()["flushed_tokens"]
        for _ in range(3):
            step(module, optimiser, ours)
        late = engine.submit(PROMPTS[0], 2)
        engine.run()
        assert late.cached == 0 and late.versions == [version + 1] * 2 and engine.stats()["flushed_tokens"] > tokens_before
        assert memory(shared) == {module.get_parameter(name).data_ptr() for name in module.names}


def test_a_step_between_two_tokens_changes_the_version_of_the_rest() -> None:
    module = TrainableTransformer.random(CONFIGS["qwen3"], scale=0.3)
    engine = Engine(SharedModel(module), slots=4, room=16)
    requests = submitted(engine)
    for _ in range(3):
        engine.step()
    made = len(requests[0].output)
    with torch.no_grad():
        module.get_parameter("norm.weight").mul_(2.0)
    engine.run()
    assert requests[0].versions == [0] * made + [1] * (8 - made)
    tail = requests[0].tokens
    with torch.no_grad():
        scores = module.score(torch.tensor(tail), torch.tensor([0, len(tail)]))
    torch.testing.assert_close(scores.log_probs[made - 8 :], torch.tensor(requests[0].logprobs[made:]), atol=1e-5, rtol=0)


def test_the_version_may_be_named_and_an_own_copy_may_follow() -> None:
    module = TrainableTransformer.random(CONFIGS["gpt2"], scale=0.3)
    shared = SharedModel(module)
    engine = Engine(shared, slots=4, room=16)
    module.load_state_dict(TrainableTransformer.random(CONFIGS["gpt2"], 1, scale=0.3).state_dict())
    engine.update_weights(shared, 12)
    requests = submitted(engine)
    engine.run()
    check(module, requests, 12)
    copied = Engine(Model(module.config, module.weights()), slots=4, room=16)
    same = submitted(copied)
    copied.run()
    assert [r.output for r in same] == [r.output for r in requests]
    engine.update_weights(module.weights(), 13)
    with torch.no_grad():
        module.get_parameter("wte.weight").zero_()
    after = submitted(engine)
    engine.run()
    assert [r.output for r in after] == [r.output for r in requests] and set(after[0].versions) == {13}


def test_a_replaced_parameter_is_found() -> None:
    module = TrainableTransformer.random(CONFIGS["gpt2"], scale=0.3)
    engine = Engine(SharedModel(module), slots=4, room=16)
    module.wte.weight = torch.nn.Parameter(module.wte.weight.detach().flip(0))
    requests = submitted(engine)
    engine.run()
    check(module, requests, 1)
    module.wpe.weight.data = module.wpe.weight.detach().flip(0).clone()
    requests = submitted(engine)
    engine.run()
    check(module, requests, 2)


def test_what_an_engine_cannot_use_is_named_and_may_be_mended() -> None:
    module = TrainableTransformer.random(CONFIGS["gpt2"], scale=0.3)
    engine = Engine(SharedModel(module), slots=4, room=16)
    requests = submitted(engine)
    engine.step()
    good = module.ln_f.weight.detach().clone()
    with torch.no_grad():
        module.ln_f.weight[3] = float("nan")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"the shared weight 'ln_f\.weight' holds a number that is not finite"):
            engine.step()
    assert engine.version == 0 and engine.live == 4
    with torch.no_grad():
        module.ln_f.weight.copy_(good)
    engine.run()
    assert {len(r.output) for r in requests} == {8} and engine.pool.used == 0
    with pytest.raises(ValueError, match=r"'wte\.weight' is torch\.float64"):
        SharedModel(TrainableTransformer.random(CONFIGS["gpt2"]).double())
    with torch.inference_mode():
        made = TrainableTransformer.random(CONFIGS["gpt2"])
    with pytest.raises(ValueError, match="made under inference_mode"):
        SharedModel(made)


def test_a_change_during_a_step_is_an_error_and_the_next_step_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = TrainableTransformer.random(CONFIGS["llama, untied, biases"], scale=0.3)
    shared = SharedModel(module)
    engine = Engine(shared, slots=4, room=16)
    requests = submitted(engine)
    engine.step(), engine.step()
    made = len(requests[0].output)
    hidden = shared.hidden

    def beside(*arguments: object) -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            module.get_parameter("norm.weight").mul_(1.5)
        return hidden(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shared, "hidden", beside)
    with pytest.raises(RuntimeError, match="a shared weight changed while the engine computed"):
        engine.step()
    monkeypatch.undo()
    assert len(requests[0].output) == made
    engine.run()
    assert requests[0].versions == [0] * made + [1] * (8 - made)
