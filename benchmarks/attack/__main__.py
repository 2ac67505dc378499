"""Strangers at the door while workers stream: ``python -m benchmarks.attack``.

Each attack is a process of its own that does its worst without pause. An attacker on the same machine takes its share of the cores, as
any program would. So two controls, in which the learner has no part, are measured in the same rounds: the same attack upon a bare listener
in another process (where attackers wait for no answer), and a process that takes as much CPU time as the attacker did. The attack's figure
over the control's shows the cost of the learner's own work, once for each second on the clock and once for each second of CPU time of learner
and workers, which varies less on a machine with neighbours. The cost of a refusal is measured before the workers begin.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from benchmarks import adapters
from benchmarks.attack import decoys, strangers
from benchmarks.attack.strangers import ATTACKS, CERTIFIED_ATTACKS, READER, UNHEARING
from benchmarks.modes.receive import check, receive
from benchmarks.payloads import PAYLOADS
from benchmarks.processes import Crew, cpu_seconds
from benchmarks.report import factor, number

SETTLE_SECONDS = 0.5  # for an attack to get under way, unless --settle says otherwise
PORTIONS = 100.0  # a second, of the CPU time taken by a control
SYSTEMS = {"echo": "tcp", "echo-grpc": "grpc", "echo-tcps": "tcps", "echo-grpcs": "grpcs"}


class Target(NamedTuple):
    """A learner that is attacked: where its workers connect, and where those do whose certificate has expired ("": nobody shows any)."""

    learner: Any
    address: str
    expired: str = ""

    @property
    def attacks(self) -> dict[str, Any]:
        return CERTIFIED_ATTACKS if self.expired else ATTACKS


def target(name: str, payload_name: str, workers: int, folder: Path) -> Target:
    """The learner of a system of `SYSTEMS`; with TLS it asks workers for certificates, which are made in `folder`."""
    payload, scheme = PAYLOADS[payload_name], SYSTEMS[name]
    if scheme in ("tcp", "grpc"):
        learner: Any = adapters.load(name).learner(payload, payload.batch_size, workers)
        return Target(learner, learner.address)
    from benchmarks.adapters.echo_core import EchoLearner
    from echo_core.security.tls import Authority

    authority = Authority.create(folder)
    own, worker = authority.issue("learner", ["127.0.0.1"]), authority.issue("worker")
    (folder / "expired").mkdir(0o700)
    expired = authority.issue("worker", days=-1 / 1440, directory=folder / "expired")
    options = {"tls_certificate": own.certificate, "tls_key": own.key, "tls_client_authority": authority.certificate}
    learner = EchoLearner(payload, payload.batch_size, workers, {"type": scheme, "port": 0, **options})
    common = f"{learner.address}?tls_authority={authority.certificate}"
    shown = [f"{common}&tls_certificate={identity.certificate}&tls_key={identity.key}" for identity in (worker, expired)]
    return Target(learner, *shown)


class Round(NamedTuple):
    """What was seen for a while."""

    rate: float  # samples a second
    cpu: float  # seconds of CPU time a second: the learner's and the workers'
    attacker: float  # the same of the attacker, or of a control
    away: float  # turned away a second


class Figures(NamedTuple):
    """Of one system."""

    peace: list[Round]
    attacks: dict[str, list[tuple[Round, Round, Round | None]]]  # under attack, beside as much CPU time, beside a bare listener under attack
    alone: dict[str, tuple[float, float]]  # a learner without workers: its CPU time a second, turned away a second


#: Starts the processes of attacks and controls: one process imports what they need, and each of them is a fork of it.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["benchmarks.attack.strangers", "benchmarks.attack.decoys", "echo_tcp.transport", "echo_grpc.transport"])


@contextmanager
def playing(part: Callable[..., NoReturn], *arguments: Any) -> Iterator[tuple[int, Any]]:
    """A process that runs `part(says, *arguments)`, once it has said through the pipe that it begins: its id, and what it said."""
    hears, says = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=part, args=(says, *arguments), daemon=True)
    process.start()
    says.close()
    try:
        try:
            said = hears.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"{part.__name__}{arguments} ended by itself (exit status {process.exitcode})") from None
        assert process.pid is not None
        yield process.pid, said
    finally:
        process.kill()
        process.join()
        hears.close()


def measure(name: str, payload_name: str, workers: int, seconds: float, rounds: int, settle: float, folder: Path) -> Figures:
    """See `Figures`; peace and attacks in turn, all upon the same workers."""
    learner, address, expired = aim = target(name, payload_name, workers, folder)
    job = {"role": "flood", "system": "echo", "payload": payload_name, "address": address}
    figures = Figures([], {attack: [] for attack in aim.attacks}, {})

    def fail(reason: str) -> NoReturn:
        print(f"error: {name}: {reason}", file=sys.stderr, flush=True)
        os._exit(1)

    def against(attack: str) -> tuple[str, str]:
        return attack, expired if attack == "expired-certificates" else address

    with Crew([job] * workers, fail) as crew, playing(decoys.listen) as (_, (brief, patient)):

        def looked_at(other: int = 0) -> Round:
            time.sleep(settle)
            receive(learner, settle / 2)  # what piled up meanwhile is not of this round
            honest, theirs = cpu_seconds(os.getpid()) + crew.cpu_seconds(), cpu_seconds(other) if other else 0.0
            away = _turned_away(learner)
            count, elapsed = receive(learner, seconds)
            return Round(
                count / elapsed,
                (cpu_seconds(os.getpid()) + crew.cpu_seconds() - honest) / elapsed,
                (cpu_seconds(other) - theirs) / elapsed if other else 0.0,
                (_turned_away(learner) - away) / elapsed,
            )

        for attack in aim.attacks:
            with playing(strangers.attack, *against(attack)):
                time.sleep(settle)
                own, away, start = cpu_seconds(os.getpid()), _turned_away(learner), time.monotonic()
                time.sleep(seconds)
                spent, elapsed = cpu_seconds(os.getpid()) - own, time.monotonic() - start
                figures.alone[attack] = spent / elapsed, (_turned_away(learner) - away) / elapsed
        crew.go()
        check(learner)
        for _ in range(rounds):
            figures.peace.append(looked_at())
            for attack, done in figures.attacks.items():
                with playing(strangers.attack, *against(attack)) as (pid, _):
                    under = looked_at(pid)
                with playing(decoys.burn, under.attacker, PORTIONS) as (pid, _):
                    beside = looked_at(pid)
                bare = None
                if attack in UNHEARING:
                    where = f"{SYSTEMS[name]}://127.0.0.1:{patient if attack in ('half-open', 'slow-loris') else brief}"
                    with playing(strangers.attack, attack, where) as (pid, _):
                        bare = looked_at(pid)
                done.append((under, beside, bare))
    learner._server.close(timeout=2)
    return figures


def _turned_away(learner: Any) -> float:
    stats = learner._server.stats()
    return float(sum(value for key, value in stats.items() if key.rsplit("/", 1)[-1] in ("refused", "protocol_errors")))


def table(figures: Figures) -> str:
    """Medians as Markdown."""
    lines = [
        "| attack | samples/s | of peace | beside as much CPU time | beside a bare listener | attack over control | the same per CPU second"
        " | attacker's CPU, at the bare listener | turned away/s | learner alone: CPU, for each turned away |",
        "|---" * 10 + "|",
    ]

    def median(rounds: list[Round], field: str = "rate") -> float:
        return statistics.median(getattr(a_round, field) for a_round in rounds)

    peace = median(figures.peace)
    spread = f"{factor(min(r.rate for r in figures.peace) / peace)} to {factor(max(r.rate for r in figures.peace) / peace)}"
    lines.append(f"| none | {number(peace)} | {spread} |" + " |" * 7)
    for attack, rounds in figures.attacks.items():
        under, beside = [r[0] for r in rounds], [r[1] for r in rounds]
        bare = [r[2] for r in rounds if r[2] is not None]
        control = [r[2] or r[1] for r in rounds]
        pairs = list(zip(under, control, strict=True))
        cpu, away = figures.alone[attack]
        cells = [
            attack,
            number(median(under)),
            factor(median(under) / peace),
            factor(median(beside) / peace),
            factor(median(bare) / peace) if bare else "",
            _spread([a.rate / b.rate for a, b in pairs]),
            _spread([a.rate / a.cpu / (b.rate / b.cpu) for a, b in pairs]),
            f"{median(under, 'attacker'):.2f}" + (f", {median(bare, 'attacker'):.2f}" if bare else ""),
            number(median(under, "away")),
            f"{cpu:.2f}" + (f", {cpu / away * 1e6:.0f} µs" if away >= 1 else ""),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(ratios: list[float]) -> str:
    return f"{factor(statistics.median(ratios))} ({factor(min(ratios))} to {factor(max(ratios))})"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=["echo", "echo-grpc"])
    parser.add_argument("--payload", choices=list(PAYLOADS), default="1KB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured each time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds for an attack to get under way")
    args = parser.parse_args(argv)
    os.environ["ECHO_TOKEN"] = f"{secrets.token_hex(32)}\n{READER}{secrets.token_hex(32)}"
    for name in args.systems:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(name, args.payload, args.workers, args.seconds, args.rounds, args.settle, Path(folder))
        print(f"### {name}, {args.payload}, {args.workers} workers\n\n{table(figures)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
