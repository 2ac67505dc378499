"""The command ``python -m benchmarks.ipc``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from . import __doc__ as description
from . import rivals
from .cases import HEAD, Case
from .replay import replay
from .rollouts import ping, stream
from .weights import SIZES, fresh, weights

SUITES: dict[str, list[Callable[[], Iterator[Case]]]] = {
    "weights": [lambda name=name: weights(name) for name in SIZES],
    "fresh": [lambda name=name: fresh(name) for name in ("10 MB", "100 MB")],
    "ping": [ping],
    "stream": [stream],
    "replay": [replay],
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ipc", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--pairs", type=int, default=31, help="slices of each side for each case (default 31)")
    parser.add_argument("--seconds", type=float, default=0.15, help="for a slice (default 0.15)")
    parser.add_argument("--unilab", type=Path, help=f"a checkout of UniLab (default: the environment variable {rivals.SOURCE})")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures of all slices")
    options = parser.parse_args(words)
    if options.unilab:
        os.environ[rivals.SOURCE] = str(options.unilab)
    print(HEAD)
    figures = {}
    for mode in options.modes:
        for suite in SUITES[mode]:
            with closing(suite()) as cases:
                for case in cases:
                    print(f"{case.name} ...", file=sys.stderr, flush=True)
                    case.run(options.pairs, options.seconds)
                    figures[case.name] = case.results
                    print(case.row(), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
