"""What rollouts cost, which of them goes first, and how much reward the cost brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echo_rl.checks import check_fields, instance, optional, real
from echo_rl.kernels import bandwidth_efficiency, effective_bandwidth_cost, schedule_priorities


@dataclass(frozen=True)
class CalibratedCost:
    """c0 + c1 (t - t') + c2 (t^2 - t'^2) for t tokens of which t' are cached; (0, s/2, s/2) is the quadratic cost with scale s."""

    c0: float
    c1: float
    c2: float

    def __call__(self, seq_len: float, reuse_len: float = 0.0) -> float:
        """The cost, in the unit of the measurements; `reuse_len` is cut to [0, seq_len]."""
        return float(self.of(np.asarray(seq_len, np.float64), np.asarray(reuse_len, np.float64)))

    def of(self, seq_lens: NDArray[np.float64], reuse_lens: NDArray[np.float64]) -> NDArray[np.float64]:
        """The costs of many sequences, element by element."""
        reused = np.clip(reuse_lens, 0, seq_lens)
        return self.c0 + self.c1 * (seq_lens - reused) + self.c2 * (seq_lens**2 - reused**2)

    @classmethod
    def fit(cls, seq_lens: Sequence[float], reuse_lens: Sequence[float], costs: Sequence[float]) -> CalibratedCost:
        """The fit of measured costs, which are greater than 0, with the least squared relative errors and no negative coefficient.

        Raises ValueError if the costs don't determine the three coefficients.
        """
        t, reused, measured = (np.asarray(values, np.float64) for values in (seq_lens, reuse_lens, costs))
        if not (measured > 0).all():
            raise ValueError("every measured cost must be greater than 0")
        columns = np.stack([np.ones_like(t), t - reused, t**2 - reused**2], axis=1) / measured[:, None]
        # Columns of one scale: squares of lengths would make the rank depend on the unit.
        scales = np.maximum(np.abs(columns).max(axis=0, initial=0), 1e-300)
        columns = columns / scales
        if np.linalg.matrix_rank(columns) < 3:
            raise ValueError("the measurements don't determine the cost: measure at least three different lengths")
        # Noise can make a small coefficient negative, and a cost would then shrink with the work. The best fit without negative ones is the
        # best of those that leave some columns out.
        best, least = np.zeros(3), np.inf
        for chosen in ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2]):
            found = np.linalg.lstsq(columns[:, chosen], np.ones_like(measured), rcond=None)[0]
            error = float(((columns[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(3), error
                best[chosen] = found
        return cls(*(float(value) for value in best / scales))


@dataclass(frozen=True)
class BandwidthConfig:
    """Weights of a request's cost and of its time in the queue; `cost` replaces the quadratic cost and then `scale` must stay 1."""

    scale: float = 1.0
    bandwidth_weight: float = 1.0
    queue_weight: float = 1.0
    epsilon: float = 1e-8
    cost: CalibratedCost | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            scale=real(above=0),
            bandwidth_weight=real(0),
            queue_weight=real(0),
            epsilon=real(above=0),
            cost=optional(instance(CalibratedCost)),
        )
        if self.cost is not None and self.scale != 1.0:
            raise ValueError("scale belongs to the quadratic cost: leave it at 1 when cost is given")

    def effective(self, seq_len: float, reuse_len: float) -> float:
        """The cost of `seq_len` tokens of which `reuse_len` are cached."""
        return self.cost(seq_len, reuse_len) if self.cost else effective_bandwidth_cost(seq_len, reuse_len, self.scale)


class BandwidthAwareScheduler:
    """Gives requests the priority r / (w_b b_eff + w_q q + epsilon)."""

    def __init__(self, config: BandwidthConfig | None = None) -> None:
        self.config = config or BandwidthConfig()

    def compute_priority(self, reward: float, seq_len: float, queue_time: float, reuse_len: float = 0.0) -> float:
        """The priority; lengths in tokens, `queue_time` in seconds."""
        config = self.config
        cost = config.effective(seq_len, reuse_len)
        return float(schedule_priorities(reward, cost, queue_time, config.bandwidth_weight, config.queue_weight, config.epsilon))


@dataclass(frozen=True)
class BandwidthMetrics:
    """A tracker's figures; `eta_bw` is None while nothing was spent."""

    eta_bw: float | None
    total_reward: float
    total_bandwidth: float
    total_bandwidth_saved: float
    mean_learner_cost: float
    rollouts: int


class BandwidthEfficiencyTracker:
    """Computes eta_bw = E[sum of rewards] / (E[sum of b_eff] + E[weighted loss]): means over rollouts, and over learner updates."""

    def __init__(self, config: BandwidthConfig | None = None) -> None:
        self.config = config or BandwidthConfig()
        self._reward = self._bandwidth = self._saved = self._loss = 0.0
        self._updates = self._finished = 0
        self._open = False

    def record_rollout_step(self, reward: float, seq_len: float, reuse_len: float = 0.0) -> None:
        """Adds a step to the current rollout: `seq_len` tokens of which `reuse_len` came from the cache."""
        cost = self.config.effective(seq_len, reuse_len)
        self._reward += reward
        self._bandwidth += cost
        self._saved += self.config.effective(seq_len, 0) - cost
        self._open = True

    def finish_rollout(self) -> None:
        """Ends the current rollout; the next step begins another one."""
        self._finished += self._open
        self._open = False

    def record_learner_update(self, weighted_pg_loss: float) -> None:
        """Adds an update's mean of weight times |policy-gradient loss|."""
        self._loss += abs(weighted_pg_loss)
        self._updates += 1

    def snapshot(self) -> BandwidthMetrics:
        """The figures so far; a rollout that is not finished counts as one."""
        rollouts = self._finished + self._open
        loss = self._loss / self._updates if self._updates else 0.0
        reward, bandwidth = (self._reward / rollouts, self._bandwidth / rollouts) if rollouts else (0.0, 0.0)
        eta = bandwidth_efficiency(reward, bandwidth, loss) if bandwidth + loss > 0 else None
        return BandwidthMetrics(eta, self._reward, self._bandwidth, self._saved, loss, rollouts)
