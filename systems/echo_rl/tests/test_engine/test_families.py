"""Every family computes what transformers computes for the same files, and what it would compute otherwise is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from echo_rl.engine import Engine, Model, ModelConfig

SMALL: dict[str, Any] = {
    "vocab_size": 90, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 7, "bos_token_id": 1,
}  # fmt: skip
GPT2: dict[str, Any] = {"vocab_size": 90, "n_positions": 128, "n_embd": 32, "n_layer": 3, "n_head": 4, "initializer_range": 0.2, "eos_token_id": 7}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2 with relu, untied": ("gpt2", GPT2 | {"activation_function": "relu", "tie_word_embeddings": False, "n_inner": 40}),
    "gpt2 without a scale": ("gpt2", GPT2 | {"scale_attn_weights": False}),
    "gpt2 scaled by layer": ("gpt2", GPT2 | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "llama": ("llama", SMALL),
    "llama tied, gelu": ("llama", SMALL | {"tie_word_embeddings": True, "hidden_act": "gelu", "head_dim": 12}),
    "llama with biases": ("llama", SMALL | {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1": ("llama", SMALL | {"rope_parameters": LLAMA3}),
    "llama, linear": ("llama", SMALL | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}}),
    "mistral": ("mistral", SMALL | {"sliding_window": None}),
    "mistral with a window": ("mistral", SMALL | {"sliding_window": 64}),
    "qwen2": ("qwen2", SMALL),
    "qwen2 with a window": ("qwen2", SMALL | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}),
    "qwen3": ("qwen3", SMALL | {"head_dim": 16}),
    "smollm3": ("smollm3", SMALL),
    "smollm3, own layers": ("smollm3", SMALL | {"no_rope_layers": [0, 1, 1, 0], "tie_word_embeddings": False}),
}


def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).transpose(0, 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True).transpose(0, 1)


def logits(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model.logits(model.hidden(tokens, torch.arange(len(tokens)), attend))


@pytest.mark.parametrize("case", CASES)
def test_a_family_equals_transformers(case: str, tmp_path: Path) -> None:
    """Scores, greedy tokens, and both again after a round trip through ``save``. Some biases and norms are made random first."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.utils.logging.disable_progress_bar()  # it would leave a thread behind
    kind, fields = CASES[case]
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **fields)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = Model.load(tmp_path / "theirs")
    assert ours.generation.ends == (7,)
    tokens = torch.randint(0, 90, (60,))
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
    torch.testing.assert_close(logits(ours, tokens), expected, atol=1e-4, rtol=1e-4)
    engine = Engine(ours, slots=2, room=16)
    request = engine.submit(tokens[:40].tolist(), 16, temperature=0)
    engine.run()
    with torch.no_grad():
        follow = theirs(torch.tensor([request.tokens])).logits[0, 39:-1]
    best = follow.topk(2).values
    sure = (best[:, 0] - best[:, 1]) > 1e-4
    assert torch.equal(follow.argmax(-1)[sure], torch.tensor(request.output)[sure])

    ours.save(tmp_path / "ours")
    again = Model.load(tmp_path / "ours")
    assert again.config == ours.config and again.generation.ends == (7,)
    assert torch.equal(logits(again, tokens), logits(ours, tokens))
    back, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    longer = torch.randint(0, 90, (1, 120))  # beyond the windows, which ``save`` must keep
    with torch.no_grad():
        torch.testing.assert_close(back.eval()(longer).logits, theirs(longer).logits, atol=1e-4, rtol=1e-4)


