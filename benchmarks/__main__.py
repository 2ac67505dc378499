"""The command line: ``python -m benchmarks run|replay|scale|merge|table|plot|compare|cases``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks import harness, merge, report, suites
from benchmarks.cases import Case, select
from benchmarks.harness import Result, Settings
from benchmarks.results import Results
from benchmarks.scale import command as scale

FULL = Settings()
QUICK = Settings(repeat=3, seconds=0.8, warmup=0.4)

#: The commands that measure, and what each does.
RUNS = {"run": ("stream", "measure streams; writes JSON, Markdown and a picture"), "replay": ("replay", "measure replay tables; the same")}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Echo measured against its rivals.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, (suite, title) in RUNS.items():
        run = commands.add_parser(command, help=title)
        systems = list(suites.part(suite, "adapters").SYSTEMS)
        run.add_argument("--cases", nargs="+", metavar="PATTERN", help="e.g. tcp 'tcp/20B/*' latency")
        run.add_argument("--systems", nargs="+", choices=systems, default=systems)
        run.add_argument("--repeat", type=int, help=f"rounds (default {FULL.repeat})")
        run.add_argument("--seconds", type=float, help=f"measured each (default {FULL.seconds:g})")
        run.add_argument("--patience", type=float, help="seconds of silence before a run is hung")
        run.add_argument("--quick", action="store_true", help="fewer cases, shorter runs: some minutes")
        run.add_argument("--out", type=Path, default=Path("build/benchmarks"), metavar="DIR")
        run.set_defaults(suite=suite)
    scale.configure(commands.add_parser("scale", help="how many workers a server can have: measured constants in a model, or a check with real connections"))
    joined = commands.add_parser("merge", help="result files of parts of a suite as one")
    joined.add_argument("files", type=Path, nargs="+", metavar="FILE")
    joined.add_argument("--out", type=Path, required=True, metavar="FILE")
    table = commands.add_parser("table", help="print a result file as Markdown")
    table.add_argument("file", type=Path)
    picture = commands.add_parser("plot", help="draw a result file")
    picture.add_argument("file", type=Path)
    picture.add_argument("--out", type=Path, help="default: next to the file, .png")
    compare = commands.add_parser("compare", help="two result files, case by case")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    commands.add_parser("cases", help="list the cases")
    return parser


def _settings(args: argparse.Namespace) -> Settings:
    base = QUICK if args.quick else FULL
    if args.suite == "replay":
        base = replace(base, patience=60.0)  # some systems take long to import, and none here is known to hang
    given = {key: getattr(args, key) for key in ("repeat", "seconds", "patience")}
    changes = {key: value for key, value in given.items() if value is not None}
    if args.repeat is not None and args.repeat < 1:
        raise ValueError("--repeat must be at least 1")
    return Settings(**{**vars(base), **changes})


class _Progress:
    """A line per run on stderr: what came out, and when all will be over."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, done: int, total: int, case: Case, system: str, result: Result | None) -> None:
        if result is None:
            return
        left = (time.monotonic() - self._start) / done * (total - done)
        if result["status"] == "ok":
            metric = case.metric
            outcome = f"{report.number(result['figures'][metric.key])} {metric.unit}"
        else:
            outcome = f"{result['status']}: {result['reason']}"
        eta = f"{left / 60:.0f} min left" if left > 90 else f"{left:.0f} s left"
        print(f"[{done}/{total}, {eta}] {case.name} {system}: {outcome}", file=sys.stderr)


def _run(args: argparse.Namespace) -> None:
    cases = select(args.cases, args.quick, suites.part(args.suite, "cases").CASES)
    content = harness.run(cases, args.systems, _settings(args), _Progress(), args.suite)
    results = Results(content)
    args.out.mkdir(parents=True, exist_ok=True)
    name = "quick" if args.quick else "full" if not args.cases else "selected"
    stem = args.out / (name if args.suite == "stream" else f"{args.suite}-{name}")
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    text = suites.part(args.suite, "report").table(results)
    stem.with_suffix(".md").write_text(text)
    print(text)
    print(f"Written: {stem}.json and .md", file=sys.stderr)
    _plot(results, stem.with_suffix(".png"))


def _plot(results: Results, path: Path) -> None:
    """Draw, where matplotlib is; figures that took half an hour are not lost for want of it."""
    try:
        plot = suites.part(results.suite, "plot")
    except ImportError as error:
        print(f"no picture: {error}; run: pip install matplotlib", file=sys.stderr)
        return
    plot.draw(results, path)
    print(f"Drawn: {path}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        if args.command in RUNS:
            _run(args)
        elif args.command == "scale":
            scale.run(args)
        elif args.command == "merge":
            content = merge.merge([Results.load(file) for file in args.files])
            args.out.write_text(json.dumps(content, indent=1) + "\n")
        elif args.command == "table":
            results = Results.load(args.file)
            print(suites.part(results.suite, "report").table(results), end="")
        elif args.command == "plot":
            _plot(Results.load(args.file), args.out or args.file.with_suffix(".png"))
        elif args.command == "compare":
            before, after = Results.load(args.before), Results.load(args.after)
            print(report.compare(before, after), end="")
        else:
            for suite in suites.PACKAGES:
                part = suites.part(suite, "cases")
                for case in part.CASES.values():
                    print(f"{case.name:<24} {part.MODES[case.mode].title}{'  (quick)' * case.quick}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; every process that was started has been killed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
