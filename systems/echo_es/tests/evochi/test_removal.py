"""When the front removes a worker, and when it does not; and what our worker does then."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import grpc.aio

sys.path.insert(0, str(Path(__file__).parent))

from fleet import Fleet, wait
from searches import search

import echo_es.evochi.v1 as evochi
from echo_es.evochi import codec
from echo_es.evochi.codec import decode
from echo_es.evochi.options import FrontOptions

OPTIONS = FrontOptions(port=0, worker_timeout=1.0)
WAIT = 60


def test_a_worker_that_is_stopped_while_it_evaluates_loses_its_task() -> None:
    with search(4, options=OPTIONS) as (front, coordinator, _), Fleet(front.port) as fleet:
        worker = fleet.add(seconds=0.2)
        worker.wait_for("begin .*")
        worker.process.send_signal(signal.SIGSTOP)
        wait(lambda: not coordinator.members(), what=lambda: str(coordinator.stats()))


class Silent:
    """A worker that joins, sends one heartbeat if it is told to, and never reports."""

    def __init__(self, port: int, heartbeat: bool) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.events = self.channel.unary_stream(f"/{codec.SERVICE}/Subscribe")(codec.Subscribe(cores=4).SerializeToString(), timeout=WAIT)
        token = decode(codec.Event, next(self.events)).hello.token
        if heartbeat:
            metadata = (("authorization", f"Bearer {token}"),)
            self.channel.unary_unary(f"/{codec.SERVICE}/Heartbeat")(codec.Heartbeat(seq_id=1).SerializeToString(), metadata=metadata, timeout=WAIT)

    def ended(self) -> str:
        """Why the stream of events has ended."""
        try:
            for _ in self.events:
                pass
        except grpc.RpcError as error:
            return str(error.details())
        finally:
            self.channel.close()
        return "without an error"


def test_a_worker_that_waits_and_sends_no_more_heartbeats_is_removed() -> None:
    with search(4, options=OPTIONS) as (front, coordinator, _), Fleet(front.port) as fleet:
        busy = fleet.add(seconds=1000.0)
        busy.wait_for("begin 1")  # it has all individuals, so the next one waits
        assert Silent(front.port, heartbeat=True).ended() == "server removed you"
        wait(lambda: len(coordinator.members()) == 1)
        assert coordinator.counts["reassigned"] == 0


def test_a_worker_that_still_takes_its_first_state_is_not_removed() -> None:
    """Evochi's client calls `on_state_change` before it sends its first heartbeat."""
    with search(4, options=OPTIONS) as (front, coordinator, _), Fleet(front.port) as fleet:
        fleet.add(seconds=1000.0).wait_for("begin 1")
        silent = Silent(front.port, heartbeat=False)
        removed = threading.Thread(target=silent.ended, daemon=True)
        removed.start()
        other = Silent(front.port, heartbeat=True)
        other.ended()  # a whole timeout later
        assert len(coordinator.members()) == 2
        silent.channel.close()
        removed.join(WAIT)


def test_the_stream_of_a_worker_that_exceeds_the_time_of_a_task_is_ended() -> None:
    with search(4, options=OPTIONS, task_timeout=0.5) as (front, coordinator, _):
        silent = Silent(front.port, heartbeat=False)  # it is asked to initialise, which it does not
        wait(lambda: [coordinator.tick(), not coordinator.members()][1])
        assert silent.ended() == "server removed you"


class Slow(evochi.Worker[int]):
    """Its second evaluation takes until the server was started again."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel, 4)
        self.begun = 0
        self.again = threading.Event()

    def initialize(self) -> int:
        return 0

    def evaluate(self, epoch: int, slices: list[slice]) -> list[evochi.Eval]:
        self.begun += 1
        if self.begun == 2:
            self.again.wait(WAIT)
        return [evochi.Eval(part, [float(i) for i in range(part.start, part.stop)]) for part in slices]

    def optimize(self, epoch: int, rewards: list[float]) -> int:
        return self.state + 1


def test_our_worker_joins_again_if_the_server_is_killed_and_started_again_while_it_evaluates() -> None:
    async def work() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            workers.append(Slow(channel))
            await asyncio.wait_for(workers[0].start(), WAIT)

    workers: list[Slow] = []
    program = "from echo_es import ESServer; import time; print(ESServer(4, evochi='127.0.0.1:0').start().evochi_port, flush=True); time.sleep(600)"
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
        thread.start()
        wait(lambda: workers and workers[0].begun == 2)
    finally:
        server.kill()
        server.communicate()
    with search(4, options=FrontOptions(port=port), max_epochs=2) as (_, _, heard):
        workers[0].again.set()
        thread.join(WAIT)
        assert not thread.is_alive()
        assert list(heard.epochs) == [1, 2]
