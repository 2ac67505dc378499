"""The features of gRPC beside the contract: health, certificates, large weights, SIGTERM, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import SecurityError
from echo_core.security.tls import Authority
from echo_grpc.transport import GrpcsTransport, GrpcTransport
from echo_net.channel.listener import ChannelListener
from echo_testing.processes import until

EXAMPLE = {"x": np.zeros(4, np.float32), "n": np.zeros((), np.int64)}
TOKEN = "the-token-of-these-tests-long-enough"


def sample(number: int) -> dict[str, np.ndarray]:
    return {"x": np.full(4, number, np.float32), "n": np.array(number)}


def check(channel: grpc.Channel, service: str = "") -> int:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status


def test_health_as_load_balancers_ask_for_it() -> None:
    pytest.importorskip("grpc_health")
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    server = Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN).start()
    with grpc.insecure_channel("{}:{}".format(*server.address.endpoint)) as channel:
        assert check(channel) == check(channel, "echo.v2.Experience") == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            check(channel, "something else")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        seen = []
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())

        def watch() -> None:
            try:
                for answer in watching:
                    seen.append(answer.status)
            except grpc.RpcError:
                pass

        thread = threading.Thread(target=watch)
        thread.start()
        until(lambda: seen, "the first answer")
        server.close()
        thread.join(20)
        assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


def silent(channel: grpc.Channel, method: str, call: threading.Event) -> grpc.Call:
    """A call that never sends anything."""

    def nothing() -> Iterator[bytes]:
        call.wait(60)
        yield from ()

    return channel.stream_stream(f"/grpc.health.v1.Health/{method}")(nothing())


def test_calls_of_the_health_service_that_say_nothing_keep_nobody_out() -> None:
    pytest.importorskip("grpc_health")
    transport = GrpcTransport(port=0, max_connections=4, max_pending=2, handshake_timeout=120)
    alone = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    over = threading.Event()
    with Server(EXAMPLE, 2, transport, token=TOKEN) as server:
        where = "{}:{}".format(*server.address.endpoint)
        with grpc.insecure_channel(where, alone) as strangers, grpc.insecure_channel(where, alone) as balancer:
            calls = [silent(strangers, method, over) for method in ("Check", "Watch") * 100]  # many more than are served at once

            def served() -> bool:
                with suppress(grpc.RpcError):  # while they come
                    return check(balancer) == 1
                return False

            until(served, "the oldest are sent away")
            with Client(server.address, EXAMPLE, token=TOKEN, timeout=20) as client:
                client.request("ping")
            over.set()
            for call in calls:
                call.cancel()


def test_a_call_of_the_health_service_that_says_nothing_ends_in_time() -> None:
    over = threading.Event()
    transport = GrpcTransport(port=0, handshake_timeout=0.5)
    with Server(EXAMPLE, 2, transport, token=TOKEN) as server, grpc.insecure_channel("{}:{}".format(*server.address.endpoint)) as strangers:
        calls = [silent(strangers, method, over) for method in ("Check", "Watch") * 5]
        until(lambda: all(call.done() for call in calls), "they are sent away")
        over.set()


def test_a_health_check_that_is_none_is_refused_without_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN) as server, grpc.insecure_channel("{}:{}".format(*server.address.endpoint)) as channel:
        once = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        empty = channel.stream_unary("/grpc.health.v1.Health/Check")
        for call in (lambda: once(b"\xff", timeout=20), lambda: next(watch(b"\xff", timeout=20)), lambda: empty(iter(()), timeout=20)):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


def test_an_interrupted_close_leaves_no_thread_that_keeps_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """grpcio waits for calls in a thread that Python joins at its end."""
    server = Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN).start()
    (listener,) = server._listeners
    close = ChannelListener.close

    def interrupted(self: ChannelListener, timeout: float | None = None) -> None:
        close(self, timeout)
        raise KeyboardInterrupt

    with Client(server.address, EXAMPLE, token=TOKEN, timeout=20):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ChannelListener, "close", interrupted)
            listener.close(0)
        until(lambda: all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()), "nothing to be joined")
    server.close()


def test_weights_of_a_hundred_megabytes() -> None:
    with Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN) as server:
        published = server.publish({"w": np.arange(25_000_000, dtype=np.float32)})
        with Client(server.address, EXAMPLE, token=TOKEN, timeout=120) as client:
            weights = client.weights(120)
            assert weights.digest == published.digest
            assert weights.params["w"][-1] == 24_999_999


def test_exposure_without_authentication_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="allow_insecure"):
        Server(EXAMPLE, 2, GrpcTransport(port=0, host="0.0.0.0", auth=False)).start()
    ours = Authority.create(tmp_path)
    with Server(EXAMPLE, 2, GrpcsTransport(port=0, host="0.0.0.0", auth=False, tls_client_authority=ours.certificate)):
        pass  # mutual TLS is authentication


def test_sigterm_loses_nothing(tmp_path: Path) -> None:
    """A learner that gets SIGTERM still commits all samples that have arrived. Its workers keep the rest and continue with the next learner."""
    program = textwrap.dedent(f"""
        import signal, sys
        import numpy as np
        from echo_core import EchoTimeoutError, Server
        told = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(True))  # an exception might hit between taking a batch and keeping it
        example = {{"x": np.zeros(4, np.float32), "n": np.zeros((), np.int64)}}
        with Server(example, 10, sys.argv[1], token={TOKEN!r}, num_buffers=4) as server:
            print(server.address, flush=True)
            seen = []
            while not told:
                try:
                    seen += server.sample(0.2).batch["n"].tolist()
                except EchoTimeoutError:
                    pass
            server.close(restarting=True)
            while (sample := server.sample(1)) is not None:
                seen += sample.batch["n"].tolist()
            print(seen[0], seen[-1], len(seen), flush=True)
    """)

    def learner(where: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", program, where], stdout=subprocess.PIPE, text=True, cwd=tmp_path)

    first = learner("grpc://127.0.0.1:0")
    assert first.stdout is not None
    where = first.stdout.readline().strip()
    second = None
    try:
        with Client(where, EXAMPLE, token=TOKEN, timeout=60) as client:
            for number in range(1000):
                client.send(sample(number))
            client.wait()
            first.send_signal(signal.SIGTERM)
            said, _ = first.communicate(timeout=60)
            assert said.split() == ["0", "999", "1000"] and first.returncode == 0
            second = learner(where)
            assert second.stdout is not None and second.stdout.readline().strip() == where
            for number in range(1000, 1200):
                client.send(sample(number))
            client.wait()
            assert client.stats()["learner_restarts"] == 1
        second.send_signal(signal.SIGTERM)
        said, _ = second.communicate(timeout=60)
        assert said.split() == ["1000", "1199", "200"]
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()


def test_grpcio_is_imported_when_selected_only() -> None:
    code = "import sys, echo_core.plugins.discovery as p; p.installed(p.TRANSPORTS); p.default.examine(p.TRANSPORTS); print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("told", [None, "INFO"])
def test_the_log_of_grpcio_is_set_to_errors_where_nobody_says_otherwise(told: str | None) -> None:
    code = "import os, echo_core.plugins.discovery as p; p.transport_class('grpc'); print(os.environ['GRPC_VERBOSITY'])"
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | ({"GRPC_VERBOSITY": told} if told else {})
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout == f"{told or 'ERROR'}\n"


@pytest.mark.parametrize("first", ["grpc", "echo_grpc"])
def test_a_log_of_grpcio_that_could_not_be_set_is_told_of(first: str, tmp_path: Path) -> None:
    code = f"import {first}, numpy; from echo_core import Server; Server({{'x': numpy.zeros(2)}}, 2, 'grpcs://127.0.0.1:0', token={TOKEN!r}).start().close()"
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | {"XDG_CONFIG_HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stderr
    assert ("GRPC_VERBOSITY=ERROR" in said) == (first == "grpc")


FORKS = """
    import os
    import {first}
    import numpy as np
    from echo_core import Client, Server

    example = {{"x": np.zeros(4, np.float32)}}
    with Server(example, 1, "grpc://127.0.0.1:0") as server, Client(server.address, example) as client:
        client.send(example)
        assert server.sample(timeout=20) is not None
        client.flush(timeout=20)
        for _ in range(3):
            child = os.fork()
            if not child:
                os._exit(len(os.listdir("/proc/self/task")))
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(("first", "told", "follows"), [("echo_grpc", None, False), ("grpc", None, True), ("echo_grpc", "1", True), ("grpc", "0", False)])
def test_no_thread_of_grpcio_follows_into_a_forked_child(first: str, told: str | None, follows: bool) -> None:
    """In a child, the threads would read from the parent's connections, and one in ten children of some programs crashes."""
    env = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    env |= {"GRPC_VERBOSITY": "ERROR"} | ({"GRPC_ENABLE_FORK_SUPPORT": told} if told else {})
    program = textwrap.dedent(FORKS.format(first=first))
    process = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=30 if follows else 100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        assert follows, err  # if they follow, nothing can be guaranteed: grpcio may hang or crash in a child, so there is a warning
    assert err.count("GRPC_ENABLE_FORK_SUPPORT=0") == follows, err
    if not follows:
        assert (process.returncode, out.split()) == (0, ["1", "1", "1"]), err


