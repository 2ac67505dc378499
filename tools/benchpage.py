"""Write the results in docs/benchmarks.md and in the README from benchmark runs, so that nobody copies a number by hand.

    python tools/benchpage.py RESULT.json      # record this run: keep it as docs/benchmarks.json (replay tables: benchmarks-replay.json, with
                                               # its picture), and write the pages from it
    python tools/benchpage.py                  # write the pages from the recorded runs;  with --check: exit code 1 if one differs

`./dev bench` makes a run and prints where it wrote its JSON. The text of a page outside the marks stays unchanged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import report, suites  # noqa: E402
from benchmarks.results import Results  # noqa: E402

#: The recorded run of each suite.
RUNS = {"stream": ROOT / "docs" / "benchmarks.json", "replay": ROOT / "docs" / "benchmarks-replay.json"}
END = "<!-- end of what is made -->"

#: The cases in the README.
CHOSEN = {
    "tcp/20B/1w": "TCP, 20-byte samples, plain `send()`, 1 worker",
    "tcp/20B/4w": "the same, 4 workers",
    "tcp-batch/20B/1w": "TCP, the same in `send_batch` of 64 (beside a plain `send`)",
    "tcp/28KB/1w": "TCP, 28 KB frames, 1 worker",
    "tcp/28KB/4w": "the same, 4 workers",
    "tcp/1MB/4w": "TCP, 1 MB samples, 4 workers",
    "inproc/20B": "in process, `submit` → `sample`, 20 bytes",
    "inproc-2t/20B": "the same between two threads",
    "ready/20B": "`sample()` with a batch ready",
    "latency/20B/1w": "one sample on an idle link, `send` → `sample`, p50",
}
#: The texts that are made from a suite's run, and their places.
PAGES: list[tuple[str, Path, Callable[[Results], str]]] = [
    ("stream", ROOT / "docs" / "benchmarks.md", report.table),
    ("replay", ROOT / "docs" / "benchmarks.md", suites.part("replay", "report").table),
    ("stream", ROOT / "README.md", lambda results: report.brief(results, CHOSEN) + "\n"),
]


def page(name: str, text: str, run: str, made: str) -> str:
    """The page with `made`, the text from the run named `run`, between its marks."""
    begin = f"<!-- made by tools/benchpage.py from {run}: change neither here -->"
    before, found, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not (found and end):
        raise ValueError(f"{name} has lost its marks {begin!r} and {END!r}; put them where the results belong")
    return f"{before}{begin}\n\n{made}\n{END}{after}"


def main(arguments: list[str]) -> int:
    given = [Path(argument) for argument in arguments if argument != "--check"]
    runs = {results.suite: results for results in map(Results.load, given)}
    runs |= {suite: Results.load(run) for suite, run in RUNS.items() if suite not in runs}
    written = {path: path.read_text() for _, path, _ in PAGES}
    for suite, path, make in PAGES:
        written[path] = page(path.name, written[path], RUNS[suite].name, make(runs[suite]))
    if "--check" in arguments:
        return int(any(text != path.read_text() for path, text in written.items()))
    for path in given:
        suite = Results.load(path).suite
        RUNS[suite].write_text(json.dumps(json.loads(path.read_text()), indent=1) + "\n")
        if suite == "replay":
            suites.part(suite, "plot").draw(runs[suite], RUNS[suite].with_suffix(".png"))
    for path, text in written.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
