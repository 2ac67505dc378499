"""Hot and cold replay: what is drawn, and that its weights undo the preference.

    python prioritized_replay_demo.py --plot replay.png

20 000 trajectories get the score |plan - mean plan|^2 + |reward|. One in five was rewarded, so the mean of the rewards is 0.2. The demo draws
with each weighting and measures four figures: the plain and the weighted mean of the drawn rewards, the share of the batch that is among the
best tenth, and the effective sample size of the draws, 1 / sum p^2. Then the policy gets new versions, and old items cool down and leave.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from echo_rl.core.prioritized_replay import PrioritizedReplayBuffer, ReplayConfig

ITEMS, DRAWS = 20_000, 200_000


def trajectories(seed: int = 0) -> dict[str, Any]:
    """Plans of 16 numbers, whose size varies a lot; every fifth has the reward 1."""
    rng = np.random.default_rng(seed)
    plans = rng.normal(size=(ITEMS, 16)) * rng.lognormal(sigma=0.7, size=(ITEMS, 1))
    return {"plan": plans, "reward": (np.arange(ITEMS) % 5 == 0).astype(np.float64), "number": np.arange(ITEMS)}


def drawn(weighting: Any) -> dict[str, Any]:
    """The figures of one weighting."""
    items = trajectories()
    buffer = PrioritizedReplayBuffer(ReplayConfig(hot_buffer_size=ITEMS // 5, cold_buffer_size=ITEMS - ITEMS // 5, weighting=weighting, seed=1))
    # One batch: the score then is the same function of a plan for all items.
    buffer.add_batch(items)
    scores = buffer.score(items["plan"], items["reward"], update=False)
    begin = time.perf_counter()
    for _ in range(20):
        buffer.sample_batch(256)
    seconds = (time.perf_counter() - begin) / 20
    batch, weights = buffer.sample_batch(DRAWS)
    counts = np.bincount(batch["number"], minlength=ITEMS)
    ranks = np.argsort(np.argsort(-scores))
    buffer.close()
    return {
        "plain mean": float(batch["reward"].mean()),
        "weighted mean": float((weights * batch["reward"]).mean()),
        "share of the best tenth": float((ranks[batch["number"]] < ITEMS // 10).mean()),
        # Counts are chances and noise: without the noise the sum of squares is that of n (n - 1) p^2.
        "effective sample size": float(DRAWS * (DRAWS - 1) / max(1, (counts * (counts - 1)).sum())),
        "microseconds of a draw of 256": 1e6 * seconds,
        "counts by rank": np.add.reduceat(counts[np.argsort(ranks)], np.arange(0, ITEMS, ITEMS // 50)) / DRAWS,
    }


def ageing() -> list[tuple[int, int, float]]:
    """For each version of the policy: how many items are held, and the share of the batch that the newest version made."""
    buffer = PrioritizedReplayBuffer(ReplayConfig(hot_buffer_size=4000, cold_buffer_size=16_000, age_threshold=3, max_replay_age=8, seed=1))
    found, rng = [], np.random.default_rng(2)
    for version in range(14):
        if version:
            buffer.advance(version)
        buffer.add_batch({"plan": rng.normal(size=(1000, 16)), "reward": rng.random(1000), "version": np.full(1000, version)})
        batch, _ = buffer.sample_batch(20_000)
        found.append((version, len(buffer), float((batch["version"] == version).mean())))
    buffer.close()
    return found


def draw(found: dict[str, dict[str, Any]], ages: list[tuple[int, int, float]], path: str) -> None:
    """Left: how often items of each rank are drawn. Right: items held by version, and the share of new ones."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for weighting, figures in found.items():
        left.plot(np.arange(1, 100, 2), 100 * figures["counts by rank"], label=f"{weighting}: effective size {figures['effective sample size']:,.0f}")
    left.axhline(2, color="grey", linestyle=":", label="uniform")
    left.set(
        title="share of the draws by rank of the score", xlabel="rank, % (0: highest score)", ylabel="% of the draws, in bins of 2 % of the items", yscale="log"
    )
    left.legend()
    versions, held, newest = zip(*ages, strict=True)
    right.bar(versions, held, color="tab:blue", alpha=0.5)
    right.set(title="age_threshold=3, max_replay_age=8", xlabel="version of the policy")
    right.set_ylabel("items held (bars)", color="tab:blue")
    other = right.twinx()
    other.plot(versions, [100 * share for share in newest], color="tab:red", marker="o")
    other.set_ylabel("draws of the newest version, % (line)", color="tab:red")
    other.set_ylim(0, 105)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Prints the figures of every weighting."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plot", help="a picture; needs matplotlib")
    options = parser.parse_args()
    found = {weighting: drawn(weighting) for weighting in ("rank", "robust", "softmax")}
    for weighting, figures in found.items():
        print(weighting)
        for name, value in figures.items():
            if name != "counts by rank":
                print(f"  {name:32} {value:10.3f}")
    ages = ageing()
    print("version, items held, share of the newest:", "  ".join(f"{version}: {held} {share:.2f}" for version, held, share in ages))
    if options.plot:
        draw(found, ages, options.plot)


if __name__ == "__main__":
    main()
