"""Result files as Markdown: a table per mode with ratios to id-echo, and a comparison of two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from benchmarks import bars
from benchmarks.cases import MODES
from benchmarks.payloads import PAYLOADS
from benchmarks.results import Results, Spread

#: Further figures shown below the tables: their heading, and how they are formatted.
DETAILS = {
    "learner_cpu_us": ("learner CPU per sample, µs", "{:.3g}"),
    "worker_cpu_us": ("workers' CPU per sample, µs", "{:.3g}"),
}


def number(value: float) -> str:
    """Three significant digits with k and M: 12.3 k, 4.56 M, 78."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * limit:
            form = "{:.3g}{}" if abs(value) < 999.5 * limit else "{:.0f}{}"
            return form.format(value / limit, suffix)
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def factor(value: float) -> str:
    """A ratio: 23×, 3.1×, 0.42×."""
    digits = 0 if value >= 9.95 else 1 if value >= 0.95 else 2
    return f"{value:.{digits}f}×"


def table(results: Results) -> str:
    """The whole report of one result file."""
    parts = [_heading(results)]
    for mode in MODES.values():
        names = [name for name, case in results.cases.items() if case["mode"] == mode.name]
        systems = [s for s in results.systems if any(_cell(results, n, s) != "–" for n in names)]
        if systems:
            title = f"### {mode.title} ({mode.metric.unit})"
            parts.append(f"{title}\n\n{_mode(results, names, systems)}")
    parts += [_latency(results), *_details(results), summary(results, bars.check), notes(results)]
    return "\n\n".join(filter(None, parts)) + "\n"


def brief(results: Results, titles: Mapping[str, str]) -> str:
    """A short table: our figure, id-echo's and the ratio for some cases, which get these titles; without those the file has not."""
    rows = []
    for name, title in titles.items():
        ours = results.main_figure(name, bars.OURS) if name in results.cases else None
        if ours is None:
            continue
        theirs = results.main_figure(bars.stand_in(name), bars.BASELINE)
        times = bars.ratio(results, name, bars.OURS)
        unit = {"samples/s": "/s", "µs per call": " µs"}.get(results.metric(name).unit, f" {results.metric(name).unit}")
        shown = [f"{number(figure.median)}{unit}" if figure else "–" for figure in (ours, theirs)]
        rows.append([title, *shown, factor(times) if times is not None else "–"])
    return _rows(["", bars.OURS.capitalize(), bars.BASELINE, ""], rows)


