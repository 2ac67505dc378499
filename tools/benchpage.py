"""Write the figures of docs/benchmarks.md and of the README from a benchmark run, so that nobody copies a figure by hand.

    python tools/benchpage.py RESULT.json      # record this run: keep it as docs/benchmarks.json, and write the pages from it
    python tools/benchpage.py                  # write the pages from the recorded run;  with --check: exit code 1 if one differs

A run is made by `./dev bench`, which says where it wrote its JSON. Everything of a page outside the two marks is left as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from benchmarks.results import Results  # noqa: E402

RUN = ROOT / "docs" / "benchmarks.json"
BEGIN, END = "<!-- made by tools/benchpage.py from benchmarks.json: change neither here -->", "<!-- end of what is made -->"

#: What the README shows.
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
PAGES: dict[Path, Callable[[Results], str]] = {
    ROOT / "docs" / "benchmarks.md": report.table,
    ROOT / "README.md": lambda results: report.brief(results, CHOSEN) + "\n",
}


def page(name: str, text: str, results: Results, make: Callable[[Results], str]) -> str:
    """The page with the figures of a run between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{name} has lost its marks {BEGIN!r} and {END!r}; put them where the figures belong")
    return f"{before}{begin}\n\n{make(results)}\n{end}{after}"


def main(arguments: list[str]) -> int:
    given = [Path(argument) for argument in arguments if argument != "--check"]
    source = given[0] if given else RUN
    results = Results.load(source)
    written = {path: page(path.name, path.read_text(), results, make) for path, make in PAGES.items()}
    if "--check" in arguments:
        return int(any(text != path.read_text() for path, text in written.items()))
    if given:
        RUN.write_text(json.dumps(json.loads(source.read_text()), indent=1) + "\n")
    for path, text in written.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
