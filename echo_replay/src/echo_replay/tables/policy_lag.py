"""How far the policy that made a sample lags behind the newest policy, what tables do about it, and the figures that report it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Lags", "lag_figures"]


@dataclass(frozen=True)
class Lags:
    """The limits of a table that keeps the policy version of every item. An item's lag is the newest version minus its own, but at least 0.

    Attributes:
        most: the largest lag that is allowed: items with a larger one are removed, and new ones are not inserted. None allows any lag.
        weight: an item's importance weight is multiplied by this number for each version that the item lags behind; 1 changes nothing.
    """

    most: int | None = None
    weight: float = 1.0


def lag_figures(newest: int, versions: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]) -> dict[str, float]:
    """Figures for `ReplayTable.stats()`: the newest version, the mean and the largest lag, and a histogram `lag_0`, `lag_1`, `lag_2_3`,
    `lag_4_7`, ... of how many items have that lag, up to the last entry that is not 0.

    Args:
        newest: version of the policy.
        versions, counts: as from `ReplayTable.policy_versions()`.
    """
    lags = np.maximum(newest - versions.astype(np.int64), 0)
    total = int(counts.sum())
    figures: dict[str, float] = {
        "policy_version": newest,
        "policy_lag_mean": float((lags * counts.astype(np.int64)).sum() / total) if total else 0.0,
        "policy_lag_max": int(lags.max(initial=0)),
    }
    if total:
        classes = np.frexp(lags.astype(np.float64))[1]  # 0 if the lag is 0, otherwise n with 2**(n - 1) <= lag < 2**n
        for n in range(int(classes.max()) + 1):
            least, most = (1 << n) >> 1, max(0, (1 << n) - 1)
            name = f"lag_{least}" if least == most else f"lag_{least}_{most}"
            figures[name] = int(counts[classes == n].sum())
    return figures