def _rows(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _label(results: Results, case: str) -> str:
    described = results.cases[case]
    parts = [PAYLOADS[described["payload"]].title.replace("\n", " / ")]
    if described["connections"]:
        parts.append(f"{described['connections']} connections")
    elif described["workers"]:
        parts.append(f"{described['workers']} worker" + "s" * (described["workers"] > 1))
    return ", ".join(parts)


def _cell(results: Results, case: str, system: str) -> str:
    """Median with half the quartile distance, the ratio, and what went wrong."""
    figure = results.main_figure(case, system)
    parts = []
    if figure is not None:
        parts.append(f"{number(figure.median)} ±{figure.percent:.0f} %")
        times = bars.ratio(results, case, system)
        if times is not None and (system != bars.BASELINE or bars.stand_in(case) != case):
            parts.append(f"**{factor(times)}**" if system == bars.OURS else factor(times))
    trouble = results.troubles(case, system)
    if trouble:
        parts.append(f"({trouble})")
    return " ".join(parts) or "–"


def _mode(results: Results, names: list[str], systems: list[str]) -> str:
    rows, judged = [], any(bars.check(results, name) for name in names)
    for name in names:
        row = [_label(results, name), *(_cell(results, name, s) for s in systems)]
        if judged:
            row.append("; ".join(verdict.text for verdict in bars.check(results, name)))
        rows.append(row)
    return _rows(["", *systems, *(["must reach"] if judged else [])], rows)


def origin(results: Results) -> str:
    """Where a result file comes from: machine, systems, revision, time."""
    c = results.content
    machine = c["machine"]
    revision = (c["git"]["revision"] or "unknown")[:12] + ("+changes" if c["git"]["dirty"] else "")
    versions = ", ".join(f"{name} {version}" for name, version in c["systems"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}, "
        f"numpy {machine['numpy']} · {versions} · revision {revision} · {c['created']}"
    )


def _heading(results: Results) -> str:
    settings = results.content["settings"]
    return (
        f"{origin(results)}\n\n"
        f"Medians of {settings['repeat']} interleaved runs of {settings['seconds']:g} s after "
        f"{settings['warmup']:g} s of warm-up; ± is half the distance between the quartiles; "
        f"× is how many times better than id-echo in the same run."
    )


def _latency(results: Results) -> str:
    """All percentiles of the latency cases."""
    rows = []
    for name, case in results.cases.items():
        if case["mode"] != "latency":
            continue
        for system in results.systems:
            keys = ("p50_us", "p90_us", "p99_us")
            spreads = [results.figure(name, system, key) for key in keys]
            if all(spreads):
                rows.append([system, *(_with_spread(s) for s in spreads if s)])
    header = ["system", "p50", "p90", "p99"]
    title = "### Idle latency of single samples, percentiles (µs; median of runs, min–max)"
    return f"{title}\n\n{_rows(header, rows)}" if rows else ""


def _with_spread(spread: Spread) -> str:
    return f"{number(spread.median)} ({number(spread.low)}–{number(spread.high)})"


def _details(results: Results) -> Iterable[str]:
    for key, (title, form) in DETAILS.items():
        rows = []
        for name, case in results.cases.items():
            if not case["workers"] or case["mode"] not in ("tcp", "tcp-batch", "shm", "shm-batch"):
                continue
            figures = [results.figure(name, system, key) for system in results.systems]
            if any(figures):
                cells = [form.format(f.median) if f else "–" for f in figures]
                rows.append([f"{_label(results, name)}, {case['mode']}", *cells])
        if rows:
            yield f"### TCP and shared memory: {title}\n\n{_rows(['', *results.systems], rows)}"


def summary(results: Results, check: Callable[[Results, str], list[bars.Verdict]]) -> str:
    """How many of the bars that `check` knows were met, and which were not."""
    verdicts = [(name, v) for name in results.cases for v in check(results, name)]
    if not verdicts:
        return ""
    met = sum(v.ok is True for _, v in verdicts)
    unknown = sum(v.ok is None for _, v in verdicts)
    missed = [f"- {name}: {v.text}" for name, v in verdicts if v.ok is False]
    line = f"{met} of {len(verdicts)} bars met, {len(missed)} missed"
    if unknown:
        line += f", {unknown} without figures"
    return "### Must reach\n\n" + "\n".join([line + ".", *([""] if missed else []), *missed])


def notes(results: Results) -> str:
    """What the harness and the systems had to say."""
    lines = [f"- {note}" for note in results.content["notes"] + results.all_troubles()]
    return "### Notes\n\n" + "\n".join(lines) if lines else ""


def compare(before: Results, after: Results) -> str:
    """Two result files case by case; a change is marked where the quartiles do not overlap."""
    rows = []
    for name in after.cases:
        if name not in before.cases:
            continue
        metric = after.metric(name)
        for system in after.systems:
            a, b = before.main_figure(name, system), after.main_figure(name, system)
            if a is None or b is None or not a.median or not b.median:
                continue
            times = b.median / a.median
            gain = times if metric.more_is_better else 1 / times
            apart = b.q1 > a.q3 or a.q1 > b.q3
            mark = ("better" if gain > 1 else "worse") if apart else "within the spread"
            rows.append(
                [
                    name,
                    system,
                    f"{number(a.median)} ±{a.percent:.0f} %",
                    f"{number(b.median)} ±{b.percent:.0f} %",
                    metric.unit,
                    f"{gain:.2f}×",
                    mark,
                ]
            )
    if not rows:
        return "The two files have no case and system in common.\n"
    return _rows(["case", "system", "before", "after", "unit", "gain", ""], rows) + "\n"
