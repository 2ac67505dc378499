"""Programs written for the original Echo (id-echo) run with their import changed: its three quickstarts, and what they rely on."""

from __future__ import annotations

import errno
import socket
import threading

import numpy as np
import pytest

pytestmark = pytest.mark.needs("echo-core", "echo-samplers", "echo-tcp")


def transition() -> dict[str, np.ndarray]:
    return {"obs": np.zeros((4,), dtype=np.float32), "reward": np.zeros((1,), dtype=np.float32)}


def test_getting_started() -> None:
    from echo_core import Server, TcpClient, TcpTransport

    server = Server(transition(), batch_size=32, transport=TcpTransport(port=0, num_threads=2))
    server.start()

    def worker() -> None:
        client = TcpClient("localhost", server.port, transition(), max_inflight_msgs=32)
        for i in range(96):
            client.send({"obs": np.full(4, i, np.float32), "reward": np.array([1.0], dtype=np.float32)})
        client.wait()
        client.close()

    thread = threading.Thread(target=worker)
    thread.start()
    seen = []
    for sample in server.dataset_iter():
        assert sample.batch["obs"].shape == (32, 4) and sample.batch["reward"].shape == (32, 1)
        seen += sample.batch["obs"][:, 0].tolist()
        info = sample.info
        assert info.samples_inserted_total >= len(seen) and info.queue_dwell.p99_ns >= info.queue_dwell.p50_ns
        assert {info.memcpy.count >= 0, info.drain_round.count >= 0} == {True}
        if len(seen) == 96:
            break
    thread.join()
    server.reset_histograms()
    server.close()
    assert seen == list(range(96))
    assert server.sample() is None  # as documented there: None on shutdown


def test_in_process_use() -> None:
    from echo_core import Server

    server = Server(transition(), batch_size=8)
    for _ in range(8):
        server.submit(transition())
    sample = server.sample()
    batch, info = sample
    assert batch["obs"].shape == (8, 4) and info.store_size == 0
    server.close()


def test_accumulated_rollouts() -> None:
    from echo_core import Server, TcpClient, TcpTransport, TrajectoryAccumulator

    example = {
        "rollout": {"obs": np.zeros((5, 4), np.float32), "action": np.zeros((5,), np.int32)},
        "bootstrap": {"obs": np.zeros((1, 4), np.float32)},
        "episode": {"return": np.zeros((), np.float32)},
    }
    accumulator = TrajectoryAccumulator(example)
    server = Server(example, batch_size=2, transport=TcpTransport(port=0))
    server.start()
    client = TcpClient("localhost", server.port, example)
    for number in range(2):
        for step in range(5):
            accumulator.add("rollout", {"obs": np.full((1, 4), step, np.float32), "action": np.array([number], np.int32)})
        accumulator.add("bootstrap", {"obs": np.ones((1, 4), np.float32)})
        accumulator.add("episode", {"return": np.float32(number)})
        client.send(accumulator.build())
    batch = server.sample(timeout=20).batch
    assert batch["rollout"]["obs"][:, :, 0].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert batch["rollout"]["action"].tolist() == [[0] * 5, [1] * 5]
    assert batch["episode"]["return"].tolist() == [0, 1]
    client.close()
    server.close()


def test_close_delivers_to_a_learner_that_samples_now_and_then() -> None:
    from echo_core import Server, TcpClient, TcpTransport

    with Server(transition(), 2, TcpTransport(port=0), 2) as server:
        client = TcpClient("localhost", server.port, transition())
        for i in range(20):
            client.send({"obs": np.full(4, i, np.float32), "reward": np.zeros(1, np.float32)})
        assert client.unacknowledged > 0
        closing = threading.Thread(target=client.close)
        closing.start()
        seen = []
        for _ in range(10):
            closing.join(0.3)
            seen += server.sample(timeout=20).batch["obs"][:, 0].tolist()
        closing.join()
        assert seen == list(range(20)) and client.unacknowledged == 0


