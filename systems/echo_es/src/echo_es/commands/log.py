"""`echoctl es log`: reads an epoch log."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from ..experiments.results import Results, mean_of
from ..log import Contents, read_log
from ..plot import plot_learning
from ..search.tasks import Rewards
from .shared import json_option, print_json, show, table

__all__ = ["log"]


@click.command(name="log", short_help="read an epoch log")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--last", type=click.IntRange(0), default=10, show_default=True, help="How many epochs to show. 0 shows all of them.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the rewards of all epochs into this file (.png, .svg). It needs matplotlib.")
@json_option
def log(file: Path, last: int, plot: Path | None, as_json: bool) -> int:
    """Show what the epoch log FILE says, also while a server writes it: the search, rewards of each epoch, and tests.

    The exit code is 3 if the log is damaged.
    """
    found = read_log(file)
    epochs = _epochs(found)
    if plot is not None:
        plot_learning([rewards for _, rewards in epochs], plot, centre={epoch: float(np.nanmean(rewards)) for epoch, rewards in found.tests})
    rows = [(epoch, mean_of(rewards), _best(rewards), len(rewards)) for epoch, rewards in epochs]
    if as_json:
        print_json(
            {
                "search": found.search,
                "epochs": [{"epoch": epoch, "mean": mean, "best": best, "rewards": count} for epoch, mean, best, count in rows[-last:]],
                "tests": [{"epoch": epoch, "mean": mean_of(rewards), "episodes": len(rewards)} for epoch, rewards in found.tests],
                "bytes": found.size,
                "unfinished_bytes": found.size - found.whole,
            }
        )
        return 0
    for line in _lines(found, epochs):
        click.echo(line)
    if rows:
        shown = [[str(epoch), show(mean), show(best), str(count)] for epoch, mean, best, count in rows[-last:]]
        for line in table(["epoch", "mean", "best", "rewards"], shown):
            click.echo(line)
    return 0


def _epochs(found: Contents) -> list[tuple[int, Rewards]]:
    """The epochs, and of a steady search as many rewards as an epoch has at a time."""
    if found.search.get("mode") != "steady":
        return found.epochs
    rewards, population = found.steady()[1], found.search["population"]
    return [(number + 1, rewards[number * population : (number + 1) * population]) for number in range(len(rewards) // population)]


def _lines(found: Contents, epochs: list[tuple[int, Rewards]]) -> list[str]:
    results = Results()
    for epoch, rewards in epochs:
        results.complete(epoch, rewards)
    search = ", ".join(f"{key} {value}" for key, value in found.search.items())
    partial = sum(len(rewards) for _, rewards in found.partial()) if found.search.get("mode") != "steady" else 0
    best = results.best
    shown = [f"search: {search or 'none yet'}", f"epochs: {len(epochs)} complete, and {partial} rewards of the next one"]
    if best is not None:
        shown.append(f"best: {show(best.reward)} in epoch {best.epoch}, individual {best.individual}")
    if found.tests:
        epoch, rewards = found.tests[-1]
        shown.append(f"tests: {len(found.tests)}; the last one after epoch {epoch}, mean {show(mean_of(rewards))} of {len(rewards)} episodes")
    if found.whole < found.size:
        shown.append(f"unfinished: the last {found.size - found.whole} bytes are no whole record; the next server cuts them off")
    return shown


def _best(rewards: Rewards) -> float | None:
    finite = rewards[np.isfinite(rewards)]
    return float(finite.max()) if finite.size else None
