"""TensorBoard reads the figures of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed")

from echo_rl import EchoRLTrainer, TrainingConfig  # noqa: E402
from echo_rl.core import ExecutionConfig  # noqa: E402
from echo_rl.rollouts.text_policy import SmallModel  # noqa: E402


def test_tensorboard_reads_every_figure_of_a_run(tmp_path: Path) -> None:
    options = {"learning_starts": 0, "batch_size": 8, "group_size": 4, "num_actors": 8, "actor_processes": 0, "eta": 0, "seed": 1, "evaluation_episodes": 4}
    model, execution = SmallModel(layers=1, heads=2, width=16, inner=16, context=32), ExecutionConfig(max_new_tokens=3)
    config = TrainingConfig("digits", 24, algorithm="grpo", model=model, execution=execution, evaluation_frequency=8, output_dir=str(tmp_path), **options)
    metrics = EchoRLTrainer(config).run()
    assert metrics.updates == 3
    found = accumulators.EventAccumulator(str(tmp_path)).Reload()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for kind, count in (("update", 3), ("evaluation", 3)):
        written = [line for line in lines if line["kind"] == kind]
        assert len(written) == count
        for name in set.intersection(*(set(line) for line in written)):
            if isinstance(written[0][name], int | float):
                events = found.Scalars(f"{kind}/{name}")
                assert [event.step for event in events] == [8, 16, 24], name
                assert [event.value for event in events] == pytest.approx([line[name] for line in written], rel=1e-6), name
    assert {"update/reward", "update/tokens", "update/version", "evaluation/avg_reward", "evaluation/success_rate"} <= set(found.Tags()["scalars"])
