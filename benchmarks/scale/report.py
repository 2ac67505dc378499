"""The model as Markdown: every quantity at the busiest server, and what breaks first."""

from __future__ import annotations

from dataclasses import asdict
from math import inf

from benchmarks.report import number
from benchmarks.scale.model import Constants, Job, Load, breaking, first, loads

#: (workers, shards) of the columns.
SIZES = ((1_000, 1), (10_000, 1), (10_000, 10), (10_000, 100))


def text(constants: Constants, job: Job) -> str:
    """Both tables."""
    return f"{measured(constants)}\n{table(constants, job)}"


def measured(constants: Constants) -> str:
    """The constants, a line each."""
    found = asdict(constants)
    rows = [
        ("a handshake", f"{found['handshake_server'] * 1e3:.2f} ms of the server's CPU, {found['handshake_client'] * 1e3:.1f} ms of the client's"),
        ("an idle connection at the server", f"{found['memory_server'] / 1e3:.1f} KB, {found['descriptors_server']:.0f} descriptor, {idle(constants)} of CPU"),
        ("a `Client`", f"{found['memory_client'] / 1e3:.0f} KB, {found['descriptors_client']:.0f} descriptors, {found['threads_client']:.0f} threads"),
        ("weights to workers", f"{found['weights'] / 1e9:.2f} GB for each second of the server's CPU"),
        (f"items of {constants.item_bytes / 1e3:.0f} KB into a replay table", f"{number(constants.inserts)} for each second of the server's CPU"),
        ("the same drawn by a remote learner, 256 at once", f"{number(constants.draws)} for each second of the server's CPU"),
        ("requests that draw one item", f"{number(constants.requests)} for each second of the server's CPU"),
    ]
    return "| constant | measured |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)


def idle(constants: Constants) -> str:
    return f"{constants.idle_server * 1e6:.1f} us a second"


def table(constants: Constants, job: Job) -> str:
    """The quantities, those first that break with the fewest workers on a server."""
    columns = [{load.key: load for load in loads(constants, job, *size)} for size in SIZES]
    order = sorted(columns[0], key=lambda key: (key == "learner-weights", breaking(constants, job, key)))
    heads = [f"{grouped(workers)} on {shards}" for workers, shards in SIZES]
    lines = [f"| quantity | limit | {' | '.join(heads)} | breaks above | remedy |", "|---" * (len(SIZES) + 4) + "|"]
    for key in order:
        one = columns[0][key]
        cells = " | ".join(cell(column[key]) for column in columns)
        lines.append(f"| {one.title} | {amount(one.limit, one.unit)} | {cells} | {above(constants, job, key)} | {one.remedy} |")
    for title, relays in (("**breaks first, without relays**", False), ("**breaks first, with relays**", True)):
        found = [first(column.values(), relays) for column in columns]
        lines.append(f"| {title} | | {' | '.join(f'{load.title} ({load.use:.0%})' for load in found)} | | |")
    return "\n".join(lines) + "\n"


def cell(load: Load) -> str:
    """An amount and its part of the limit; bold if it is beyond it."""
    found = f"{amount(load.amount, load.unit)} ({percent(load.use)})"
    return f"**{found}**" if load.use > 1 else found


def percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 or not part else "< 1%"


def amount(value: float, unit: str) -> str:
    if not unit:
        return grouped(value)
    if unit == "cores" and value == 1:
        return "1 core"
    found = number(value) if value >= 0.01 or not value else "< 0.01"
    return f"{found}{'' if found[-1:].isalpha() else ' '}{unit}"


def grouped(value: float) -> str:
    """A whole number as 10 000."""
    return f"{value:,.0f}".replace(",", " ")


def above(constants: Constants, job: Job, key: str) -> str:
    """With how many workers a server breaks."""
    count = breaking(constants, job, key)
    what = {"learner-weights": "shards", "intake": "workers in all"}.get(key, "workers")
    return "never" if count == inf else f"{grouped(count)} {what}"
