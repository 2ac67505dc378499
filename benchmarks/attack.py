"""Strangers at the door while workers stream: ``python -m benchmarks.attack``.

Each attack is a process of its own that does its worst without pause. Beside the throughput that is left stands the CPU time that
was left: an attacker on the same machine takes its share of the cores, as any program would, and a learner that does no more than
turn strangers away loses no more than that.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from benchmarks import adapters
from benchmarks.modes.receive import check, receive
from benchmarks.payloads import PAYLOADS
from benchmarks.processes import Crew, cpu_seconds, die_with, environment
from benchmarks.report import factor, number
from benchmarks.strangers import ATTACKS, CERTIFIED_ATTACKS, READER

SETTLE_SECONDS = 0.5  # for an attack to get under way
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
    from echo_core.tls import Authority

    authority = Authority.create(folder)
    own, worker = authority.issue("learner", ["127.0.0.1"]), authority.issue("worker")
    (folder / "expired").mkdir(0o700)
    expired = authority.issue("worker", days=-1 / 1440, directory=folder / "expired")
    options = {"tls_certificate": own.certificate, "tls_key": own.key, "tls_client_authority": authority.certificate}
    learner = EchoLearner(payload, payload.batch_size, workers, {"type": scheme, "port": 0, **options})
    common = f"{learner.address}?tls_authority={authority.certificate}"
    shown = [f"{common}&tls_certificate={identity.certificate}&tls_key={identity.key}" for identity in (worker, expired)]
    return Target(learner, *shown)

@contextmanager
def under(attack: str | None, address: str) -> Iterator[int | None]:
    """The attack's process id, while it goes on."""
    if attack is None:
        yield None
        return
    command = [sys.executable, "-m", "benchmarks.attack", "--play", attack, "--address", address, "--parent", str(os.getpid())]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"begins\n":
            raise RuntimeError(f"the attack {attack!r} ended by itself (exit status {process.wait()})")
        time.sleep(SETTLE_SECONDS)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def measure(name: str, payload_name: str, workers: int, seconds: float, rounds: int, folder: Path) -> dict[str | None, list[dict[str, float]]]:
    """Figures of every round by attack, None for peace; peace and attacks in turn, all upon the same workers."""
    learner, address, expired = aim = target(name, payload_name, workers, folder)
    job = {"role": "flood", "system": "echo", "payload": payload_name, "address": address}
    figures: dict[str | None, list[dict[str, float]]] = {attack: [] for attack in (None, *aim.attacks)}

    def fail(reason: str) -> NoReturn:
        print(f"error: {name}: {reason}", file=sys.stderr, flush=True)
        os._exit(1)

    with Crew([job] * workers, fail) as crew:
        crew.go()
        check(learner)
        for _ in range(rounds):
            for attack, done in figures.items():
                with under(attack, expired if attack == "expired-certificates" else address) as pid:
                    receive(learner, SETTLE_SECONDS)  # what piled up meanwhile is not of this round
                    honest = cpu_seconds(os.getpid()) + crew.cpu_seconds()
                    theirs = cpu_seconds(pid) if pid else 0.0
                    away = _turned_away(learner)
                    count, elapsed = receive(learner, seconds)
                    done.append(
                        {
                            "rate": count / elapsed,
                            "cpu": (cpu_seconds(os.getpid()) + crew.cpu_seconds() - honest) / elapsed,
                            "attacker": (cpu_seconds(pid) - theirs) / elapsed if pid else 0.0,
                            "away": (_turned_away(learner) - away) / elapsed,
                        }
                    )
    learner._server.close(timeout=2)
    return figures


def _turned_away(learner: Any) -> float:
    stats = learner._server.stats()
    return float(sum(value for key, value in stats.items() if key.rsplit("/", 1)[-1] in ("refused", "protocol_errors")))


def table(figures: dict[str | None, list[dict[str, float]]]) -> str:
    """Medians as Markdown. Where the last column says about 1, the attackers' CPU time explains all that was lost."""
    lines = [
        "| attack | samples/s | of peace | attacker's CPU | learner's and workers' CPU | turned away/s | per CPU second, of peace |",
        "|---" * 7 + "|",
    ]
    peace = {key: statistics.median(run[key] for run in figures[None]) for key in ("rate", "cpu")}
    for attack, runs in figures.items():
        now = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        rate, cpu = now["rate"] / peace["rate"], now["cpu"] / peace["cpu"]
        cells = [attack or "none", number(now["rate"]), factor(rate), f"{now['attacker']:.2f}", f"{now['cpu']:.2f}, {factor(cpu)}"]
        lines.append("| " + " | ".join([*cells, number(now["away"]), factor(rate / cpu)]) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=["echo", "echo-grpc"])
    parser.add_argument("--payload", choices=list(PAYLOADS), default="1KB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured each time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--play", choices=list(CERTIFIED_ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.play:
        die_with(args.parent)
        from echo_core import plugins
        from echo_core.address import Address

        address = Address.parse(args.address)
        plugins.transport_class(address.scheme)  # what takes long comes first
        print("begins", flush=True)
        CERTIFIED_ATTACKS[args.play](address)
    os.environ["ECHO_TOKEN"] = f"{secrets.token_hex(32)}\n{READER}{secrets.token_hex(32)}"
    for name in args.systems:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(name, args.payload, args.workers, args.seconds, args.rounds, Path(folder))
        print(f"### {name}, {args.payload}, {args.workers} workers\n\n{table(figures)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
