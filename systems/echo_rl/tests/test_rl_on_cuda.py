"""What differs with a GPU: tensors from the CPU are moved, and results are those of the CPU. The engine's mixes are in test_engine/test_exact.py."""

import asyncio
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from echo_rl.backbones import backbone
from echo_rl.core import ExecutionConfig, PlanningConfig, PPOConfig
from echo_rl.core.async_execution import AsyncExecutionEngine
from echo_rl.core.latent_planning import LatentPlanningOptimizer
from echo_rl.core.ppo_learner import PPOLearner
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.utils.monitoring import SystemMonitor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")

CONFIG = ModelConfig("gpt2", vocab=40, layers=1, heads=2, width=16, inner=16, context=128)
STEPS, WINDOW, STATE, ACTIONS = 64, 6, 4, 3


def planner(engine: Engine | None = None, width: int = STATE) -> LatentPlanningOptimizer:
    torch.manual_seed(0)
    config = PlanningConfig(embedding_dim=16, layers=2, heads=4, state_window_size=WINDOW)
    return LatentPlanningOptimizer(width, ACTIONS, config, width=32, engine=engine)


def rollout() -> dict[str, torch.Tensor]:
    """Episodes of one step by a policy that draws each action alike, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(STEPS, WINDOW, STATE, generator=generator).cumsum(1)
    actions = torch.randint(0, ACTIONS, (STEPS,), generator=generator)
    ends = torch.ones(STEPS, dtype=torch.bool)
    found = {"states": states, "next_states": states, "actions": actions, "log_probs": torch.full((STEPS,), 1 / ACTIONS).log()}
    return {**found, "rewards": (actions == 1).float(), "terminated": ends, "truncated": ~ends}


def test_a_learner_learns_what_it_learns_on_the_cpu() -> None:
    learned = []
    for device in ("cpu", "cuda"):
        module = planner()
        for layer in module.modules():  # dropout draws other numbers on another device
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0
            elif isinstance(layer, torch.nn.MultiheadAttention):
                layer.dropout = 0.0
        config = PPOConfig(minibatch_size=STEPS // 2, epochs=2, seed=1)
        metrics = PPOLearner(module, config, device=device, auxiliary=module.auxiliary_loss, groups=module.groups()).update(rollout())
        assert all(value.device.type == device for value in module.parameters())
        learned.append((asdict(metrics), {name: value.detach().cpu() for name, value in module.state_dict().items()}))
    (here, before), (there, after) = learned
    assert here["steps"] == 4 and here["auxiliary_loss"] > 0 and there == pytest.approx(here, rel=1e-3, abs=1e-4)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-3, atol=2e-4, msg=name)
    assert any(not torch.equal(value, before[name]) for name, value in planner().state_dict().items())


def test_plans_are_imagined_there() -> None:
    engine = Engine(Model.random(CONFIG, scale=0.3, device="cuda"), slots=4, room=32)
    module = planner(engine, CONFIG.width).to("cuda")
    found = module.plan((1, 2, 3, 4), branches=3, horizon=5, seed=0)
    assert found.plan.device.type == "cuda" and len(found.branches) == 3 and found.reused_tokens == 2 * 3


def test_rollouts_there_are_those_of_the_cpu_also_with_new_weights() -> None:
    async def tokens(device: str) -> list[tuple[int, ...]]:
        engine = AsyncExecutionEngine(ExecutionConfig(max_new_tokens=20), Model.random(CONFIG, scale=0.3), device=device)
        assert engine.device.type == device
        first = await engine.result(await engine.submit_rollout([1, 2, 3], temperature=0.0))
        await engine.update_weights(Model.random(CONFIG, 1, scale=0.3), 1)  # it lies on the CPU
        second = await engine.result(await engine.submit_rollout([1, 2, 3], temperature=0.0))
        await engine.update_weights(Model.random(CONFIG, 2, scale=0.3).weights, 2)
        third = await engine.result(await engine.submit_rollout([1, 2, 3], temperature=0.0))
        return [found.tokens for found in (first, second, third)]

    found = asyncio.run(tokens("cuda"))
    assert found == asyncio.run(tokens("cpu")) and len(set(found)) == 3


def test_the_monitor_counts_the_memory_of_the_device() -> None:
    held = torch.zeros(1 << 20, device="cuda")
    assert SystemMonitor().read()["system/cuda_bytes"] >= held.nbytes


@pytest.mark.parametrize("four_bit", [False, True])
def test_a_transformers_model_generates_there(four_bit: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.utils.logging.disable_progress_bar()  # it would leave a thread behind
    if four_bit:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 256}
    config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    with backbone(f"hf:{tmp_path}", four_bit=four_bit) as model:
        assert next(model._model.parameters()).device.type == "cuda"  # type: ignore[attr-defined]
        assert model._model.get_memory_footprint() < (1 << 20 if four_bit else 8 << 20)  # type: ignore[attr-defined]
        found = model.generate(["abcd", "xyz"], n=2, max_tokens=8, temperature=0, logprobs=True)
        assert len(found) == 4 and found[0].tokens == found[1].tokens and len(found[0].logprobs or ()) == len(found[0].tokens or ()) > 0
        assert "".join(model.stream("abcd", max_tokens=8, temperature=0)) == found[0].text
