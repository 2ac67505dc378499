"""`echoctl cluster status`: one view of all shards of a cluster."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from echo_core.base.foreign_text import escaped
from echoctl.output import json_option, print_json

from .looks import look_at_all
from .members import find_members
from .serve_command import serve

__all__ = ["command", "lines"]


@click.group(name="cluster", short_help="run and watch the shards of echo-cluster")
def command() -> None:
    """Run and watch the shards of a cluster. `echoctl drain` takes one of them out of service."""


command.add_command(serve)


@command.command(name="status", short_help="show all shards: workers, items and masses")
@click.argument("members", nargs=-1, required=True)
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.05), default=1.0, show_default=True, help="Seconds between two reports.")
@click.option("--timeout", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds in which a shard must answer.")
@json_option
def status(members: tuple[str, ...], watch: bool, interval: float, timeout: float, as_json: bool) -> int:
    """Show the shards that MEMBERS name: several addresses, or one of file://FOLDER, dns://NAME:PORT?transport=tcp and slurm://."""
    one = len(members) == 1 and members[0].partition("://")[0] in ("file", "dns", "slurm")
    find = find_members(members[0] if one else list(members))
    looks = 0
    while True:
        rows = look_at_all(find(), timeout)
        if as_json:
            print_json({"shards": rows})
        else:
            if looks and os.isatty(1):
                click.clear()
            for line in lines(rows):
                click.echo(line)
        looks += 1
        if not watch:
            return 0 if all(row["state"] == "up" for row in rows) and rows else 1
        time.sleep(interval)


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """What a person reads of the shards, and of their sum."""
    if not rows:
        return ["the members name no shard yet"]
    shown = []
    for row in rows:
        shown.append(f"{escaped(row['shard'])}  {row['state']}  {escaped(row['address'])}  {row['workers']} connections")
        if row["error"]:
            shown.append(f"  {escaped(row['error'])}")
        for name, table in row["tables"].items():
            mass = "" if table["mass"] is None else f"  mass {table['mass']:,.6g}"
            why = f"  {escaped(table['blocked_by'])}" if table["blocked_by"] else ""
            shown.append(f"  {escaped(name)}: {table['size']:,} items  {table['inserts']:,} inserted  {table['samples']:,} drawn{mass}{why}")
    up = [row for row in rows if row["state"] == "up"]
    items = sum(table["size"] for row in up for table in row["tables"].values())
    shown.append(f"{len(up)} of {len(rows)} shards up  {sum(row['workers'] for row in up)} connections  {items:,} items")
    return shown
