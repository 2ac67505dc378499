"""The live view, which rich draws into the terminal; its last frame stays there."""

from __future__ import annotations

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .chart import curve, sparkline
from .monitor import Monitor, Snapshot, WorkerRow
from .options import Options
from .view import who_waits

_BEST = 500.0  # the highest possible return of CartPole-v1
_TOP = 550.0  # the top of the curve's axis, above the best return
_HEIGHT = 11  # rows of the return curve: 50 each
_WIDE = 100  # the number of columns from which on everything has room
_WIDEST = 120
_EVENTS = 3
_NEWS = 6.0  # seconds for which an event stays bright
_STATE_STYLES = {
    "streaming": "green",
    "idle": "dim",
    "waiting for space": "yellow",
    "waiting for weights": "yellow",
    "half a message": "magenta",
    "starting": "cyan",
}


class LiveView:
    """A `view.View` on a terminal."""

    def __init__(self, options: Options, address: str, console: Console | None = None) -> None:
        self.options = options
        self.address = address
        # There is no refresh thread: the view is drawn only when the learner has time for it.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def draw(self, snapshot: Snapshot, monitor: Monitor, last: bool = False) -> None:
        """Redraw everything."""
        self._live.update(self.render(snapshot, monitor), refresh=True)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *exit: object) -> None:
        self._live.__exit__(*exit)  # type: ignore[arg-type]

    def render(self, snapshot: Snapshot, monitor: Monitor) -> RenderableType:
        """The whole view as one rich renderable."""
        width = min(self._live.console.width, _WIDEST)
        wide = width >= _WIDE
        figures = 44 if wide else 34
        returns = max(20, width - figures - 6)
        body = Table.grid(padding=(0, 2))
        body.add_column(width=returns)
        body.add_column(width=figures)
        body.add_row(
            self._returns(snapshot, monitor, returns), _figures(snapshot, monitor, figures)
        )
        parts: list[RenderableType] = [
            body,
            Text(),
            _waiting(snapshot, wide),
            Text(),
            _workers(snapshot, wide),
        ]
        if snapshot.events:
            parts.append(_events(snapshot))
        return Panel(
            Group(*parts),
            title=f"[bold]Echo[/] · CartPole-v1 · {self.address}",
            subtitle=f"{snapshot.elapsed:.0f} of at most {self.options.seconds:.0f} s · Ctrl-C ends",
            box=ROUNDED,
            border_style="bright_black",
            width=width,
        )

    def _returns(self, snapshot: Snapshot, monitor: Monitor, width: int) -> Text:
        history = monitor.history
        axis = 4
        span = max(10.0, snapshot.elapsed)
        rows = curve(history.batch_time, history.mean_return, width - axis - 1, _HEIGHT, span, _TOP)
        target = self.options.target
        mark = _row(target) if 0 < target < _BEST else -1
        labels = {_row(value): f"{value:.0f}" for value in (0.0, _BEST / 2, _BEST)}
        reached = snapshot.reached_at is not None
        text = Text(no_wrap=True)
        text.append("mean return ", style="bold")
        text.append(f"{snapshot.mean_return:.1f}", style="bold green" if reached else "bold cyan")
        text.append(f"  of {snapshot.episodes:,} episodes\n", style="dim")
        for index, row in enumerate(rows):
            label = labels.get(index, "")
            if index == mark:
                label = f"{target:.0f}"
                row = row.replace("\u2800", "╌")  # the cells without a part of the curve
            text.append(label.rjust(axis) + " ", style="yellow" if index == mark else "dim")
            for part in _runs(row):
                text.append(part, style="yellow dim" if part[0] == "╌" else "cyan")
            text.append("\n")
        seconds = f"{span:.0f} s"
        text.append(" " * axis + " 0" + seconds.rjust(width - axis - 2), style="dim")
        return text


