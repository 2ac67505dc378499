from __future__ import annotations

import pytest

from echo_rl.core import BandwidthConfig
from echo_rl.core.bandwidth import BandwidthAwareScheduler, BandwidthEfficiencyTracker, CalibratedCost


def test_each_field_changes_the_priority() -> None:
    def priority(**fields: float) -> float:
        return BandwidthAwareScheduler(BandwidthConfig(**fields)).compute_priority(reward=1.0, seq_len=128, queue_time=0.5, reuse_len=96)

    assert priority() == pytest.approx(1 / 3600.5)
    assert priority(scale=2.0) == pytest.approx(1 / 7200.5)
    assert priority(bandwidth_weight=0.0) == pytest.approx(2)
    assert priority(queue_weight=4.0) == pytest.approx(1 / 3602)
    assert priority(epsilon=1.0) == pytest.approx(1 / 3601.5)


@pytest.mark.parametrize("name", ["scale", "epsilon", "bandwidth_weight", "queue_weight"])
def test_a_wrong_field_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        BandwidthConfig(**{name: -1.0})


def test_a_calibrated_cost_takes_the_place_of_the_quadratic_one() -> None:
    cost = CalibratedCost(0, 0.5, 0.5)
    assert cost(128, 96) == BandwidthConfig().effective(128, 96) == 3600
    assert BandwidthConfig(cost=CalibratedCost(1, 2, 0)).effective(10, 4) == 13
    with pytest.raises(ValueError, match="scale belongs"):
        BandwidthConfig(scale=2.0, cost=cost)


def test_a_fit_finds_the_coefficients_or_says_what_is_missing() -> None:
    truth = CalibratedCost(3.0, 0.2, 1e-4)
    lengths, reused = [64, 512, 2048, 4096], [0, 100, 1024, 0]
    found = CalibratedCost.fit(lengths, reused, [truth(t, r) for t, r in zip(lengths, reused, strict=True)])
    assert (found.c0, found.c1, found.c2) == pytest.approx((3.0, 0.2, 1e-4))
    # The noise of one small cost would make the constant negative.
    noisy = CalibratedCost.fit([64, 512, 2048, 4096, 32], [0, 100, 1024, 0, 0], [6.0, 80.0, 300.0, 900.0, 0.1])
    assert noisy.c0 >= 0 and noisy.c1 >= 0 and noisy.c2 >= 0 and noisy(4096) == pytest.approx(900, rel=0.5)
    with pytest.raises(ValueError, match="greater than 0"):
        CalibratedCost.fit([64, 128, 256], [0, 0, 0], [1, 0, 1])
    with pytest.raises(ValueError, match="three different lengths"):
        CalibratedCost.fit([64, 64, 64], [0, 0, 0], [1, 1, 1])


def test_the_efficiency_is_one_of_means() -> None:
    tracker = BandwidthEfficiencyTracker()
    assert tracker.snapshot().eta_bw is None
    for reward in (1.0, 3.0):
        tracker.record_rollout_step(reward, seq_len=3, reuse_len=1)  # 6 - 1 = 5
        tracker.finish_rollout()
    tracker.record_learner_update(-2.0)
    tracker.record_learner_update(4.0)
    metrics = tracker.snapshot()
    assert metrics.eta_bw == pytest.approx(2.0 / (5.0 + 3.0))
    assert (metrics.total_bandwidth_saved, metrics.rollouts) == (2.0, 2)
