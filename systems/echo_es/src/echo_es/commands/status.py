"""`echoctl es status`: shows what happens in a search."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from echo_core.base.foreign_text import escaped
from echo_core.client.observer import Observer

from .shared import json_option, print_json, show, table

__all__ = ["lines", "status"]


@click.command(name="status", short_help="show who evaluates what since when")
@click.argument("address")
@click.option("--experiment", help="Show only the experiment of this name.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.05), default=1.0, show_default=True, help="Seconds between two reports.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many reports.")
@click.option("--timeout", type=float, default=5.0, show_default=True, help="For how many seconds it tries to reach the server.")
@click.option("--no-auth", is_flag=True, help="Connect without a token. This works only if the server needs no token.")
@json_option
def status(address: str, experiment: str | None, watch: bool, interval: float, count: int | None, timeout: float, no_auth: bool, as_json: bool) -> int:
    """Show the epoch of each experiment of the server at ADDRESS: the tasks of its workers and their ages, slow workers, best and mean reward.

    This command does not count as a worker. --json prints one JSON object for each report.
    """
    wanted = count if count is not None else None if watch else 1
    with Observer(address, timeout=timeout, auth=not no_auth, name="echoctl es status") as observer:
        looks = 0
        while True:
            answer = observer.request("es/status", {} if experiment is None else {"experiment": experiment}, timeout)
            if as_json:
                print_json(answer)
            else:
                if looks and os.isatty(1):
                    click.clear()
                for line in lines(answer["experiments"]):
                    click.echo(line)
            looks += 1
            if wanted is not None and looks >= wanted:
                return 0
            time.sleep(interval)


def lines(experiments: list[dict[str, Any]]) -> list[str]:
    """What a person reads of the statuses of experiments."""
    shown: list[str] = []
    for one in experiments:
        of = f" of {one['max_epochs']}" if one["max_epochs"] else ""
        optimises = "workers optimise" if one["strategy"] is None else one["strategy"] + (", steady" if one["mode"] == "steady" else "")
        best, last, test = one["best_so_far"], one["last_epoch"], one["last_test"]
        shown += [
            *([""] if shown else []),
            f"{one['experiment']} ({optimises}): epoch {one['epoch']}{of}, {one['phase']}, {one['evaluated']} of {one['population']} individuals",
            f"  this epoch   best {show(one['best'])}  mean {show(one['mean'])}  a task takes {one['task_seconds']:.3g} s",
            f"  before       best {show(best and best['reward'])}  mean of the last epoch {show(last and last['mean'])}  mean of the last test "
            f"{show(test and test['mean'])}",
            "  so far       " + ("  ".join(f"{name} {value:,}" for name, value in one["counts"].items() if value) or "nothing"),
            *([f"  log          {escaped(one['log'])}"] if one["log"] else []),
        ]
        rows = [_row(worker) for worker in one["workers"]]
        shown += ["  " + line for line in table(["worker", "cores", "does", "since", "individuals", "evaluated", ""], rows)] if rows else ["  no workers"]
    return shown


def _row(worker: dict[str, Any]) -> list[str]:
    held = ", ".join(f"{start}-{stop - 1}" if stop - start > 1 else str(start) for start, stop in worker["slices"])
    notes = [*(["slow"] if worker["slow"] else []), *([f"diverged {worker['diverged']} times"] if worker["diverged"] else [])]
    return [worker["name"], str(worker["cores"]), worker["does"], f"{worker['seconds']:.1f} s", held or "-", f"{worker['evaluated']:,}", ", ".join(notes)]
