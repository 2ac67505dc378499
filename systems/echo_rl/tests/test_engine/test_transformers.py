"""The engine's log-probabilities are those of Hugging Face transformers for the same files of weights."""

from pathlib import Path

import pytest
import torch

from echo_rl.engine import Engine, Model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.utils.logging.disable_progress_bar()  # it would leave a thread behind


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_same_logprobs(kind: str, device: str, tmp_path: Path) -> None:
    """For requests that share a prefix, with grouped heads in the Llama."""
    torch.manual_seed(0)
    if kind == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=90, n_positions=128, n_embd=48, n_layer=3, n_head=4, initializer_range=0.2))
    else:
        config = transformers.LlamaConfig(
            vocab_size=90,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.2,
            rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        )
        model = transformers.LlamaForCausalLM(config)
    model.eval().save_pretrained(tmp_path)
    engine = Engine(Model.load(tmp_path, device), slots=4, room=32, seed=1)
    requests = [engine.submit([*range(5, 40), i], 20) for i in range(6)]
    engine.run()
    for request in requests:
        with torch.inference_mode():
            logprobs = model(torch.tensor([request.tokens])).logits[0].log_softmax(-1)
        for i, (token, logprob) in enumerate(zip(request.output, request.logprobs, strict=True)):
            assert abs(float(logprobs[len(request.prompt) - 1 + i, token]) - logprob) < 1e-4
