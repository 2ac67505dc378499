"""What workers at the front see when their server is restarted: a lost connection. Ours join the next server; Evochi's own know no such thing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fleet import Fleet

from echo_es import ESServer
from echo_es.evochi import codec
from echo_es.log import read_log
from echo_testing.processes import until


def test_our_worker_joins_the_next_server_which_finishes_the_search(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = ESServer(10, evochi="127.0.0.1:0", log=log).start()
    port = first.evochi_port
    with Fleet(port) as fleet:
        worker = fleet.add(seconds=0.01)
        until(lambda: first.rewards is not None, "an epoch is complete", 60)
        first.close(restarting=True)
        done = len(read_log(log).epochs)
        with ESServer(10, evochi=f"127.0.0.1:{port}", log=log, max_epochs=done + 3) as second:
            assert second.wait(60), f"{second.coordinator.stats()} {worker.lines[-20:]}"
            worker.wait_for("end")
        assert worker.found("stop .*") and not fleet.complaints()
    assert [epoch for epoch, _ in read_log(log).epochs] == list(range(1, done + 4))


class ClosingServer(grpc.GenericRpcHandler):
    """A server that is closed while a worker reports: gRPC cancels the report, and then the stream of events ends. The server that the worker
    joins next tells it to stop."""

    def __init__(self) -> None:
        self.reported = threading.Event()
        self.joined = 0

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        if name == "Subscribe":
            return grpc.unary_stream_rpc_method_handler(self._subscribe)
        return grpc.unary_unary_rpc_method_handler(self._cancel if name == "FinishInitialization" else lambda request, context: b"")

    def _subscribe(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.joined += 1
        hello = codec.Hello(id="worker", token="token", population_size=4, heartbeat_interval=60)
        yield codec.Event(type=codec.HELLO, hello=hello).SerializeToString()
        if self.joined > 1:
            yield codec.Event(type=codec.STOP, stop=codec.Task(task_id="2")).SerializeToString()
            return
        yield codec.Event(type=codec.INITIALIZE, initialize=codec.Task(task_id="1")).SerializeToString()
        self.reported.wait()
        context.abort(grpc.StatusCode.UNAVAILABLE, "the server is being restarted")

    def _cancel(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.reported.set()
        context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")


def test_our_worker_joins_the_next_server_if_its_report_is_cancelled() -> None:
    closing = ClosingServer()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[closing])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Fleet(port) as fleet:
            worker = fleet.add()
            worker.wait_for("end")
            assert closing.joined == 2
            assert [line for line in worker.lines if line.startswith("stop")] == ["stop False", "stop True"]
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(("restarting", "code"), [(True, grpc.StatusCode.UNAVAILABLE), (False, grpc.StatusCode.CANCELLED)])
def test_the_stream_of_events_ends_with_a_stop_only_if_the_job_ends(restarting: bool, code: grpc.StatusCode) -> None:
    server = ESServer(4, evochi="127.0.0.1:0").start()
    kinds = []
    with grpc.insecure_channel(f"127.0.0.1:{server.evochi_port}") as channel:
        events = channel.unary_stream(f"/{codec.SERVICE}/Subscribe")(codec.Subscribe(cores=4).SerializeToString(), timeout=60)
        kinds.append(codec.decode(codec.Event, next(events)).type)
        assert codec.decode(codec.Event, next(events)).type == codec.INITIALIZE
        closing = threading.Thread(target=server.close, kwargs={"restarting": restarting})
        closing.start()
        with pytest.raises(grpc.RpcError) as ended:
            kinds += [codec.decode(codec.Event, data).type for data in events]
        closing.join()
    assert ended.value.code() is code
