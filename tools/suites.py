"""Run tox's environments, several at a time, and print the outcome of all tests in the last line.

    python tools/suites.py                    # every suite; what may differ between Pythons also on the newest one
    python tools/suites.py --every-python     # every suite; what may differ between Pythons also on each that is installed
    python tools/suites.py --quick            # a choice of tests on one Python, about five minutes: the environment `quick`
    python tools/suites.py py311-tcp ...      # these

The wheels are built once for each Python: first those that most environments use, the others meanwhile. A test that no environment has
run is an error, unless tests/may_skip.toml names it. The output of each environment is in build/outcomes/ENVIRONMENT.log, and is shown if the
environment failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "outcomes"
RAN = {"passed", "failed", "error", "xfailed"}
KIT = "echo_testing/"
SHOWN = 400  # the number of log lines shown of an environment that failed
REPEATED = 80  # the number of lines repeated of it at the very end
QUIET = 60.0  # seconds after which a line lists the running environments
USUAL = {"whole": 27 * 60.0, "quick": 5 * 60.0}  # seconds on 2 cores, for a checkout in which nothing has run yet
OTHERS = "-g0 -O1"  # CXXFLAGS of the wheels for all but the first Python, as in tox.ini
# What the environment `quick` installs.
QUICK_PROJECTS = ("echo_core", "echo_net", "echo_replay", "echo_testing", "samplers", "plugins/echo_tcp", "plugins/echo_shm")


@dataclass
class Outcome:
    """The outcome of one environment."""

    name: str
    seconds: float
    code: int
    cpu: float = 0.0  # seconds of processor time
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        counts = Counter(self.record.get("outcomes", {}).values())
        if self.code and not counts["failed"] + counts["error"]:
            counts["error"] += 1  # the environment could not be installed, or pytest itself failed
        return counts


def environments() -> list[str]:
    """The names in tox's env_list, in its order."""
    listed = subprocess.run(["tox", "list", "--no-desc", "-q"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return [line.strip() for line in listed.stdout.splitlines() if re.fullmatch(r"py3\d+-\w+", line.strip())]


def python_of(environment: str) -> str:
    """The command of an environment's Python; for py311-core it is python3.11."""
    return re.sub(r"py3(\d+)-.*", r"python3.\1", environment)


def is_here(python: str) -> bool:
    return shutil.which(python) is not None and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def on_the_newest(environments: list[str], first: str) -> list[str]:
    """Of a suite that several Pythons after the first one run, only the environment of the newest: the oldest and the newest differ the most."""
    newest = {suite: name for name in environments if python_of(name) != first for suite in [name.partition("-")[2]]}
    return [name for name in environments if python_of(name) == first or newest[name.partition("-")[2]] == name]


def say(text: str) -> None:
    print(text, flush=True)


def build(python: str, *projects: str, others: bool = False) -> int:
    """Build the wheels that environments will install, of all projects by default. Says how far it is, unless tests run meanwhile (`others`)."""
    say(f"building the wheels for {python}")
    begun = time.monotonic()
    command = [*(("nice", "-n", "15") if others else ()), python, str(ROOT / "tools" / "wheels.py"), *projects]
    env = {**os.environ, "CXXFLAGS": OTHERS} if others else None
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE if others else None, env=env, text=True, check=False)
    if done.returncode:
        say(done.stdout + (done.stderr or ""))
    say(f"{python}: wheels {'failed' if done.returncode else 'built'} in {time.monotonic() - begun:.0f} s")
    return done.returncode


class Runner:
    """Runs environments and prints which ones are running."""

    def __init__(self) -> None:
        self._running: list[str] = []
        self._spoke = time.monotonic()
        self._lock = threading.Lock()

    def run(self, environment: str) -> Outcome:
        log, file = OUT / f"{environment}.log", OUT / f"{environment}.json"
        begun = time.monotonic()
        with self._lock:
            self._running.append(environment)
        with log.open("w") as out:
            process = subprocess.Popen(["tox", "run", "-e", environment], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)  # includes the time of its children
        process.returncode = os.waitstatus_to_exitcode(status)
        record = json.loads(file.read_text()) if file.exists() else {}
        outcome = Outcome(environment, time.monotonic() - begun, process.returncode, used.ru_utime + used.ru_stime, record)
        with self._lock:
            self._running.remove(environment)
            self._spoke = time.monotonic()
            if outcome.code:
                say("\n".join([f"{environment} FAILED; the end of {log.relative_to(ROOT)}:", *log.read_text().splitlines()[-SHOWN:]]))
            say(f"{environment}: {told(outcome.counts)} in {outcome.seconds:.0f} s ({outcome.cpu:.0f} s of processor time)")
        return outcome

    def all(self, names: list[str], jobs: int) -> list[Outcome]:
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self.run, name) for name in names]
            while not all(future.done() for future in futures):
                time.sleep(0.2)
                with self._lock:
                    if time.monotonic() > self._spoke + QUIET:
                        self._spoke = time.monotonic()
                        say("   at work: " + ", ".join(f"{name} {progress(name)}" for name in self._running))
            return [future.result() for future in futures]


