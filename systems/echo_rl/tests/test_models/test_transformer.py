"""The trainable model computes what the engine computes, and every parameter is trained."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from echo_rl.engine import Engine, Model, ModelConfig  # noqa: E402
from echo_rl.engine.families.config import RopeScaling  # noqa: E402
from echo_rl.models import TrainableTransformer  # noqa: E402

SIZE = {"vocab": 40, "layers": 2, "heads": 4, "width": 32, "inner": 48, "context": 64}
CONFIGS = {
    "gpt2": ModelConfig("gpt2", **SIZE),
    "gpt2, untied, own scales": ModelConfig("gpt2", **SIZE, tied=False, plain_scores=True, scores_by_layer=True),
    "llama": ModelConfig("llama", **SIZE, kv_heads=2, bias=True, mlp_bias=True, scaling=RopeScaling("linear", 2.0)),
    "mistral": ModelConfig("mistral", **SIZE, kv_heads=2, tied=False),
    "qwen2": ModelConfig("qwen2", **SIZE, kv_heads=1),
    "qwen3": ModelConfig("qwen3", **SIZE, kv_heads=2, head_dim=16),
    "smollm3": ModelConfig("smollm3", **SIZE, no_rope=(1,)),
}
LENGTHS = [5, 1, 9, 5, 0, 12]


def model(config: ModelConfig, **options: bool) -> TrainableTransformer:
    """Return a model whose norms and biases are random too."""
    found = TrainableTransformer.random(config, scale=0.3, **options)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return found


def packed() -> tuple[torch.Tensor, torch.Tensor]:
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0)
    return torch.randint(0, 40, (int(cu_seqlens[-1]),), generator=torch.Generator().manual_seed(1)), cu_seqlens


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_those_of_the_engine(name: str) -> None:
    trained = model(CONFIGS[name])
    served = Model(trained.config, trained.weights())
    assert set(served.weights) == {name for name, _ in trained.named_parameters()}
    engine = Engine(served, slots=4, room=16)
    requests = [engine.submit(list(range(3, 3 + n)), 10, temperature=0.7, seed=n) for n in (2, 7, 4)]
    engine.run()
    tokens = torch.tensor([token for request in requests for token in request.tokens])
    cu_seqlens = torch.tensor([0, *(len(request.tokens) for request in requests)]).cumsum(0)
    scores = trained.score(tokens, cu_seqlens, 0.7)
    assert scores.values is None
    for request, end in zip(requests, cu_seqlens[1:].tolist(), strict=True):
        torch.testing.assert_close(scores.log_probs[end - 10 : end].detach(), torch.tensor(request.logprobs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_sequences_do_not_see_each_other(name: str) -> None:
    trained, (tokens, cu_seqlens) = model(CONFIGS[name], value_head=True), packed()
    with torch.no_grad():
        whole, scores = trained(tokens, cu_seqlens), trained.score(tokens, cu_seqlens, 2.0)
        assert whole.shape == (sum(LENGTHS), 40) and scores.values is not None and scores.values.shape == (sum(LENGTHS),)
        for begin, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
            if begin == end:
                continue
            alone = trained(tokens[begin:end], torch.tensor([0, end - begin]))
            torch.testing.assert_close(whole[begin:end], alone, atol=1e-5, rtol=1e-5)
            assert scores.log_probs[begin] == scores.entropy[begin] == 0
            for i in range(begin + 1, end):
                choices = torch.distributions.Categorical(logits=whole[i - 1] / 2.0)
                torch.testing.assert_close(scores.log_probs[i], choices.log_prob(tokens[i]), atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(scores.entropy[i], choices.entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_reach_every_parameter_and_are_right(name: str) -> None:
    trained, (tokens, cu_seqlens) = model(CONFIGS[name], value_head=True).double(), packed()

    def loss() -> torch.Tensor:
        scores = trained.score(tokens, cu_seqlens)
        assert scores.values is not None
        return (scores.log_probs * torch.linspace(-1, 1, len(tokens), dtype=torch.float64)).sum() + (scores.values - 1).pow(2).sum()

    loss().backward()
    for number, (called, parameter) in enumerate(trained.named_parameters()):
        assert parameter.grad is not None, called
        if "k_proj.bias" not in called:  # it changes all scores of a query alike, up to rotation
            assert parameter.grad.abs().max() > 0, called
        if number % 3:
            continue
        index = int(parameter.grad.abs().argmax())
        with torch.no_grad():
            found = []
            for step in (1e-5, -2e-5):
                parameter.view(-1)[index] += step
                found.append(float(loss()))
            parameter.view(-1)[index] += 1e-5
        assert (found[0] - found[1]) / 2e-5 == pytest.approx(float(parameter.grad.view(-1)[index]), rel=1e-3, abs=1e-4), called


def test_wrong_input_is_refused() -> None:
    trained = TrainableTransformer.random(CONFIGS["llama"])
    tokens = torch.arange(10)
    for cu_seqlens in ([0, 9], [1, 10], [0, 12, 10]):
        with pytest.raises(ValueError, match="cu_seqlens must ascend"):
            trained(tokens, torch.tensor(cu_seqlens))
    with pytest.raises(ValueError, match="context is 64"):
        trained(torch.zeros(65, dtype=torch.long), torch.tensor([0, 65]))
    with pytest.raises(ValueError, match=r"the model knows 0 \.\. 39"):
        trained(tokens + 31, torch.tensor([0, 10]))
    weights = trained.weights()
    weights["layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj\.weight"):
        TrainableTransformer(CONFIGS["llama"], weights)
