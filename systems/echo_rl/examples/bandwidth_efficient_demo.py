"""What a rollout costs: the quadratic formula, a cost that is calibrated on this machine, and the measured seconds; and the efficiency eta_bw.

    python bandwidth_efficient_demo.py --plot bandwidth.png

The demo measures the engine on some lengths and fits c0 + c1 (t - t') + c2 (t^2 - t'^2) to the CPU seconds. Then it computes prompts of other
lengths, with and without cached prefixes, and compares both formulas with the CPU seconds that the engine took. At last the same rollouts run with
a shared prompt and without, and a tracker computes eta_bw from the engine's own counts of reused tokens. The weights are random, which does not
change the cost. The reward is 1 for a rollout whose tokens have an even sum.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import numpy as np
import torch

from echo_rl.core import BandwidthConfig
from echo_rl.core.bandwidth import BandwidthEfficiencyTracker, CalibratedCost
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.kernels import effective_bandwidth_cost

VOCAB = 1000


def seconds_of(model: Model, length: int, reused: int, times: int) -> float:
    """The least CPU seconds of one prompt's computation, of which `reused` tokens are cached."""
    rng, found = random.Random(length + reused), []
    for _ in range(times):
        engine = Engine(model, slots=1, room=1, chunk=length)
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        if reused:
            engine.submit(prompt[:reused], 1)
            engine.run()
        begin = time.process_time()
        request = engine.submit(prompt, 1)
        engine.run()
        found.append(time.process_time() - begin)
        assert request.cached == reused
    return min(found)


def rollouts(model: Model, cost: CalibratedCost, shared: bool, count: int, length: int, new: int) -> dict[str, Any]:
    """Runs rollouts and returns the tracker's figures with the calibrated cost, and the reward for each CPU second and each token."""
    rng = random.Random(1)
    stem = [rng.randrange(VOCAB) for _ in range(length)]
    engine = Engine(model, slots=16, room=new, seed=2)
    tracker = BandwidthEfficiencyTracker(BandwidthConfig(cost=cost))
    begin = time.process_time()
    for i in range(count):
        engine.submit(stem if shared else [i, *stem[1:]], new)
    reward = 0.0
    saved = []
    for request in engine.run():
        earned = float(sum(request.output) % 2 == 0)
        reward += earned
        tracker.record_rollout_step(earned, seq_len=len(request.tokens), reuse_len=request.cached)
        tracker.finish_rollout()
        saved.append(tracker.snapshot().total_bandwidth_saved)
    seconds = time.process_time() - begin
    return {"metrics": tracker.snapshot(), "reward": reward, "seconds": seconds, "computed": engine.stats()["computed_tokens"], "saved": saved}


def draw(cases: list[tuple[int, int]], measured: list[float], predicted: dict[str, list[float]], runs: dict[str, dict[str, Any]], path: str) -> None:
    """Left: predicted over measured seconds. Right: the cost that sharing saved, rollout by rollout."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for name, marker in (("calibrated", "o"), ("quadratic, scaled", "x")):
        left.scatter([1e3 * s for s in measured], [1e3 * s for s in predicted[name]], marker=marker, label=name)
    most = 1e3 * max(measured)
    left.plot([0, most], [0, most], color="grey", linestyle=":")
    left.set(title=f"{len(cases)} prompts, with and without cached prefixes", xlabel="measured, CPU ms", ylabel="predicted, ms")
    left.legend()
    for name, run in runs.items():
        right.plot(range(1, len(run["saved"]) + 1), run["saved"], label=f"{name}: eta_bw {run['metrics'].eta_bw:.1f}, {run['seconds']:.2f} CPU s", linewidth=2)
    right.set(title="cost that cached prefixes saved", xlabel="rollouts", ylabel="seconds, by the calibrated cost")
    right.legend()
    right.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Prints coefficients, errors and efficiencies."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tries", type=int, default=7, help="measurements of each length, of which the least counts")
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--length", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--plot", help="a picture; needs matplotlib")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Model.random(ModelConfig("gpt2", vocab=VOCAB, layers=4, heads=4, width=128, inner=512, context=1024))
    known = [(length, length * part // 2) for length in (64, 128, 256, 512, 768, 1000) for part in (0, 1)]
    cost = CalibratedCost.fit(*zip(*known, strict=True), [seconds_of(model, length, reused, options.tries) for length, reused in known])
    print(f"calibrated: {1e3 * cost.c0:.2f} ms + {1e6 * cost.c1:.1f} us (t - t') + {1e9 * cost.c2:.2f} ns (t^2 - t'^2)")
    cases = [(length, int(length * share)) for length in (96, 192, 320, 448, 640, 900) for share in (0.0, 0.3, 0.7)]
    measured = [seconds_of(model, length, reused, options.tries) for length, reused in cases]
    quadratic = np.array([effective_bandwidth_cost(length, reused) for length, reused in cases])
    # The quadratic formula has no unit; it gets the scale that fits these very measurements best.
    scale = float((quadratic * measured).sum() / (quadratic**2).sum())
    predicted = {"calibrated": [cost(length, reused) for length, reused in cases], "quadratic, scaled": list(scale * quadratic)}
    for name, values in predicted.items():
        error = np.abs(np.array(values) / measured - 1)
        print(f"  {name:18} differs from the measured seconds by {error.mean():6.1%} on average, {error.max():.1%} at most")
    runs = {name: rollouts(model, cost, name == "shared", options.rollouts, options.length, 32) for name in ("shared", "nothing shared")}
    for name, run in runs.items():
        metrics = run["metrics"]
        print(f"{name:15} eta_bw {metrics.eta_bw:8.2f} per predicted second, cost saved {metrics.total_bandwidth_saved:6.3f} s, "
              f"reward per CPU second {run['reward'] / run['seconds']:7.2f}, per computed token {run['reward'] / run['computed']:.5f}")  # fmt: skip
    if options.plot:
        draw(cases, measured, predicted, runs, options.plot)


if __name__ == "__main__":
    main()