def folder(path: Path, config: ModelConfig, **fields: Any) -> Path:
    Model.random(config).save(path)
    found = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({name: value for name, value in (found | fields).items() if value is not ...}))
    return path


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"activation_function": "mish"}, "'activation_function' of config.json must be one of"),
        ("gpt2", {"n_layer": 2.5}, "'n_layer' of config.json must be a whole number"),
        ("gpt2", {"n_layer": ...}, "lacks 'n_layer'"),
        ("gpt2", {"a_new_flag": True}, "a_new_flag=True, which the engine does not compute"),
        ("gpt2", {"vocab_size": 10**12}, "GiB of memory are free"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "lack 'factor'"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "beta_fast": 32}}, "beta_fast"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"rms_norm_eps": float("nan")}, "'rms_norm_eps' of config.json"),
        ("llama", {"eos_token_id": 1.5}, "eos_token_id"),
        ("llama", {"model_type": "gemma2"}, "'gemma2' is not supported"),
        ("llama", {"tie_word_embeddings": False}, "lack 'lm_head.weight'"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    ],
)
def test_a_config_that_would_be_computed_wrongly_is_refused(
    kind: str, fields: dict[str, Any], words: str, tmp_path: Path, configs: dict[str, ModelConfig]
) -> None:
    base = configs["gpt2"] if kind == "gpt2" else ModelConfig(kind, vocab=40, layers=2, heads=4, width=32, inner=48)
    path = folder(tmp_path, base, **fields)
    if "eos_token_id" in fields:
        (path / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=words):
        Model.load(path)


def test_a_window_shortens_the_context() -> None:
    with pytest.raises(ValueError, match="context=100 is longer than the sliding window=64"):
        ModelConfig("mistral", vocab=9, layers=1, heads=2, width=4, inner=4, context=100, window=64, window_layers=(0,))
    with pytest.raises(ValueError, match="bias=True is not of the family 'qwen2'"):
        ModelConfig("qwen2", vocab=9, layers=1, heads=2, width=4, inner=4, bias=True)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_weights_are_strict(kind: str, configs: dict[str, ModelConfig]) -> None:
    """By name, shape, dtype and number; an engine whose update is refused goes on with what it had."""
    config = configs[kind]
    head = {"lm_head.weight": torch.randn(40, 32)}
    model = Model(config, Model.random(config).weights | head)
    assert model.config.tied is False
    engine, good = Engine(model, slots=2, room=8), model.weights
    less = {name: value for name, value in good.items() if name != "lm_head.weight"}
    some = next(iter(less))
    wrong: dict[str, dict[str, Any]] = {
        "lack 'lm_head.weight'": less,
        "have 'module.lm_head.weight'": good | {"module.lm_head.weight": head["lm_head.weight"]},
        r"weight 'lm_head.weight' has shape \(8, 32\)": good | {"lm_head.weight": torch.zeros(8, 32)},
        "weight 'lm_head.weight' holds a number that is not finite": good | {"lm_head.weight": head["lm_head.weight"] * float("nan")},
        f"weight '{some}' has dtype torch.int64": good | {some: good[some].long()},
        f"weight '{some}' is of the type list": good | {some: [1]},
        f"have '{some}' twice": good | {("transformer." if kind == "gpt2" else "model.") + some: good[some]},
    }
    for words, params in wrong.items():
        with pytest.raises(ValueError, match=words):
            engine.update_weights(params, 1)
    assert engine.version == 0
    engine.update_weights({name: value.bfloat16() for name, value in good.items()}, 1)
    tied = Model.random(config)
    Model(tied.config, tied.weights | {"lm_head.weight": tied.embedding.clone()})
    with pytest.raises(ValueError, match="tie_word_embeddings is true, but 'lm_head.weight' differs"):
        Model(tied.config, tied.weights | head)


def test_damaged_files_are_named(tmp_path: Path, configs: dict[str, ModelConfig]) -> None:
    path = folder(tmp_path, configs["llama"])
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        Model.load(path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm.weight": "model-2.safetensors"}}))
    with pytest.raises(ValueError, match=r"names model-2.safetensors, which is missing"):
        Model.load(path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm.weight": "../model.safetensors"}}))
    with pytest.raises(ValueError, match="outside of its folder"):
        Model.load(path)


def test_limits_of_generation_come_from_the_files(tmp_path: Path, configs: dict[str, ModelConfig]) -> None:
    path = folder(tmp_path, configs["llama"], eos_token_id=3)
    assert Model.load(path).generation.ends == (3,)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9, 1000], "max_new_tokens": 12, "repetition_penalty": 1.3, "top_k": 50}))
    found = Model.load(path).generation
    assert (found.ends, found.most, dict(found.unused)) == ((5, 9), 12, {"repetition_penalty": 1.3})
