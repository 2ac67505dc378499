"""`echoctl ipc`: lists the shared memory of this user's processes, watches it, and says whether a planned run fits."""

from __future__ import annotations

import dataclasses
import json
import os
import time

import click

from ..memory_budget import estimate_appo_bytes, estimate_offpolicy_bytes, get_available_memory_bytes, get_shared_memory_available_bytes
from .listing import FoundSegment, segments

__all__ = ["command"]

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.group(name="ipc", short_help="list and watch shared memory of echo-ipc")
def command() -> None:
    """List and watch the shared memory that this user's processes have through echo-ipc, and plan it."""


@command.command(name="ls", short_help="list shared memory")
@_json
def ls(as_json: bool) -> int:
    """List the cells, rings and tables that this user's processes have open, the largest first."""
    found = segments()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(segment) for segment in found]))
        return 0
    for line in _table(["name", "kind", "MiB", "processes", "arrays"], [[*_start(segment), ", ".join(segment.fields)] for segment in found]):
        click.echo(line)
    return 0


@command.command(name="top", short_help="show what happens in shared memory")
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.05), help="Seconds between two looks.")
@click.option("--count", type=click.IntRange(min=1), help="How many times to show it; without it, until Ctrl-C.")
@_json
def top(interval: float, count: int | None, as_json: bool) -> int:
    """Show again and again how many values, rollouts and rows were written per second, what was lost, and repairs after killed processes."""
    before = {segment.name: segment for segment in segments()}
    looked, shown = time.monotonic(), 0
    while count is None or shown < count:
        time.sleep(interval)
        found, now = segments(), time.monotonic()
        rates = {segment.name: (_written(segment) - _written(before.get(segment.name, segment))) / (now - looked) for segment in found}
        if as_json:
            click.echo(json.dumps([dataclasses.asdict(segment) | {"per_second": rates[segment.name]} for segment in found]))
        else:
            if shown and os.isatty(1):
                click.clear()
            rows = [[*_start(segment), f"{rates[segment.name]:,.1f}", _figures(segment)] for segment in found]
            for line in _table(["name", "kind", "MiB", "processes", "per second", "figures"], rows):
                click.echo(line)
        before, looked, shown = {segment.name: segment for segment in found}, now, shown + 1
    return 0


@command.command(name="budget", short_help="say whether a planned run fits into memory")
@click.option("--num-envs", type=click.IntRange(min=1), help="How many environments there are.")
@click.option("--obs-dim", type=click.IntRange(min=1), help="Width of an observation.")
@click.option("--action-dim", type=click.IntRange(min=1), help="Width of an action.")
@click.option("--critic-dim", type=click.IntRange(min=0), default=0, show_default=True, help="Width of the critic's observations.")
@click.option("--replay", type=click.IntRange(min=1), help="Steps of each environment that a replay buffer keeps.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of each environment in a rollout.")
@click.option("--slots", type=click.IntRange(min=1), default=4, show_default=True, help="Rollouts that can be ready at once.")
@_json
def budget(
    num_envs: int | None,
    obs_dim: int | None,
    action_dim: int | None,
    critic_dim: int,
    replay: int | None,
    steps: int | None,
    slots: int,
    as_json: bool,
) -> int:
    """Say how much memory there is and how much echo-ipc has; with sizes, how much a replay buffer (--replay) or a ring (--steps) needs.

    The exit code is 1 if that is more than there is.
    """
    result: dict[str, object] = {
        "available": get_available_memory_bytes(),
        "dev_shm_available": get_shared_memory_available_bytes(),
        "used_by_echo_ipc": sum(segment.nbytes for segment in segments()),
    }
    needed = 0
    if replay is not None or steps is not None:
        if num_envs is None or obs_dim is None or action_dim is None:
            raise click.UsageError("--replay and --steps need --num-envs, --obs-dim and --action-dim")
        if replay is not None:
            needed += estimate_offpolicy_bytes(num_envs, replay, obs_dim, action_dim, critic_dim)["total"]
        if steps is not None:
            needed += estimate_appo_bytes(num_envs, steps, obs_dim, action_dim, critic_dim, slots)["total"]
        result["needed"] = needed
    available = result["available"]
    fits = not isinstance(available, int) or needed <= available
    if as_json:
        click.echo(json.dumps(result | {"fits": fits}))
    else:
        names = {"available": "available to this process", "dev_shm_available": "free in /dev/shm", "used_by_echo_ipc": "used by echo-ipc", "needed": "needed"}
        for line in _table(["MiB", ""], [["unknown" if value is None else _mib(value), names[name]] for name, value in result.items()]):  # type: ignore[arg-type]
            click.echo(line)
        if not fits:
            click.echo("It does not fit. Use fewer environments or a smaller buffer, or raise the container's memory limit.")
    if not fits:
        raise click.exceptions.Exit(1)
    return 0


def _start(segment: FoundSegment) -> list[str]:
    return [segment.name, segment.kind, _mib(segment.nbytes), " ".join(map(str, segment.pids))]


def _written(segment: FoundSegment) -> int:
    return segment.figures[{"cell": "version", "ring": "written", "rows": "committed"}[segment.kind]]


def _figures(segment: FoundSegment) -> str:
    return "  ".join(f"{name} {value:,}" for name, value in segment.figures.items())


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]]
