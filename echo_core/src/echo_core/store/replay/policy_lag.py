"""How far the policy that made a sample lies behind the policy of now: what tables do about it, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Lags", "lag_figures"]


@dataclass(frozen=True)
class Lags:
    """Of a table that keeps the version of the policy with every item. A lag is the newest version less the item's, never below 0.

    Attributes:
        most: items that lag further behind go, and come in no more; None lets them all stay.
        weight: by which an item's importance weight is multiplied for each version it lags behind; 1 changes nothing.
    """

    most: int | None = None
    weight: float = 1.0


def lag_figures(newest: int, versions: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]) -> dict[str, float]:
    """For `ReplayTable.stats()`: the newest version, mean and largest lag, and a histogram `lag_0`, `lag_1`, `lag_2_3`, `lag_4_7`, ...
    of how many items lag that far, up to the last that is not empty.

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
        classes = np.frexp(lags.astype(np.float64))[1]  # 0 of 0, and otherwise n where 2**(n - 1) <= lag < 2**n
        for n in range(int(classes.max()) + 1):
            least, most = (1 << n) >> 1, max(0, (1 << n) - 1)
            name = f"lag_{least}" if least == most else f"lag_{least}_{most}"
            figures[name] = int(counts[classes == n].sum())
    return figures
