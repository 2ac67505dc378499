"""Runs cases and systems in turn, each in a process of its own, and survives whatever they do.

For each case the systems take turns: A B C, A B C, ... so that whatever else the machine is doing
meets all of them. A run that goes silent past its phase is killed with everything it started and
recorded as hung; a system that is not installed is skipped with a note.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from typing import Any

from benchmarks import machine, suites
from benchmarks.cases import Case
from benchmarks.processes import environment
from benchmarks.systems import Entry

Result = dict[str, Any]

#: The one-minute load average above which a run carries a warning.
BUSY = 0.5

#: Seconds for a system to be imported; some are large, and a busy machine is slow.
ASKING = 300.0


@dataclass(frozen=True)
class Settings:
    """How a run is done; stands in the result file as it is.

    ``repeat`` rounds of ``seconds`` each after ``warmup`` seconds that are thrown away; a phase may
    be late by ``patience`` seconds before the run counts as hung.
    """

    repeat: int = 5
    seconds: float = 2.0
    warmup: float = 0.5
    patience: float = 20.0


#: Told before each run: how many are done, how many there are, case, system; after it: the run.
Progress = Callable[[int, int, Case, str, "Result | None"], None]


def run(
    cases: Iterable[Case],
    systems: Iterable[str],
    settings: Settings,
    progress: Progress = lambda *_: None,
    suite: str = "stream",
) -> Result:
    """Measure every case with every system able to do it, and return the result file's content."""
    adapters, modes = suites.part(suite, "adapters"), suites.part(suite, "cases").MODES
    cases = list(cases)
    notes: list[str] = []
    described = machine.describe()
    if described["machine"]["load"] > BUSY:
        notes.append(f"the machine was busy when the run began: load {described['machine']['load']}")
    present: dict[str, str] = {}
    for name in systems:
        try:
            present[name] = adapters.version(name)
        except PackageNotFoundError as missing:
            notes.append(f"{name} is skipped: {missing.name} is not installed{hint(adapters.SYSTEMS[name])}")
    able = {name: abilities(suite, name, notes) for name in present}
    plan = [(case, [name for name in present if modes[case.mode].needs in able[name]]) for case in cases]
    total, done = settings.repeat * sum(len(names) for _, names in plan), 0
    results: list[Result] = []
    for case, names in plan:
        runs: dict[str, list[Result]] = {name: [] for name in names}
        for _ in range(settings.repeat):
            for name in names:
                progress(done, total, case, name, None)
                runs[name].append(run_once(case, name, settings, suite))
                done += 1
                progress(done, total, case, name, runs[name][-1])
        results += [{"case": case.name, "system": name, "runs": runs[name]} for name in names]
    return {
        "format": "echo-benchmarks",
        "version": 1,
        "suite": suite,
        **described,
        "systems": present,
        "settings": asdict(settings),
        "notes": notes,
        "cases": [case.describe() for case in cases],
        "results": results,
    }


def hint(entry: Entry) -> str:
    return f"; {entry.hint}" if entry.hint else ""


def abilities(suite: str, name: str, notes: list[str]) -> frozenset[str]:
    """What a system can do, asked in a process of its own: importing it may fail or crash."""
    code = (
        "import json, sys; from benchmarks import suites; "
        "system = suites.part(sys.argv[1], 'adapters').load(sys.argv[2]); "
        "print(json.dumps([sorted(system.can), dict(getattr(system, 'lacks', {}))]))"
    )
    command = [suites.part(suite, "adapters").SYSTEMS[name].python, "-c", code, suite, name]
    try:
        asked = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=ASKING)
    except subprocess.TimeoutExpired:
        notes.append(f"{name} did not say within {ASKING:g} s what it can do")
        return frozenset()
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        notes.append(f"{name} cannot be imported: {reason}")
        return frozenset()
    can, lacks = json.loads(asked.stdout.splitlines()[-1])
    notes.extend(f"{name} is measured without what it calls {what}: {reason}" for what, reason in lacks.items())
    return frozenset(can)


def run_once(case: Case, system: str, settings: Settings, suite: str = "stream") -> Result:
    """One run: ``{"status": "ok" | "hung" | "failed", ...}`` with ``figures`` or a ``reason``."""
    job = {
        "suite": suite,
        "case": asdict(case),
        "system": system,
        "seconds": settings.seconds,
        "warmup": settings.warmup,
        "parent": os.getpid(),
    }
    env = environment()
    # One secret for both ends, so that authentication is on and no file of the user's is touched.
    env.setdefault("ECHO_TOKEN", secrets.token_hex(32))
    with tempfile.TemporaryFile() as errors:
        probe = subprocess.Popen(
            [suites.part(suite, "adapters").SYSTEMS[system].python, "-m", "benchmarks.probe", json.dumps(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=env,
            start_new_session=True,  # one group for the probe and its workers: killed as one
        )
        try:
            result = _listen(probe, settings.patience)
        finally:
            _kill_group(probe)
        if result["status"] == "failed":
            errors.seek(0)
            result["stderr"] = errors.read().decode(errors="replace").splitlines()[-12:]
    return result


def _listen(probe: subprocess.Popen[bytes], patience: float) -> Result:
    """Follow the probe's lines until it reports figures, an error, ends, or is overdue."""
    assert probe.stdout is not None
    phase, deadline = "start", time.monotonic() + patience
    buffer = b""
    while True:
        ready, _, _ = select.select([probe.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return {"status": "hung", "reason": f"silent in phase '{phase}'"}
        data = os.read(probe.stdout.fileno(), 65536)
        if not data:
            code = probe.wait()
            return {"status": "failed", "reason": f"ended in phase '{phase}' with status {code}"}
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "figures" in message:
                return {"status": "ok", "figures": message["figures"]}
            if "error" in message:
                return {"status": "failed", "reason": f"phase '{phase}': {message['error']}"}
            phase = message["phase"]
            deadline = time.monotonic() + message["seconds"] + patience


def _kill_group(probe: subprocess.Popen[bytes]) -> None:
    """Kill the probe and every worker it started; harmless when all have ended."""
    try:
        os.killpg(probe.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    probe.wait()
    assert probe.stdout is not None
    probe.stdout.close()
