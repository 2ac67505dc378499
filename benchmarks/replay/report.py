"""Result files of replay tables as Markdown: one table, a row for each case, with how many times Echo is of each rival."""

from __future__ import annotations

from benchmarks.replay import bars
from benchmarks.replay.cases import MODES, NETWORK
from benchmarks.replay.items import ITEMS
from benchmarks.report import factor, notes, number, origin, summary
from benchmarks.results import Results


def table(results: Results) -> str:
    """The whole report of one result file."""
    parts = [_heading(results), _figures(results), _hindrance(results), summary(results, bars.check), notes(results)]
    return "\n\n".join(filter(None, parts)) + "\n"


def label(results: Results, case: str) -> str:
    """Describe a case in words."""
    c = results.cases[case]
    many = f"{c['capacity'] / 1e6:g} M" if c["capacity"] >= 1_000_000 else f"{c['capacity'] // 1000} k"
    text = f"{MODES[c['mode']].title}; {ITEMS[c['payload']].title}, {many} items"
    if MODES[c["mode"]].needs in NETWORK:
        text += f", {c['workers']} workers"
    return text


def _cell(results: Results, case: str, system: str) -> str:
    """Median with half the quartile distance, how many times that Echo is, and what went wrong."""
    figure = results.main_figure(case, system)
    parts = []
    if figure is not None:
        parts.append(f"{number(figure.median)} ±{figure.percent:.0f} %")
        ratio = bars.times(results, case, system)
        if system != bars.OURS and ratio is not None:
            parts.append(f"({factor(ratio)})")
    trouble = results.troubles(case, system)
    if trouble:
        parts.append(f"({trouble})")
    return " ".join(parts) or "–"


def _figures(results: Results) -> str:
    lines = ["| | unit | " + " | ".join([*results.systems, "must reach"]) + " |", "|---" * (len(results.systems) + 3) + "|"]
    for name in results.cases:
        cells = [label(results, name), results.metric(name).unit, *(_cell(results, name, s) for s in results.systems)]
        lines.append("| " + " | ".join([*cells, "; ".join(v.text for v in bars.check(results, name))]) + " |")
    return "\n".join(lines)


def _heading(results: Results) -> str:
    settings = results.content["settings"]
    return (
        f"{origin(results)} · load {results.content['machine']['load']} when it began\n\n"
        f"Medians of {settings['repeat']} interleaved runs of {settings['seconds']:g} s; ± is half the distance between the quartiles; "
        f"× says how many times better than that system Echo is."
    )


def _hindrance(results: Results) -> str:
    """For the cases beside workers: the share of its time that the learner had a core, and what it drew in that."""
    lines = []
    for name, case in results.cases.items():
        for system in results.systems:
            share, rate, inserts = (results.figure(name, system, key) for key in ("core_share", "unhindered_rate", "insert_rate"))
            if case["mode"] in ("pair-writer", "tcp-sample") and share and rate and inserts:
                cells = [name, system, number(inserts.median), f"{100 * share.median:.0f} %", number(rate.median)]
                lines.append("| " + " | ".join(cells) + " |")
    if not lines:
        return ""
    header = "| case | system | inserts/s meanwhile | learner had a core | draws per second of those |\n|---|---|---|---|---|\n"
    return "### Learners beside workers\n\n" + header + "\n".join(lines)
