"""Strangers at the door while workers stream: ``python -m benchmarks.attack``.

Each attack is a process of its own that does its worst without pause. Beside the throughput that is left stands the CPU time that
was left: an attacker on the same machine takes its share of the cores, as any program would, and a learner that does no more than
turn strangers away loses no more than that.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from benchmarks import adapters
from benchmarks.modes.receive import check, receive
from benchmarks.payloads import PAYLOADS
from benchmarks.processes import Crew, allow_open_files, cpu_seconds, die_with, environment
from benchmarks.report import factor, number

SETTLE_SECONDS = 0.5  # for an attack to get under way
PARALLEL = 200  # connections of an attack that holds them open
GARBAGE = (b"\0" * 64, b"ECHO\2\1\0\0\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(512))

#: How a handshake begins, for those who never finish one.
BEGINNINGS = {"tcp": b"ECHO\2\1\0\0\0\1\0\0" + b" " * 256, "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 256}


def garbage(address: Any) -> NoReturn:
    """Connect, say something wrong, hang up; as often as possible."""
    while True:
        for said in GARBAGE:
            with suppress(OSError), socket.create_connection(address.endpoint, timeout=5) as sock:
                sock.sendall(said)


def half_open(address: Any) -> NoReturn:
    """Connections that say nothing; each that is ended is made anew."""
    _hold(address, lambda sock: sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b"", 0.05)


def slow_loris(address: Any) -> NoReturn:
    """Handshakes that never come to an end: a byte now and then."""
    beginning = BEGINNINGS[address.scheme]
    said: dict[socket.socket, int] = {}

    def another_byte(sock: socket.socket) -> bool:
        said[sock] = said.get(sock, -1) + 1
        sock.sendall(beginning[said[sock] % len(beginning)].to_bytes(1, "big"))
        return True

    _hold(address, another_byte, 0.02)


def wrong_tokens(address: Any) -> NoReturn:
    """Whole handshakes, up to a proof that is none."""
    from echo_core import Client
    from echo_core.errors import EchoError

    example = PAYLOADS["20B"].example()
    while True:
        with suppress(EchoError, OSError):
            Client(address, example, token=secrets.token_hex(32), timeout=5).close()


ATTACKS: dict[str, Callable[[Any], NoReturn]] = {
    "garbage": garbage,
    "half-open": half_open,
    "slow-loris": slow_loris,
    "wrong-tokens": wrong_tokens,
}


def _hold(address: Any, keep: Callable[[socket.socket], bool], pause: float) -> NoReturn:
    """Keep `PARALLEL` connections open, asking `keep` of each in turn whether it still stands."""
    allow_open_files(4 * PARALLEL)
    held: list[socket.socket] = []
    while True:
        for sock in held.copy():
            try:
                stands = keep(sock)
            except BlockingIOError:
                stands = True
            except OSError:
                stands = False
            if not stands:
                held.remove(sock)
                sock.close()
        with suppress(OSError):
            while len(held) < PARALLEL:
                held.append(socket.create_connection(address.endpoint, timeout=1))
        time.sleep(pause)


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


def measure(name: str, payload_name: str, workers: int, seconds: float, rounds: int) -> dict[str | None, list[dict[str, float]]]:
    """Figures of every round by attack, None for peace; peace and attacks in turn, all upon the same workers."""
    payload = PAYLOADS[payload_name]
    system = adapters.load(name)
    learner = system.learner(payload, payload.batch_size, workers)
    job = {"role": "flood", "system": name, "payload": payload_name, "address": learner.address}  # type: ignore[attr-defined]
    figures: dict[str | None, list[dict[str, float]]] = {attack: [] for attack in (None, *ATTACKS)}

    def fail(reason: str) -> NoReturn:
        print(f"error: {name}: {reason}", file=sys.stderr, flush=True)
        os._exit(1)

    with Crew([job] * workers, fail) as crew:
        crew.go()
        check(learner)
        for _ in range(rounds):
            for attack, done in figures.items():
                with under(attack, learner.address) as pid:  # type: ignore[attr-defined]
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
    learner._server.close(timeout=2)  # type: ignore[attr-defined]
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
    parser.add_argument("--systems", nargs="+", choices=["echo", "echo-grpc"], default=["echo", "echo-grpc"])
    parser.add_argument("--payload", choices=list(PAYLOADS), default="1KB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="measured each time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--play", choices=list(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.play:
        from echo_core.address import Address

        die_with(args.parent)
        if args.play == "wrong-tokens":
            import echo_core.client  # noqa: F401  what takes long comes first
        print("begins", flush=True)
        ATTACKS[args.play](Address.parse(args.address))
    os.environ.setdefault("ECHO_TOKEN", secrets.token_hex(32))
    for name in args.systems:
        figures = measure(name, args.payload, args.workers, args.seconds, args.rounds)
        print(f"### {name}, {args.payload}, {args.workers} workers\n\n{table(figures)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
