"""Write the figures of docs/benchmarks.md from a benchmark run, so that nobody copies a figure by hand.

    python tools/benchpage.py RESULT.json      # record this run: keep it as docs/benchmarks.json, and write the page from it
    python tools/benchpage.py                  # write the page from the recorded run;  with --check: exit code 1 if it differs

A run is made by `./dev bench`, which says where it wrote its JSON. Everything of the page outside the two marks is left as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from benchmarks.results import Results  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks.md"
RUN = ROOT / "docs" / "benchmarks.json"
BEGIN, END = "<!-- made by tools/benchpage.py from benchmarks.json: change neither here -->", "<!-- end of what is made -->"


def page(text: str, results: Results) -> str:
    """The page with the figures of a run between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has lost its marks {BEGIN!r} and {END!r}; put them where the figures belong")
    return f"{before}{begin}\n\n{report.table(results)}\n{end}{after}"


def main(arguments: list[str]) -> int:
    given = [Path(argument) for argument in arguments if argument != "--check"]
    source = given[0] if given else RUN
    written = page(PAGE.read_text(), Results.load(source))
    if "--check" in arguments:
        return int(written != PAGE.read_text())
    if given:
        RUN.write_text(json.dumps(json.loads(source.read_text()), indent=1) + "\n")
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
