"""Past segments, which are trained on again: those whose plans are far from the mean plan, or whose rewards are great, more often than others."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from echo_core import CheckpointError
from echo_rl.core.latent_planning import LatentPlanningOptimizer
from echo_rl.core.prioritized_replay import PrioritizedReplayBuffer, ReplayConfig
from echo_rl.kernels import plan_surprise_batch
from echo_rl.rollouts.acting import windows_of

__all__ = ["SegmentReplay", "plans_of"]

Columns = dict[str, npt.NDArray[Any]]


class SegmentReplay:
    """Keeps each environment's part of a segment as one experience.

    An experience is scored by |plan - mean plan|^2 + reward_weight * |reward|. Its plan is that after its last step, and its reward is the sum of the
    absolute rewards of its steps. A policy without plans scores by the reward alone. An experience that is drawn is scored anew, by the present encoder.

    Args:
        config: sizes and rules of the buffer.
        planner: encodes plans, or None.
    """

    def __init__(self, config: ReplayConfig, planner: LatentPlanningOptimizer | None = None) -> None:
        self.buffer, self._planner = PrioritizedReplayBuffer(config), planner

    def __len__(self) -> int:
        return len(self.buffer)

    def add(self, columns: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Keep a rollout, arrays (steps, environments, ...), which the policy of ``version`` is trained with now."""
        if len(self.buffer):
            self.buffer.advance(version)
        rows = {name: np.ascontiguousarray(np.moveaxis(column, 1, 0)) for name, column in columns.items()}
        plans, rewards = self._scored(columns)
        self.buffer.add_batch({**rows, "plan": plans, "reward": rewards})

    def draw(self, count: int) -> Columns:
        """Segments as a rollout, arrays (steps, count, ...), with ``weights``: (N p)^-beta of the exact chances p, divided by the greatest of them."""
        rows, weights = self.buffer.sample_batch(count)
        del rows["plan"], rows["reward"]
        columns = {name: np.ascontiguousarray(np.moveaxis(row, 0, 1)) for name, row in rows.items()}
        plans, rewards = self._scored(columns)
        score = self.buffer.score
        assert score.average is not None
        values = plan_surprise_batch(plans.astype(np.float64), score.average, rewards.astype(np.float64), 1.0, score.alpha)
        self.buffer.update_priorities(self.buffer.last_keys, values)
        steps = len(columns["rewards"])
        columns["weights"] = np.broadcast_to((weights / weights.max()).astype(np.float32), (steps, count)).copy()
        return columns

    def state(self) -> dict[str, npt.NDArray[np.uint8]]:
        """The files of the buffer's checkpoint, as bytes by their names; nothing if it is empty."""
        if not len(self.buffer):
            return {}
        with tempfile.TemporaryDirectory(prefix="echo-rl-replay-") as folder:
            self.buffer.save(folder)
            files = sorted(file for file in Path(folder).rglob("*") if file.is_file())
            return {str(file.relative_to(folder)): np.fromfile(file, np.uint8) for file in files}

    def take(self, buffer: PrioritizedReplayBuffer) -> None:
        """Go on with a buffer that ``loaded`` returned."""
        self.buffer.close()
        self.buffer = buffer

    def loaded(self, state: Mapping[str, npt.NDArray[np.uint8]]) -> PrioritizedReplayBuffer:
        """A state's buffer, which the caller gives to ``take``, or closes. Raises ValueError if the state is damaged, or of another configuration."""
        if not state:
            return PrioritizedReplayBuffer(self.buffer.config)
        with tempfile.TemporaryDirectory(prefix="echo-rl-replay-") as folder:
            for name, content in state.items():
                if Path(name).is_absolute() or ".." in Path(name).parts:
                    raise ValueError(f"the replay has the file {name!r}, which lies outside its folder")
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                content.tofile(file)
            try:
                found = PrioritizedReplayBuffer.load(folder)
            except (CheckpointError, OSError) as error:
                raise ValueError(f"the replay cannot be restored: {error}") from error
        theirs, mine = asdict(found.config), asdict(self.buffer.config)
        if differ := [name for name in mine if theirs[name] != mine[name] and name != "seed"]:  # a run without a seed takes that of the checkpoint
            found.close()
            raise ValueError(f"the replay was kept with {differ[0]}={theirs[differ[0]]!r}, and this run has {mine[differ[0]]!r}")
        return found

    def _scored(self, columns: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The plan and the reward of each environment's part: (environments, width) and (environments,)."""
        rewards = np.abs(columns["rewards"] * columns["mask"]).sum(0).astype(np.float32)
        if self._planner is None:
            return np.zeros((len(rewards), 1), np.float32), rewards
        _, windows = windows_of(columns["states"], columns["next_states"], columns["began"], columns["history"])
        return plans_of(self._planner, windows[-1]), rewards


def plans_of(planner: LatentPlanningOptimizer, windows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The plans of windows (n, k, numbers of a state), float32 (n, width)."""
    planner.eval()
    with torch.no_grad():
        found: npt.NDArray[np.float32] = planner.encoder(torch.from_numpy(windows).to(planner.spread.device)).cpu().numpy()
    return found
