"""Kills and stops whole clients at random moments while they send, and checks that nothing forbidden results.

A test uses it for some seconds. Run by hand, it goes on for a given number of kills:

    python plugins/echo_shm/tests/slaughter.py --kills 10000 --mode direct

Forbidden: a torn sample; a doubled one; an acknowledged one that never comes; half a minute without a batch; and anything left behind:
descriptors, threads, mappings, files in /dev/shm, or memory that grows with the number of killed workers.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

from echo_core import Client, Server
from echo_core.base.errors import EchoTimeoutError
from echo_shm.transport import ShmTransport
from echo_testing.processes import descriptors, settled, tasks, until
from echo_testing.samples import Tally, example, sample

sys.path.insert(0, str(Path(__file__).parent))  # for processes that are spawned
import nursery

WORKERS = 3
MAKERS = 1 << 16
CONFIRMED = 200  # after so many more kills, all samples that were acknowledged to a killed worker must have come
STANDSTILL = 300  # most waits in vain in a row, each of a tenth of a second; the machine may be busy, or stop this process
spawning = multiprocessing.get_context("spawn")


def resident() -> int:
    """Bytes of memory that only this process has."""
    _, whole, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (whole - shared) * 4096


class Slaughter:
    """One learner, `WORKERS` workers at a time.

    Args:
        server: started, with its own transport.
        folder: for a file that counts acknowledged samples; it survives its writers.
        filler: number of bytes of a sample beside its numbers.
        seed: for the random moments.
    """

    def __init__(self, server: Server, folder: Path, filler: int, seed: int) -> None:
        self.kills = self.stops = self.samples = 0
        self._server, self._filler, self._dice = server, filler, random.Random(seed)
        self._tally = Tally()
        self._acknowledged = folder / "acknowledged"
        self._acknowledged.write_bytes(bytes(nursery.ENTRY * MAKERS))
        self._ours, theirs = spawning.Pipe()
        patient = {"timeout": 600.0}  # long, because the machine may be busy, and a worker that gives up does not count as killed
        self._nurse = spawning.Process(target=nursery.nurse, args=(theirs, str(server.address), str(self._acknowledged), filler, patient))
        self._nurse.start()
        theirs.close()
        self._workers: dict[int, int] = {}  # pid of each maker
        self._stopped: dict[int, float] = {}  # stopped workers, and until when they are stopped
        self._dead: list[int] = []  # dead makers whose samples have not all been seen yet, in the order of their deaths
        self._makers = 0
        self._vain = 0

    def begin(self) -> None:
        for _ in range(WORKERS):
            self._fork()
        until(lambda: self._take(0.1) and len(self._tally.numbers) == WORKERS, "every worker sends", 60)

    def kill(self) -> None:
        """Take batches for a moment, then kill one worker and start another."""
        turn = time.monotonic() + self._dice.random() * 0.008
        while time.monotonic() < turn:
            self._take(0.1)
        maker = self._dice.choice(list(self._workers))
        if self._dice.random() < (0.7 if maker in self._tally.numbers else 0.05):  # most of them have begun
            os.kill(self._workers.pop(maker), signal.SIGKILL)
            self._stopped.pop(maker, None)
            self._dead.append(maker)
            self.kills += 1
            self._fork()
            if len(self._dead) > 2 * CONFIRMED:
                self._confirm(self._dead[:CONFIRMED])
        if self._dice.random() < 0.05:
            maker = self._dice.choice(list(self._workers))
            os.kill(self._workers[maker], signal.SIGSTOP)
            self._stopped[maker] = time.monotonic() + self._dice.random() * 0.5
            self.stops += 1
        for maker in [m for m, at in self._stopped.items() if at < time.monotonic()]:
            os.kill(self._workers[maker], signal.SIGCONT)
            del self._stopped[maker]

    def end(self) -> None:
        """Kill the rest, and check that every acknowledged sample has come exactly once."""
        for maker, pid in self._workers.items():
            os.kill(pid, signal.SIGKILL)
            self._dead.append(maker)
            self.kills += 1
        self._workers.clear()
        server = self._server
        while self._take(0.3) or server.peers():
            pass
        (listener,) = server._listeners
        until(lambda: not listener.stats()["direct_workers"] + listener.stats()["private_workers"], "every worker is forgotten", 120)
        with Client(server.address, example(self._filler)) as last:  # fills the batches that killed workers have left open
            for number in range(4 * server.batch_size):
                if not self._missing(self._dead):
                    break
                last.send(sample(self._makers, number, self._filler))
                last.wait()
                while self._take(0.2):
                    pass
        self._confirm(self._dead)
        self._confirm([self._makers])

    def close(self) -> None:
        self._nurse.kill()
        self._nurse.join()
        self._nurse.close()
        self._ours.close()

    def _fork(self) -> None:
        self._ours.send(self._makers)
        assert self._ours.poll(60), "the nursery does not answer"
        self._workers[self._makers] = self._ours.recv()
        self._makers += 1

    def _take(self, timeout: float) -> bool:
        try:
            batch = self._server.sample(timeout=timeout).batch
        except EchoTimeoutError:
            self._vain += 1
            assert self._vain < STANDSTILL or not self._workers, f"the learner stopped after {self.kills} kills"
            return False
        self._vain = 0
        before = self._tally.count
        self._tally.add(batch)
        self.samples += self._tally.count - before
        return True

    def _missing(self, makers: list[int]) -> dict[int, int]:
        """For each maker with missing samples: how many acknowledged samples have not come."""
        data = self._acknowledged.read_bytes()
        missing = {}
        for maker in makers:
            (count,) = struct.unpack_from("<Q", data, nursery.ENTRY * maker)
            if lost := count - len(set(range(count)).intersection(self._tally.numbers.get(maker, ()))):
                missing[maker] = lost
        return missing

    def _confirm(self, makers: list[int]) -> None:
        assert not (missing := self._missing(makers)), f"acknowledged samples are lost: {missing}"
        for maker in makers:
            numbers = self._tally.numbers.pop(maker, [])
            assert len(numbers) == len(set(numbers)), f"samples of {maker} came twice"
        self._dead = self._dead[len(makers) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--mode", choices=("direct", "private"), default="direct")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--filler", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    slaughter(options)
    gc.collect()
    left = [name for name in os.listdir("/dev/shm") if "echo" in name]
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:echo-" in line]
    assert not left and not mapped, (left, mapped)


def slaughter(options: argparse.Namespace) -> None:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        transport = ShmTransport(mode=options.mode, claim_timeout=0.2)
        with Server(example(options.filler), options.batch_size, transport, num_buffers=16) as server:
            run = Slaughter(server, Path(folder), options.filler, options.seed)
            try:
                run.begin()
                while run.kills < min(options.kills, 3 * CONFIRMED):  # from now on the count does not grow
                    run.kill()
                before, threads, memory, told = descriptors(), tasks(), resident(), 0
                while run.kills < options.kills:
                    run.kill()
                    if run.kills >= told + 500:
                        told = run.kills
                        print(f"{told} kills, {run.samples} samples, {time.monotonic() - start:.0f} s, {resident() >> 20} MiB", flush=True)
                run.end()
                grown = resident() - memory
            finally:
                run.close()
            settled(descriptors, before, "descriptors")
            settled(tasks, threads, "threads")
            print(
                f"{run.kills} kills, {run.stops} stops, {run.samples} samples, {time.monotonic() - start:.0f} s: "
                f"none torn, none doubled, none of the acknowledged lost; {grown >> 10} KiB more than after the first; "
                f"{server._listeners[0].stats()}"
            )


if __name__ == "__main__":
    main()
