"""`echoctl top`: shows a running server live."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from echo_core.base.errors import EchoError, JobEnded
from echo_core.base.foreign_text import escaped
from echo_core.base.plural import counted
from echo_core.client.observer import Observer

from ..output import console, json_option, print_json
from ..view import Snapshot, Watcher
from ..web import WebView

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

__all__ = ["command"]


@click.command(name="top", short_help="watch a running server, in the terminal or in a browser")
@click.argument("address")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between updates.")
@click.option("--count", type=click.IntRange(1), help="End after this many updates.")
@click.option("--web", is_flag=True, help="Serve the view as a web page instead.")
@click.option("--web-host", default="127.0.0.1", show_default=True, help="Host of the web page.")
@click.option("--web-port", type=click.IntRange(0, 65535), default=0, help="Port of the web page (0: any free port).")
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to reach the server.")
@click.option("--no-auth", is_flag=True, help="Connect without a token to a server that asks for none.")
@json_option
def command(address: str, interval: float, count: int | None, web: bool, web_host: str, web_port: int, timeout: float,
            no_auth: bool, as_json: bool) -> int:  # fmt: skip
    """Watch the server at ADDRESS: workers, rates, fill, policy lag, and who waits for whom since when.

    It takes no samples and does not count as a worker. It ends when the server ends the job. --json prints one JSON object for each update.
    """
    with Observer(address, timeout=timeout, auth=not no_auth, name="echoctl top") as observer:
        try:
            return _serve(observer, interval, web_host, web_port, as_json) if web else _print(observer, address, interval, count, as_json)
        except JobEnded:
            click.echo(f"the server at {observer.address} has ended the job", err=True)
            return 0


def _print(observer: Observer, address: str, interval: float, count: int | None, as_json: bool) -> int:
    snapshots = _looks(observer, interval, count)
    if as_json:
        for snapshot in snapshots:
            print_json(snapshot.to_json())
    elif not (screen := console()).is_terminal:
        for snapshot in snapshots:
            screen.print(render(snapshot, address))
    else:
        from rich.live import Live

        with Live(console=screen, auto_refresh=False, screen=count is None) as live:
            for snapshot in snapshots:
                live.update(render(snapshot, address), refresh=True)
    return 0


def _looks(observer: Observer, interval: float, count: int | None) -> Iterator[Snapshot]:
    watcher = Watcher()
    watcher.look(observer.stats())
    number = 0
    due = time.monotonic()
    while count is None or number < count:
        due += interval
        time.sleep(max(0.0, due - time.monotonic()))
        yield watcher.look(observer.stats())
        number += 1


def _serve(observer: Observer, interval: float, host: str, port: int, as_json: bool) -> int:
    view = WebView(str(observer.address), secrets.token_urlsafe(24), host, port)
    try:
        if as_json:
            print_json({"url": view.url})
        else:
            click.echo(f"{view.url}\nOnly people who have this link can see the view. Ctrl-C ends it.")
        for snapshot in _looks(observer, interval, None):
            view.show(snapshot)
    except EchoError as error:
        view.end(str(error))
        raise
    finally:
        view.close()
    return 0


def render(snapshot: Snapshot, address: str) -> RenderableType:
    """The snapshot as one rich renderable."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lag = f"{snapshot.lag_mean:.1f} mean, {snapshot.lag_max} most"
    figures = [
        Text.assemble(("inserts/s ", "dim"), short(snapshot.inserts_per_s)),
        Text.assemble(("draws/s ", "dim"), short(snapshot.draws_per_s)),
        Text.assemble(("MB/s ", "dim"), f"{snapshot.bytes_per_s / 1e6:.2f}"),
        Text.assemble(("batches/s ", "dim"), f"{snapshot.batches_per_s:,.1f}"),
        Text.assemble(("policy ", "dim"), f"v{snapshot.weights_version}", (" lag ", "dim"), lag),
    ]
    if not snapshot.tables:
        fill = Text.assemble(("store ", "dim"), _bar(snapshot.stored, snapshot.capacity, 20))
        figures.append(fill + Text(f" {short(snapshot.stored)}/{short(snapshot.capacity)}, {snapshot.leases_held} leased"))
    tables = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("table", "size of capacity", "inserts/s", "draws/s", "draws per insert", "limiter holds"):
        tables.add_column(name, justify="left" if name in ("table", "limiter holds") else "right", no_wrap=name != "table", overflow="fold")
    for row in snapshot.tables:
        size = _bar(row.size, row.capacity, 6) + Text(f" {short(row.size)} of {short(row.capacity)}")
        held = Text(row.holds, style="dim" if row.holds == "nobody" else "yellow")
        tables.add_row(Text(row.name), size, short(row.inserts_per_s), short(row.draws_per_s), f"{row.samples_per_insert:.2f}", held)
    workers = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("worker", "inserted", "inserts/s", "MB/s", "policy", "behind", "state", "since"):
        # Only names wrap in a narrow terminal, so that figures stay whole.
        workers.add_column(name, justify="left" if name in ("worker", "state") else "right", no_wrap=name != "worker", overflow="fold")
    styles = {"streaming": "green", "idle": "dim", "waiting for space": "yellow", "waiting for weights": "yellow", "half a message": "magenta"}
    for worker in snapshot.workers:
        workers.add_row(
            Text(worker.name),
            short(worker.inserted),
            short(worker.inserts_per_s),
            f"{worker.bytes_per_s / 1e6:.2f}",
            f"v{worker.weights_version}" if worker.weights_version else "-",
            "-" if worker.lag is None else str(worker.lag),
            Text(worker.state, style=styles.get(worker.state, "")),
            f"{worker.since:.1f} s",
        )
    waits = Text("\n".join(snapshot.waits) or "nobody waits", style="yellow" if snapshot.waits else "dim")
    head = Text.assemble(("Echo ", "bold"), address, f"   {counted(len(snapshot.workers), 'worker')}, {counted(snapshot.inserts_total, 'sample')} inserted")
    others = [Text.assemble((f"{name} ", "dim"), escaped(value) if isinstance(value, str) else f"{value:,.6g}") for name, value in snapshot.others.items()]
    parts: list[RenderableType] = [head, Columns(figures, padding=(0, 3)), *([Columns(others, padding=(0, 3))] if others else [])]
    parts += [*([tables] if snapshot.tables else []), waits, workers]
    return Group(*[each for part in parts for each in (part, Text())][:-1])


def short(value: float) -> str:
    """A count in at most six characters: `9,999`, `12.3k`, `1.00M`."""
    if value < 9_999.5:
        return f"{value:,.0f}"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{letter}"
    raise AssertionError


def _bar(part: int, whole: int, width: int) -> Text:
    from rich.text import Text

    full = round(width * part / whole) if whole else 0
    return Text("━" * full, style="yellow") + Text("━" * (width - full), style="bright_black")
