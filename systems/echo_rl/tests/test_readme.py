"""Code of Echo-RL's README, as written there. Only what it leaves out is put before it."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from echo_rl.core import ExecutionConfig, PlanningConfig, PPOConfig
from echo_rl.core.async_execution import RolloutResult
from echo_rl.core.latent_planning import PolicyNetwork
from echo_rl.utils.monitoring import PerformanceMetrics

BANDWIDTH = """
from echo_rl.core.bandwidth import (
    BandwidthConfig,
    BandwidthEfficiencyTracker,
    BandwidthAwareScheduler,
)
from echo_rl.kernels import effective_bandwidth_cost, bandwidth_efficiency
b_eff = effective_bandwidth_cost(seq_len=128, reuse_len=96, scale=1.0)
scheduler = BandwidthAwareScheduler(BandwidthConfig(bandwidth_weight=1.0))
priority = scheduler.compute_priority(reward=1.0, seq_len=128, queue_time=0.5, reuse_len=96)
tracker = BandwidthEfficiencyTracker()
tracker.record_rollout_step(reward=0.5, seq_len=64, reuse_len=48)
tracker.record_learner_update(weighted_pg_loss=0.02)
metrics = tracker.snapshot()
print(f"η_bw = {metrics.eta_bw:.4f}, saved = {metrics.total_bandwidth_saved:.2f}")
"""
REPLAY_CONFIG = """
replay_config = ReplayConfig(
    hot_buffer_size=1000000,
    cold_buffer_size=10000000,
    age_threshold=1000,
    temperature=1.0
)
"""
REPLAY = """
from echo_rl.core.prioritized_replay import PrioritizedReplayBuffer, HotColdBuffer
replay_buffer = PrioritizedReplayBuffer(config=ReplayConfig())
"""
DRAW = """
experiences, weights = replay_buffer.sample_batch(
    batch_size=256,
    temperature=1.0
)
"""
PLANNING = """
from echo_rl.core.latent_planning import LatentPlanningOptimizer, TrajectoryEncoder
encoder = TrajectoryEncoder(state_dim=512, config=PlanningConfig())
policy = PolicyNetwork(state_dim=512, action_dim=20, latent_dim=512)
optimizer = LatentPlanningOptimizer(state_dim=512, action_dim=20, config=PlanningConfig())
"""
EXECUTION = """
from echo_rl.core.async_execution import AsyncExecutionEngine, KVCacheManager
cache_manager = KVCacheManager(config=ExecutionConfig())
execution_engine = AsyncExecutionEngine(
    config=ExecutionConfig(),
    model=policy_network,
    device="cuda"
)
"""
SUBMIT = """
request_id = await execution_engine.submit_rollout(
    state_sequence=state_window,
    priority=1.0
)
"""
MONITORING = """
from echo_rl.utils.monitoring import PerformanceMonitor, MetricsCollector
monitor = PerformanceMonitor()
monitor.start_monitoring()
collector = MetricsCollector()
collector.collect_metrics(performance_metrics)
"""
CONFIGS = """
from echo_rl.core import PlanningConfig, ExecutionConfig, ReplayConfig, PPOConfig
planning_config = PlanningConfig(
    embedding_dim=512,
    state_window_size=8,
    kl_weight=0.1,
    learning_rate=3e-4
)
execution_config = ExecutionConfig(
    max_concurrent_rollouts=128,
    max_cache_size=10000,
    timeout=30.0
)
replay_config = ReplayConfig(
    hot_buffer_size=1000000,
    cold_buffer_size=10000000,
    age_threshold=1000,
    temperature=1.0
)
ppo_config = PPOConfig(
    learning_rate=3e-4,
    clip_epsilon=0.2,
    value_loss_coef=0.5,
    entropy_coef=0.01,
    kl_coef=0.1,
    gae_lambda=0.95,
    gamma=0.99
)
"""
KERNELS = """
from echo_rl.kernels import kernels_available; print(kernels_available())
"""


def test_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(BANDWIDTH, names)
    assert names["b_eff"] == 3600 and names["priority"] == pytest.approx(1 / 3600.5)
    # 64 * 65 / 2 = 2080, of which 48 * 49 / 2 = 1176 are saved.
    assert capsys.readouterr().out == f"η_bw = {0.5 / 904.02:.4f}, saved = 1176.00\n"


def test_replay() -> None:
    names: dict[str, Any] = {}
    exec("from echo_rl.core import ReplayConfig" + REPLAY_CONFIG + REPLAY, names)
    names["replay_buffer"].add_batch({"plan": np.zeros((300, 4)), "reward": np.arange(300.0)})
    exec(DRAW, names)
    assert names["experiences"]["plan"].shape == (256, 4) and names["weights"].shape == (256,)
    names["replay_buffer"].close()


def test_planning() -> None:
    names: dict[str, Any] = {}
    exec("from echo_rl.core import PlanningConfig\nfrom echo_rl.core.latent_planning import PolicyNetwork" + PLANNING, names)
    plan = names["encoder"].eval()(torch.randn(1, 8, 512))
    logits, values = names["policy"](torch.randn(1, 512), plan)
    assert plan.shape == (1, 512) and logits.shape == (1, 20) and values.shape == (1,)
    assert names["optimizer"].eval()(torch.randn(2, 8, 512))[0].shape == (2, 20)


@pytest.mark.filterwarnings("ignore:device='cuda' was asked for, but CUDA is not available")
def test_execution() -> None:
    names: dict[str, Any] = {"policy_network": PolicyNetwork(state_dim=512, action_dim=20, latent_dim=512), "state_window": torch.randn(8, 512)}
    program = "".join(f"    {line}\n" for line in SUBMIT.splitlines())
    exec(f"from echo_rl.core import ExecutionConfig{EXECUTION}\nasync def submit():\n{program}    return request_id", names)

    async def main() -> RolloutResult:
        result: RolloutResult = await names["execution_engine"].result(await names["submit"](), timeout=60)
        return result

    logits, values = asyncio.run(main()).value
    assert logits.shape == (8, 20) and values.shape == (8,)
    expected = names["policy_network"](names["state_window"].to(logits.device))[0]
    torch.testing.assert_close(logits, expected.detach())


def test_monitoring() -> None:
    names: dict[str, Any] = {"performance_metrics": PerformanceMetrics({"reward": 0.5})}
    exec(MONITORING, names)
    assert names["collector"].summary()["reward"].mean == 0.5
    assert names["monitor"].stop_monitoring().summary()["system/rss_bytes"].last > 0


def test_configurations() -> None:
    names: dict[str, Any] = {}
    exec(CONFIGS, names)
    assert names["planning_config"] == PlanningConfig() and names["ppo_config"] == PPOConfig(), "the README shows the defaults"
    assert names["execution_config"] == ExecutionConfig()
    assert names["replay_config"].age_threshold == 1000 and names["replay_config"].temperature == 1.0


def test_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    exec(KERNELS, {})
    assert capsys.readouterr().out == f"{importlib.util.find_spec('echo_rl.kernels._native') is not None}\n"


PAGES = [Path(__file__).parents[3] / "docs" / name for name in ("rl.md", "coming-from-echo-rl.md")]


@pytest.mark.parametrize(("page", "number"), [(page, i) for page in PAGES for i in range(page.read_text().count("```python needs=torch\n"))])
def test_the_pages_of_the_documentation(page: Path, number: int, tmp_path: Path) -> None:
    code = re.findall(r"```python needs=torch\n(.*?)```", page.read_text(), re.DOTALL)[number]
    (tmp_path / "page.py").write_text(code)
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_packages_own_readme() -> None:
    code = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec("\n".join(code), names)
    assert len(names["weights"]) == 64
    names["buffer"].close()


def test_every_configuration_can_be_found_in_core() -> None:
    import echo_rl.core as core

    assert set(core.__all__) <= set(dir(core)) and all(getattr(core, name).__name__ == name for name in core.__all__)
    with pytest.raises(AttributeError, match="no attribute 'PPOConfg'"):
        core.PPOConfg  # noqa: B018
