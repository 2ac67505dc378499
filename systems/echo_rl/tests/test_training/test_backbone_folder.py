"""A language model from a folder is trained: the actors and the learner read the same files, and agree on every log-probability."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1]))

from echo_core import ConfigError  # noqa: E402
from echo_rl import EchoRLTrainer, TrainingConfig  # noqa: E402
from echo_rl.core import ExecutionConfig  # noqa: E402
from echo_rl.engine import Model, ModelConfig  # noqa: E402
from echo_rl.engine.families.generation import Generation  # noqa: E402
from echo_rl.models import TrainableTransformer  # noqa: E402
from echo_rl.rollouts.records import pack  # noqa: E402
from echo_rl.rollouts.tickets import Ticket  # noqa: E402
from echo_rl.rollouts.token_collector import TokenCollector  # noqa: E402
from echo_rl.training.rollout_loop import Published  # noqa: E402
from echo_rl.training.token_learner import TokenLearnerConfig  # noqa: E402
from echo_rl.training.token_training import TokenTraining  # noqa: E402

TESTS = Path(__file__).parents[1]
END = "<|end|>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model with a tokenizer that has a token for each byte, as ``Model.save`` and the library tokenizers write them."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(tokenizers.models.BPE({character: i for i, character in enumerate([*alphabet, END])}, []))
    library.pre_tokenizer, library.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    library.add_special_tokens([END])
    found, end = tmp_path / "model", library.token_to_id(END)
    config = ModelConfig("qwen2", vocab=257, layers=2, heads=4, kv_heads=2, width=32, inner=64, context=64)
    Model(config, Model.random(config, seed=4, scale=0.2).weights, "cpu", Generation((end,))).save(found)
    library.save(str(found / "tokenizer.json"))
    (found / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return found


def config(folder: Path | str, updates: int, **options: Any) -> TrainingConfig:
    given: dict[str, Any] = {"learning_starts": 0, "evaluation_frequency": 10**9, "evaluation_episodes": 4, "num_actors": 16, "batch_size": 16, "group_size": 4}
    given |= {"algorithm": "grpo", "seed": 5, "eta": 0, "imports": ["odd_environments"], "patience": 240.0, "actor_processes": 0}
    given |= {"execution": ExecutionConfig(max_new_tokens=4, timeout=20.0), "token_learner": TokenLearnerConfig(learning_rate=3e-3)}
    return TrainingConfig("test-sums", updates * 32, backbone=str(folder), **(given | options))


def test_the_learner_and_the_engine_agree_on_every_log_probability(folder: Path) -> None:
    trainer = EchoRLTrainer(config(folder, 1))
    training = trainer._training
    assert isinstance(training, TokenTraining)
    collector = TokenCollector(training.rules)
    records = collector.collect([Ticket(i, i, 1) for i in range(4)], Published(training.weights(), 1), lambda _: None)
    whole = training.schema.unpack(pack(records, training.leaves)).with_prompts()
    model = TrainableTransformer.load(folder)
    with torch.no_grad():
        scores = model.score(torch.from_numpy(whole.tokens.copy()), torch.from_numpy(whole.cu_seqlens.copy()), 1.0)
    assert whole.mask.sum() > 50
    np.testing.assert_allclose(scores.log_probs.numpy()[whole.mask], whole.logprobs[whole.mask], atol=1e-5)
    collector.close()
    training.close()


def test_a_model_from_a_folder_is_trained_with_actors_and_saved_for_others(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    trainer = EchoRLTrainer(config(folder, 4, actor_processes=1))
    metrics = asyncio.run(trainer.train())
    assert metrics.updates == 4 and metrics.failed == 0 and metrics.lags == {0: 16}
    steps = [figures for figures in metrics.history if figures.get("gradient_steps")]
    # Before its first step, the learner's policy is the actors', so that every ratio is 1.
    assert steps and all(figures["kl"] < 1e-8 and figures["clip_share"] == 0 and figures["gradient_norm"] > 0 for figures in steps)
    trained, before = trainer._training.weights(), Model.load(folder).weights
    assert trained.keys() == before.keys() and all(not np.array_equal(trained[name], before[name].numpy()) for name in trained)
    Model(Model.load(folder).config, {name: torch.from_numpy(array) for name, array in trained.items()}).save(tmp_path / "trained")
    assert all(torch.equal(Model.load(tmp_path / "trained").weights[name], torch.from_numpy(array)) for name, array in trained.items())


def test_a_folder_without_a_model_or_a_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder with a model's config.json"):
        EchoRLTrainer(config(tmp_path, 1))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="has no tokenizer.json"):
        EchoRLTrainer(config(folder, 1))