def progress(environment: str) -> str:
    """The progress of its pytest, or that it is being installed."""
    found = re.findall(r"\[ *(\d+%)\]", (OUT / f"{environment}.log").read_text(errors="replace"))
    return found[-1] if found else "(installing)"


def failures(environment: str) -> str:
    """Its failed tests, each with the line that failed and the error: a CI's page may show the end of the output only."""
    lines = (OUT / f"{environment}.log").read_text(errors="replace").splitlines()
    found = [line for line in lines if re.match(r"_{3,} .* _{3,}$|>  |E  |ERROR |FAILED ", line)]
    return "\n".join([f"{environment} FAILED:", *(f"  {line}" for line in found[-REPEATED:])])


def told(counts: Counter[str]) -> str:
    """The counts in pytest's wording."""
    names = ("failed", "passed", "skipped", "xfailed", "error")
    words = [f"{counts[name]} {'errors' if name == 'error' and counts[name] > 1 else name}" for name in names if counts[name]]
    return ", ".join(words) or "no tests"


def function(test: str) -> str:
    """The name of a test's function, without its class and its parameters."""
    return test.partition("[")[0].rpartition("::")[2]


def never_run(records: list[dict[str, Any]], allowed: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    """The tests that some environment has collected and no environment has run, and why.

    A clause of the conformance kit itself decides to which plugins it does not apply, but it must have run for at least one.
    """
    ran: set[str] = set()
    why: dict[str, str] = {}
    for record in records:
        ran |= {test for test, outcome in record["outcomes"].items() if outcome in RAN}
        why |= dict.fromkeys(record["elsewhere"], "no environment has the distributions that it needs")
    clauses = {function(test) for test in ran}
    for record in records:
        for test, (place, reason) in record["reasons"].items():
            if KIT in place and function(test) in clauses:
                ran.add(test)
            else:
                why[test] = reason
    modules = {test.partition("::")[0] for test in ran}
    for test in sorted(why.keys() - ran - modules):
        if not any(test.startswith(entry["id"]) and entry["because"] in why[test] for entry in allowed):
            yield test, why[test]


def forgotten(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The test files that no environment gets."""
    known = {test.partition("::")[0] for record in records for test in [*record["outcomes"], *record["elsewhere"]]}
    for folder in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]:
        for path in sorted(file for place in ROOT.glob(folder) for file in place.rglob("test_*.py")):
            if (name := str(path.relative_to(ROOT))) not in known:
                yield name


def allowances() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = tomllib.loads((ROOT / "tests" / "may_skip.toml").read_text())["test"]
    return entries


def left_out(outcomes: list[Outcome]) -> int:
    """Print the tests that no environment has run, and return their number."""
    records = [outcome.record for outcome in outcomes if outcome.record]
    lines = [f"{test}: {reason}" for test, reason in never_run(records, allowances())]
    lines += [f"{name}: no environment of tox.ini runs this file" for name in forgotten(records)]
    if lines:
        say("\n".join(["No environment has run these tests (see tests/may_skip.toml):", *(f"  {line}" for line in lines)]))
    return len(lines)


class Durations:
    """How long the last runs took, in build/durations.json: seconds by `whole` or `quick`."""

    def __init__(self) -> None:
        self.file = ROOT / "build" / "durations.json"

    def told(self, kind: str) -> str:
        seconds = self._read().get(kind)
        if seconds is None:
            return f"it usually takes about {USUAL[kind] / 60:.0f} minutes on 2 cores, and some minutes more the first time, to compile Echo"
        return f"the last time it took {seconds / 60:.0f} minutes" if seconds >= 90 else f"the last time it took {seconds:.0f} s"

    def keep(self, kind: str, seconds: float) -> None:
        self.file.write_text(json.dumps(self._read() | {kind: round(seconds)}))

    def _read(self) -> dict[str, float]:
        try:
            found: dict[str, float] = json.loads(self.file.read_text())
            return found
        except (OSError, ValueError):
            return {}


def announcement(kind: str | None, wanted: list[str], jobs: int) -> str:
    """What will be run, and how long that takes. Of a choice of environments nobody knows."""
    many = f"{len(wanted)} environment{'s' * (len(wanted) != 1)}, {jobs} at a time: {', '.join(wanted)}"
    if kind is None:
        return f"this runs {many}"
    what = "a choice of tests on one Python" if kind == "quick" else "all tests"
    return f"this runs {what} ({many}); {Durations().told(kind)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT")
    parser.add_argument("--jobs", type=int, default=4, help="how many environments run at the same time")
    parser.add_argument("--every-python", action="store_true", help="what may differ between Pythons runs on each that is installed, not on the newest only")
    parser.add_argument("--quick", action="store_true", help="a choice of tests on one Python")
    arguments = parser.parse_args()
    begun = time.monotonic()
    listed = environments()
    wanted = arguments.environments or listed
    kind = None if arguments.environments else "whole"
    if arguments.quick:
        here = [python for python in dict.fromkeys(map(python_of, listed)) if is_here(python)]
        if arguments.environments or not here:
            parser.error("--quick chooses the environment itself" if here else f"none of these is installed: {', '.join(sorted(set(map(python_of, listed))))}")
        wanted, kind = [here[0].replace("python3.", "py3") + "-quick"], "quick"
    pythons = Counter(python_of(name) for name in wanted)
    missing = {python for python in pythons if not is_here(python)}
    for python in sorted(missing):
        say(f"{python} is not installed; these environments are left out: {', '.join(name for name in wanted if python_of(name) == python)}")
    wanted = [name for name in wanted if python_of(name) not in missing]
    if kind == "whole" and not arguments.every_python:
        wanted = on_the_newest(wanted, python_of(listed[0]))
        pythons = Counter(python_of(name) for name in wanted)
    say(announcement(kind, wanted, arguments.jobs))
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    here = sorted(pythons.keys() - missing, key=lambda python: -pythons[python])
    if any(build(python, *(QUICK_PROJECTS if arguments.quick else ())) for python in here[:1]):
        return 1
    # Tests wait a lot, and these wheels are needed last. An environment that comes before its wheels are built waits for them.
    rest = here[1:]
    threading.Thread(target=lambda: [build(python, others=True) for python in rest], daemon=True).start()
    outcomes = Runner().all(wanted, arguments.jobs)
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    # Only the first Python of the list runs all suites; another Python does not replace it.
    suites = {name for name in listed if python_of(name) == python_of(listed[0])}
    if suites <= set(wanted):
        total["error"] += left_out(outcomes)
    elif kind == "whole":
        say(f"{python_of(listed[0])} runs every suite; without it most tests were not run")
        total["error"] += 1
    for outcome in outcomes:
        if outcome.code:
            say(failures(outcome.name))
    seconds = time.monotonic() - begun
    if kind:
        Durations().keep(kind, seconds)
    bar = "=" * 20
    say(f"{bar} {told(total)} in {seconds:.2f}s ({int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}) {bar}")
    return int(total["failed"] + total["error"] > 0 or any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