def _figures(snapshot: Snapshot, monitor: Monitor, width: int) -> Table:
    rest = width - 22
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", width=11)
    table.add_column(justify="right", width=8)
    table.add_column(width=rest, no_wrap=True)

    def row(label: str, value: str, right: RenderableType = "") -> None:
        table.add_row(label, Text(value, style="bold"), right)

    def trend(name: str, style: str) -> Text:
        return Text(sparkline(monitor.trend(name), rest), style=style)

    table.add_row("", "", "")
    row("learned/s", f"{snapshot.learned_per_s:,.0f}", trend("learned_per_s", "green"))
    row("env steps/s", f"{snapshot.steps_per_s:,.0f}")
    row("MB/s", f"{snapshot.mb_per_s:.2f}", trend("mb_per_s", "green"))
    row("batches/s", f"{snapshot.batches_per_s:.1f}", trend("batches_per_s", "blue"))
    row("policy", f"v{snapshot.version}", Text("published", style="dim"))
    row("policy lag", f"{snapshot.lag:.1f}", trend("lag", "magenta"))
    row("age", f"{snapshot.age_ms:.0f} ms", Text("when learned", style="dim"))
    share = snapshot.stored / max(1, snapshot.capacity)
    row("store", f"{snapshot.stored}/{snapshot.capacity}", _bar(share, rest - 5, "yellow"))
    return table


def _waiting(snapshot: Snapshot, wide: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("who waits  ", style="bold")
    shares = (("learner", snapshot.learner_waits), ("workers", snapshot.workers_wait))
    for name, share in shares:
        text.append(f"{name} ", style="dim")
        text.append(_bar(share, 8 if wide else 0, "red"))
        text.append("   " if wide else "  ")
    text.append(who_waits(snapshot))
    return text


def _row(value: float) -> int:
    """The row of the return curve, from the top, on which ``value`` lies."""
    return _HEIGHT - 1 - min(_HEIGHT - 1, int(_HEIGHT * value / _TOP))


def _workers(snapshot: Snapshot, wide: bool) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        expand=True,
        padding=(0, 2, 0, 0) if wide else (0, 1, 0, 0),
        header_style="dim",
        show_edge=False,
    )
    bar = 8 if wide else 5
    table.add_column("worker", no_wrap=True, min_width=8)
    table.add_column("pid", justify="right", no_wrap=True, min_width=7)
    table.add_column("inserted", justify="right", no_wrap=True, min_width=7)
    table.add_column("policy", justify="right", no_wrap=True, min_width=6)
    if wide:
        table.add_column("behind", justify="right", no_wrap=True)
    table.add_column("waits", min_width=bar + 5, no_wrap=True)
    table.add_column("state", ratio=1, no_wrap=True)
    table.add_column("since", justify="right", no_wrap=True, min_width=6)
    if wide:
        table.add_column("respawns", justify="right", no_wrap=True)
    for row in snapshot.workers:
        cells: list[RenderableType] = [
            Text(row.name, style="bold" if row.alive else "bold red"),
            str(row.pid or "-"),
            f"{row.samples:,}",
            f"v{row.version}" if row.version else "-",
            _bar(row.waits, bar, "red") if row.alive else Text(""),
            Text(row.state, style=_style(row), overflow="ellipsis"),
            _duration(row.since),
        ]
        if wide:
            cells.insert(4, str(row.behind) if row.version else "-")
            cells.append(Text(str(row.respawns), style="yellow" if row.respawns else "dim"))
        table.add_row(*cells)
    return table


def _events(snapshot: Snapshot) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for at, what in snapshot.events[-_EVENTS:]:
        fresh = snapshot.elapsed - at < _NEWS
        style = _event_style(what) if fresh else "dim"
        text.append(f"\n{at:6.1f} s  ", style="dim")
        text.append(what, style=style)
    return text


def _event_style(what: str) -> str:
    if " died" in what:
        return "red"
    return "green" if "respawned" in what or "above" in what else "yellow"


def _style(row: WorkerRow) -> str:
    return "red" if not row.alive else _STATE_STYLES.get(row.state, "")


def _bar(share: float, width: int, style: str) -> Text:
    share = min(1.0, max(0.0, share))
    full = round(share * width)
    text = Text("━" * full, style=style)
    text.append("━" * (width - full), style="bright_black")
    text.append(f" {share:4.0%}", style="dim")
    return text


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _runs(row: str) -> list[str]:
    """``row`` split at the changes between the target's line and the curve."""
    runs: list[str] = []
    for character in row:
        if runs and (runs[-1][0] == "╌") == (character == "╌"):
            runs[-1] += character
        else:
            runs.append(character)
    return runs