@pytest.mark.parametrize("block", [False, True], ids=["close", "with"])
def test_close_gives_up_with_a_warning_when_the_store_is_full_and_nobody_samples(block: bool) -> None:
    from echo_core import Server, TcpClient, TcpTransport

    with Server(transition(), 2, TcpTransport(port=0), 2) as server:
        client = TcpClient("localhost", server.port, transition(), timeout=600)
        for _ in range(20):
            client.send(transition())
        with pytest.warns(RuntimeWarning, match="closed with 16 samples not acknowledged"):
            if block:
                with client:
                    pass
            else:
                client.close()
        assert server.stats()["store/samples_inserted_total"] >= 4
        client.close()


def test_close_with_a_timeout_raises() -> None:
    from echo_core import EchoTimeoutError, Server, TcpClient, TcpTransport

    with Server(transition(), 2, TcpTransport(port=0), 2) as server:
        client = TcpClient("localhost", server.port, transition())
        for _ in range(20):
            client.send(transition())
        with pytest.raises(EchoTimeoutError, match="closed with 16 samples not acknowledged"):
            client.close(timeout=0.2)


def test_close_of_a_client_whose_learner_is_gone_raises() -> None:
    from echo_core import ConnectionClosedError, Server, TcpClient, TcpTransport

    with Server(transition(), 2, TcpTransport(port=0), 2) as server:
        client = TcpClient("localhost", server.port, transition(), reconnect=False)
        for _ in range(20):
            client.send(transition())
    with pytest.raises(ConnectionClosedError, match="samples .*not acknowledged"):
        client.close()


def test_attributes_that_programs_of_the_original_read() -> None:
    from echo_core import Server, TcpClient, TcpTransport, TrajectoryAccumulator

    accumulator = TrajectoryAccumulator({"step": {"obs": np.zeros((3, 2), np.float32)}, "episode": {"return": np.zeros((), np.float32)}})
    accumulator.add("step", {"obs": np.ones(2)})
    accumulator.add("step", {"obs": np.full(2, 2.0)})
    assert accumulator._counts == {"step": 3, "episode": 1} and accumulator._slot == {"step": 2, "episode": 0}
    assert accumulator._tree["step"]["obs"].tolist() == [[1, 1], [2, 2], [0, 0]]
    with Server(transition(), 1, TcpTransport(port=0)) as server, TcpClient("localhost", server.port, transition()) as client:
        client.send(transition())
        client.wait()
        assert client._in_flight_count == 0


def test_errors_have_the_words_by_which_programs_of_the_original_know_them() -> None:
    from echo_core import Server, TcpClient, TcpTransport, TrajectoryAccumulator

    with Server(transition(), 1, TcpTransport(port=0)) as server:
        with pytest.raises(ValueError, match="Server spec mismatch: leaf 'obs'"):
            TcpClient("localhost", server.port, transition() | {"obs": np.zeros(8, np.float32)})
        client = TcpClient("localhost", server.port, transition())
        with pytest.raises(ValueError, match="leaf 'obs' must have shape .*Payload size is 8 bytes instead of 16"):
            client.send(transition() | {"obs": np.zeros(2, np.float32)})
        client.close()
    accumulator = TrajectoryAccumulator({"step": {"obs": np.zeros((3, 2), np.float32)}})
    for _ in range(3):
        accumulator.add("step", {"obs": np.ones(2)})
    with pytest.raises(IndexError, match="Timescale 'step' has 3 slots, but you tried to add at index 3"):
        accumulator.add("step", {"obs": np.ones(2)})


def test_sending_after_the_end_is_a_connection_closed_error() -> None:
    from echo_core import ConnectionClosedError, Server, TcpClient, TcpTransport

    server = Server(transition(), batch_size=1, transport=TcpTransport(port=0))
    server.start()
    client = TcpClient("localhost", server.port, transition())
    client.close()
    client.close()  # idempotent
    with pytest.raises(ConnectionClosedError):
        client.send(transition())
    server.close()