def test_a_learner_in_a_forked_child_is_an_error() -> None:
    from echo_core.base.errors import ForkError
    from echo_testing.processes import forked

    with Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN):

        def child() -> None:
            with pytest.raises(ForkError, match="spawn"):
                Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN).start()

        forked(child)


def test_a_flood_of_silent_calls_on_one_connection_keeps_no_worker_out() -> None:
    """There are many more such calls than may wait to be accepted, and each that is ended calls again at once."""
    with Server(EXAMPLE, 2, GrpcTransport(port=0, max_pending=8, max_connections=4, handshake_timeout=60), token=TOKEN) as server:
        channel = grpc.insecure_channel("{}:{}".format(*server.address.endpoint), [("grpc.use_local_subchannel_pool", 1)])
        flood = channel.stream_stream("/echo.v2.Experience/Session")
        over, silent, made = threading.Event(), threading.Semaphore(100), []

        def again() -> None:
            while not over.is_set():
                if silent.acquire(timeout=0.1):
                    made.append(call := flood(iter(over.wait, True)))  # says nothing, and does not end
                    if not call.add_callback(silent.release):
                        silent.release()

        thread = threading.Thread(target=again, daemon=True)
        thread.start()
        try:
            until(lambda: len(made) > 200, "the flood is there")
            with Client(server.address, EXAMPLE, token=TOKEN, timeout=20) as worker:
                worker.send_batch({"x": np.zeros((2, 4), np.float32), "n": np.arange(2)})
                assert server.sample(20).batch["n"].tolist() == [0, 1]
        finally:
            over.set()
            thread.join()
            channel.close()


def test_the_service_outlives_a_lack_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, lacking = threading.Thread.start, threading.Event()

    def fails(thread: threading.Thread) -> None:
        if lacking.is_set() and thread.name == "echo-grpc":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    with Server(EXAMPLE, 2, GrpcTransport(port=0), token=TOKEN) as server, grpc.insecure_channel("{}:{}".format(*server.address.endpoint)) as channel:
        lacking.set()
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=0.5)
        lacking.clear()
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20) == b"\x08\x01"
        with Client(server.address, EXAMPLE, token=TOKEN, timeout=20) as worker:
            assert worker.stats()["connected"]


def test_a_worker_may_ask_whether_the_learner_lives_as_often_as_it_can_be_told_to() -> None:
    with Server(EXAMPLE, 2, GrpcTransport(port=0), token=TOKEN) as server, Client(f"{server.address}?keepalive=1", EXAMPLE, token=TOKEN) as worker:
        time.sleep(5)  # some of its pings, on an idle link
        assert worker.stats()["reconnects"] == 0
        assert server.stats()["transport/grpc/connections_total"] == 1
