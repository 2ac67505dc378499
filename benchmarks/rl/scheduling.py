"""Plot what echo_rl's scheduling policies do to one load, in a simulated clock, with a small cache and with a large one.

Run: ``python -m benchmarks.rl.scheduling docs/rl-scheduling.png``. It prints the figures too.
"""

import argparse

import matplotlib
import torch

from echo_rl.engine.simulation import families, simulate

matplotlib.use("Agg")
from matplotlib import pyplot

POLICIES = ("fcfs", "lpm", "hrrn", "bandwidth", "value")


def main() -> None:
    """Serve 300 requests of 12 families with every policy and draw the latencies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plot")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = families(300, 2.0)
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, (name, kv_tokens) in zip(axes, (("cache of 3 000 tokens", 3000), ("cache without a bound", 1 << 20)), strict=True):
        print(name)
        for policy in POLICIES:
            found = simulate(load, policy, slots=4, kv_tokens=kv_tokens)
            print(f"  {policy:10} makespan {found.makespan:5.2f} s  mean {found.mean:5.2f} s  p99 {found.p99:5.2f} s  hit rate {found.hit_rate:.2f}")
            shares = [100 * (i + 1) / len(load) for i in range(len(load))]
            axis.plot(sorted(found.latencies), shares, label=policy, linewidth=2.5 if policy == "value" else 1.2)
        axis.set(title=name, xlabel="seconds from arrival to the last token (simulated)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of requests, %")
    axes[0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(options.plot, dpi=110)


if __name__ == "__main__":
    main()