def test_the_names_and_places_of_arguments() -> None:
    from echo_core import Server, TcpClient, TcpTransport

    with pytest.warns(UserWarning, match="no drainer threads"):
        server = Server(transition(), 2, TcpTransport(port=0), 5, num_drainers=8, producer_queue_size=8, pin_host_memory=False)
    assert server.num_buffers == 5
    server.start()
    with TcpClient(host="localhost", port=server.port, data_sample=transition(), max_inflight_msgs=4) as client:
        client.send(transition())
        client.send(transition())
    assert server.sample(timeout=20).batch["obs"].shape == (2, 4)
    for arguments, message in (({}, "needs the example"), ({"example": transition(), "data_sample": transition()}, "example and data_sample")):
        with pytest.raises(TypeError, match=message):
            TcpClient("localhost", server.port, **arguments)
    server.close()


def test_a_sampler_in_the_place_of_num_buffers_is_told_its_name() -> None:
    from echo_core import ConfigError, Server

    for sampler in ("uniform", {"type": "uniform"}):
        with pytest.raises(ConfigError, match="num_buffers must be a whole number.*sampler="):
            Server(transition(), 2, None, sampler)


def test_pinning_by_its_original_name() -> None:
    from echo_core import Server
    from echo_core.spec import cuda

    Server(transition(), 1, pin_host_memory=False).close()
    if isinstance(cuda.found(), str):
        with pytest.raises(RuntimeError, match="pinned=True"):
            Server(transition(), 1, pin_host_memory=True)
    else:
        Server(transition(), 1, pin_host_memory=True).close()


def test_errors_are_also_of_the_original_types() -> None:
    from echo_core import EchoError, Server, TcpClient, TcpTransport

    for server in (Server(transition(), 2), Server(transition(), 2, TcpTransport(port=0))):
        with pytest.raises(RuntimeError, match="no address") as caught:
            server.port  # noqa: B018
        assert isinstance(caught.value, EchoError)
    with server.start():
        with pytest.raises(RuntimeError, match="port is in use") as caught:
            Server(transition(), 2, TcpTransport(port=server.port)).start()
        assert isinstance(caught.value, EchoError) and isinstance(caught.value, OSError) and caught.value.errno == errno.EADDRINUSE
        for example, leaf in (({"a": 1.0}, "a"), ({"a": [1.0]}, "a/0"), ({"a": object()}, "a"), ({"a": "text"}, "a")):
            for make in (lambda: Server(example, 2), lambda: TcpClient("localhost", server.port, example)):  # noqa: B023
                with pytest.raises(TypeError, match=f"leaf '{leaf}' of the example") as caught:
                    make()
                assert isinstance(caught.value, EchoError) and isinstance(caught.value, ValueError)
        with pytest.raises(ValueError, match="leaf 'obs'"):
            TcpClient("localhost", server.port, {**transition(), "obs": np.zeros(8, np.float32)})


@pytest.mark.parametrize("protocol", ["echo1", "echo2"])
def test_a_foreign_peer_is_a_value_error(protocol: str) -> None:
    from echo_core import EchoError, TcpClient

    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        client.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, pytest.raises(ValueError, match="HTTP") as caught:
        TcpClient("127.0.0.1", listener.getsockname()[1], transition(), protocol=protocol)
    assert isinstance(caught.value, EchoError) and isinstance(caught.value, ConnectionError)
    thread.join()


def test_figures_of_the_original_that_mean_nothing_here_are_zero() -> None:
    from echo_core import Server

    server = Server(transition(), batch_size=1)
    server.submit(transition())
    info = server.sample().info
    assert (info.cas_success_total, info.cas_failure_total, info.reservation_retries_total) == (0, 0, 0)
    server.close()


def test_knobs_that_mean_nothing_here_say_so() -> None:
    from echo_core import Server

    with pytest.warns(UserWarning, match="no drainer threads"):
        Server(transition(), batch_size=1, num_drainers=8, producer_queue_size=8).close()
