from __future__ import annotations

import numpy as np
import pytest

from echo_rl.core.gae import gae


def test_each_advantage_is_the_sum_of_its_episodes_errors() -> None:
    rng = np.random.default_rng(3)
    rewards, values, following = rng.normal(size=(3, 40))
    terminated, truncated = rng.random((2, 40)) < 0.15
    advantages, returns = gae(rewards, values, following, terminated, truncated, 0.9, 0.8)
    for t in range(40):
        total = 0.0
        for k in range(t, 40):
            total += 0.72 ** (k - t) * (rewards[k] + (0 if terminated[k] else 0.9 * following[k]) - values[k])
            if terminated[k] or truncated[k]:
                break
        assert advantages[t] == pytest.approx(total)
    np.testing.assert_allclose(returns, advantages + values)


def test_a_truncated_step_keeps_the_value_of_its_last_state() -> None:
    assert gae([1.0], [0.0], [10.0], [False], [True], 0.5)[0].tolist() == [6.0]
    assert gae([1.0], [0.0], [10.0], [True], [False], 0.5)[0].tolist() == [1.0]
    with pytest.raises(ValueError, match="one shape"):
        gae([1.0], [0.0], [10.0, 1.0], [True], [False])
