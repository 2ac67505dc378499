"""`python -m benchmarks scale`: measure and calculate, or with `--check N` try N connections."""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.scale import report
from benchmarks.scale.model import Constants, Job

#: Options that change an assumption of the model: the field of `Job`, and its help.
ASSUMPTIONS = {
    "weights_bytes": "bytes of one version",
    "version_every": "seconds between two versions",
    "items": "items a second that a worker sends",
    "connections": "connections of a worker",
    "node_workers": "workers on a machine, which share a relay",
    "network": "bytes a second of a server's network",
    "max_connections": "of a server",
    "descriptors": "that a server may have (ulimit -n)",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--check", type=int, nargs="?", const=2048, metavar="N", help="make N real connections to one server instead (default 2048)")
    parser.add_argument("--idle", type=float, default=20.0, metavar="SECONDS", help="of silence in a check")
    parser.add_argument("--constants", type=Path, metavar="FILE", help="take the constants from a result file instead of measuring")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="default: scale.png in --out")
    for name, title in ASSUMPTIONS.items():
        default = getattr(Job, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, metavar="X", help=f"{title} (default {default:g})")


def run(args: argparse.Namespace) -> None:
    """Raises ValueError for numbers that make no sense, and OSError."""
    from benchmarks.scale import check, constants

    job = replace(Job(), **{name: getattr(args, name) for name in ASSUMPTIONS})
    if wrong := [name for name, value in vars(job).items() if not value > 0]:
        raise ValueError(f"--{wrong[0].replace('_', '-')} must be above 0, not {getattr(job, wrong[0])}")
    if not args.idle > 0:
        raise ValueError(f"--idle must be above 0 seconds, not {args.idle}")
    os.environ["ECHO_TOKEN"] = secrets.token_hex(32)  # of the processes that are measured, and of nobody else
    logging.getLogger("echo").setLevel(logging.ERROR)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.check is not None:
        found = check.check(args.check, args.idle)
        (args.out / "scale-check.json").write_text(json.dumps({**describe(), "check": found}, indent=1) + "\n")
        print(check.lines(found), end="")
        return
    if args.constants is not None:
        content = json.loads(args.constants.read_text())
        measured = read(content, args.constants)
    else:
        measured = constants.measure()
        content = describe()
    content.update(constants=asdict(measured), job=asdict(job))
    (args.out / "scale.json").write_text(json.dumps(content, indent=1) + "\n")
    text = report.text(measured, job)
    (args.out / "scale.md").write_text(text)
    print(text, end="")
    picture = args.picture or args.out / "scale.png"
    try:
        from benchmarks.scale import plot
    except ImportError as error:
        print(f"no picture: {error}; run: pip install matplotlib", file=sys.stderr)
        return
    plot.draw(measured, job, picture)
    print(f"Written: {args.out / 'scale.json'}, .md and {picture}", file=sys.stderr)


def read(content: Any, file: Path) -> Constants:
    """The constants of a result file. Raises ValueError that names what is missing."""
    found = content.get("constants") if isinstance(content, dict) else None
    names = {field.name for field in fields(Constants)}
    if not isinstance(found, dict) or set(found) != names:
        missing = sorted(names - set(found)) if isinstance(found, dict) else ["constants"]
        raise ValueError(f"{file} is not a result of `scale`: {', '.join(missing) or 'unknown constants'}")
    if wrong := [name for name, value in found.items() if not isinstance(value, (int, float)) or value < 0]:
        raise ValueError(f"{file}: {wrong[0]} must be a number of at least 0, not {found[wrong[0]]!r}")
    return Constants(**found)
