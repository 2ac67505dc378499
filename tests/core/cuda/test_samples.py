"""Samples in the memory of a CUDA device: over every transport, straight into slots where the store is this process's, and whatever cannot be read
refused by name. The driver is that of driver.c; test_real.py asks a real one."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

import numpy as np
import optree
import pytest
from devices import ByInterface, Gpu, OnDevice

from echo_core import Client, Server, SpecError
from echo_core.base.errors import ConfigError, EchoTimeoutError
from echo_core.spec.cuda import CudaError
from echo_core.spec.spec import Spec
from echo_testing.processes import forked
from echo_testing.samples import assert_same

LARGE = (300, 100)  # more than what is copied with the GIL
TOKEN = "the-token-of-these-tests-long-enough"


def example(shape: tuple[int, ...] = (3, 4)) -> dict[str, Any]:
    return {"obs": np.zeros(shape, np.float32), "reward": np.zeros((), np.float32), "state": np.zeros(5, np.int64)}


def host(number: int, shape: tuple[int, ...] = (3, 4)) -> dict[str, Any]:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return {"obs": values + number, "reward": np.float32(number), "state": np.arange(5) * number}


def there(gpu: Gpu, sample: dict[str, Any]) -> dict[str, Any]:
    """Two leaves on a device, one on the host."""
    return sample | {"obs": OnDevice(gpu, sample["obs"]), "state": ByInterface(gpu, sample["state"])}


def batch_of(server: Server) -> Any:
    one = server.sample(timeout=60)
    assert one is not None
    return one.batch


def stacked(*samples: dict[str, Any]) -> Any:
    return optree.tree_map(lambda *leaves: np.stack(leaves), *samples)


def test_no_processor_reads_that_memory(gpu: Gpu) -> None:
    address = gpu.upload(np.ones(4))

    def read() -> None:
        import ctypes

        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(address, 1)

    with pytest.raises(AssertionError, match="died without a word"):
        forked(read)


@pytest.mark.needs("echo-samplers")
class TestWithinOneProcess:
    @pytest.mark.parametrize("shape", [(3, 4), LARGE])
    def test_samples_are_written_straight_into_their_slots(self, gpu: Gpu, shape: tuple[int, ...]) -> None:
        with Server(example(shape), 3) as server:
            server.submit(there(gpu, host(1, shape)))
            server.submit_batch({name: OnDevice(gpu, value) for name, value in stacked(host(2, shape), host(3, shape)).items()})
            batch = batch_of(server)
            assert_same(batch, stacked(host(1, shape), host(2, shape), host(3, shape)))
            # The leaves come in the order of their names: the last copy was of `state`, into the slots of samples 2 and 3.
            assert gpu.last_target() == batch["state"].ctypes.data + batch["state"].strides[0]
            assert gpu.copies() == 2 + 3 and gpu.locked_ranges() == 0

    def test_a_batch_that_waits_for_space_goes_in_by_and_by(self, gpu: Gpu) -> None:
        wanted = stacked(*(host(i) for i in range(8)))
        with Server(example(), 2, num_buffers=2) as server:
            with pytest.raises(EchoTimeoutError) as caught:
                server.submit_batch({name: OnDevice(gpu, value) for name, value in wanted.items()}, timeout=0.1)
            assert caught.value.inserted == 4
            assert_same(batch_of(server), optree.tree_map(lambda x: x[:2], wanted))
            assert_same(batch_of(server), optree.tree_map(lambda x: x[2:4], wanted))

    def test_items_of_replay_tables_keep_keys_and_priorities(self, gpu: Gpu) -> None:
        with Server(example(), 4, sampler="prioritized", capacity=10) as server:
            key = server.submit(there(gpu, host(1)), priority=2.0)
            keys = server.submit_batch({name: OnDevice(gpu, value) for name, value in stacked(host(2), host(3)).items()}, priorities=[1.0, 0.5])
            rows, here = server.table().peek(np.array([key, *keys], np.uint64))
            assert here.all() and server.table().top(3)[1].tolist() == pytest.approx([2.0, 1.0, 0.5])
            assert_same(rows, stacked(host(1), host(2), host(3)))

    def test_where_the_device_fails_nothing_is_inserted(self, gpu: Gpu) -> None:
        with Server(example(), 2) as server:
            sample = there(gpu, host(1))
            gpu.fail(b"cuMemcpyDtoHAsync", 700)
            with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access"):
                server.submit(sample)
            gpu.fail(b"", 0)
            assert server.stats()["store/samples_inserted_total"] == 0
            server.submit(host(2))
            server.submit(sample)
            assert_same(batch_of(server), stacked(host(2), host(1)))

    @pytest.mark.needs("echo-tcp")
    def test_weights_are_published_from_there(self, gpu: Gpu) -> None:
        with Server(example(), 2, "tcp://127.0.0.1:0", token=TOKEN) as server, Client(server.address, example(), token=TOKEN) as client:
            server.publish({"layer": OnDevice(gpu, host(7)["obs"]), "bias": np.ones(3)})
            assert_same(client.weights(timeout=60).params, {"layer": host(7)["obs"], "bias": np.ones(3)})


@pytest.mark.needs("echo-samplers")
@pytest.mark.parametrize("shape", [(3, 4), LARGE])
@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("tcp", marks=pytest.mark.needs("echo-tcp")),
        pytest.param("shm", marks=pytest.mark.needs("echo-shm")),
        pytest.param("grpc", marks=pytest.mark.needs("echo-grpc")),
        pytest.param("rdma", marks=pytest.mark.needs("echo-rdma")),
    ],
)
def test_workers_send_from_there(gpu: Gpu, scheme: str, shape: tuple[int, ...]) -> None:
    address = f"shm://cuda-{os.getpid()}" if scheme == "shm" else f"{scheme}://127.0.0.1:0"
    if scheme == "rdma":
        try:
            importlib.import_module("echo_rdma.library").ucx()
        except ConfigError as error:
            pytest.skip(str(error))
    with Server(example(shape), 4, address, token=TOKEN) as server, Client(server.address, example(shape), token=TOKEN) as client:
        client.send(there(gpu, host(0, shape)))
        client.send(host(1, shape))
        assert gpu.copies() == 2
        client.send_batch({name: OnDevice(gpu, value) for name, value in stacked(host(2, shape), host(3, shape)).items()})
        assert gpu.copies() == 2 + 3  # each array once, whatever the size
        assert_same(batch_of(server), stacked(*(host(i, shape) for i in range(4))))
        locked = gpu.locked_ranges()
        assert 0 < locked <= 5
        for _ in range(5):
            client.send(there(gpu, host(0, shape)))
        assert gpu.locked_ranges() <= locked + 3  # of ten arrays: the memory that they land in is used again, when nobody holds it


class TestWhatIsWaitedFor:
    """The producer's work is done before anything is copied."""

    def test_dlpack_is_given_our_stream(self, gpu: Gpu) -> None:
        spec, stream = Spec.from_example({"obs": np.zeros(4, np.uint8)}), gpu.stream(0)
        value = OnDevice(gpu, np.zeros(4, np.uint8), stream=stream)
        gpu.launch_fill(stream, 0, value.address, 7, 4)
        assert spec.flattener.flatten({"obs": value})[0].tolist() == [7] * 4
        assert value.streams[0] not in (0, 1, 2, stream)  # one of ours: not the default one, for which everybody would wait

    @pytest.mark.parametrize("version", [2, 3])
    def test_the_stream_of_the_interface(self, gpu: Gpu, version: int) -> None:
        spec, stream = Spec.from_example({"obs": np.zeros(4, np.uint8)}), gpu.stream(0) if version == 3 else 1
        value = ByInterface(gpu, np.zeros(4, np.uint8), version=version, **({"stream": stream} if version == 3 else {}))
        gpu.launch_fill(stream, 0, value.address, 9, 4)
        assert spec.flattener.flatten({"obs": value})[0].tolist() == [9] * 4

    def test_nothing_where_the_interface_says_so(self, gpu: Gpu) -> None:
        spec = Spec.from_example({"obs": np.zeros(4, np.uint8)})
        value = ByInterface(gpu, np.zeros(4, np.uint8), stream=None)
        gpu.launch_fill(1, 0, value.address, 9, 4)
        assert spec.flattener.flatten({"obs": value})[0].tolist() == [0] * 4


class TestWhereItLies:
    def test_other_devices_contexts_and_pools(self, gpu: Gpu) -> None:
        values = [np.arange(4, dtype=np.float32) + i for i in range(4)]
        spec = Spec.from_example({str(i): value for i, value in enumerate(values)})
        sample = {
            "0": OnDevice(gpu, values[0], device=1),
            "1": ByInterface(gpu, values[1], context=1),
            "2": ByInterface(gpu, values[2], context=2),
            "3": ByInterface(gpu, values[3], context=1, pooled=True),
        }
        for got, wanted in zip(spec.flattener.flatten(sample), values):
            assert got.tolist() == wanted.tolist()

    def test_a_tensor_that_does_not_begin_where_its_memory_does(self, gpu: Gpu) -> None:
        spec = Spec.from_example({"obs": np.zeros(4, np.int32)})
        assert spec.flattener.flatten({"obs": OnDevice(gpu, np.arange(4, dtype=np.int32), offset=64)})[0].tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"])
    def test_types(self, gpu: Gpu, dtype: str) -> None:
        value = np.arange(6).reshape(2, 3).astype(dtype)
        got = Spec.from_example({"obs": value}).flattener.flatten({"obs": OnDevice(gpu, value)})[0]
        assert got.dtype == value.dtype and got.tolist() == value.tolist()

    @pytest.mark.parametrize(
        ("name", "code"), [("bfloat16", (4, 16, 1)), ("float8_e4m3fn", (10, 8, 1)), ("float8_e5m2", (12, 8, 1)), ("float8_e8m0fnu", (14, 8, 1))]
    )
    def test_types_of_ml_dtypes(self, gpu: Gpu, name: str, code: tuple[int, int, int]) -> None:
        value = np.array([1, 2, 4, 8]).astype(getattr(pytest.importorskip("ml_dtypes"), name))
        one = OnDevice(gpu, value)
        one.code = code
        got = Spec.from_example({"obs": value}).flattener.flatten({"obs": one})[0]
        assert got.dtype == value.dtype and (got == value).all()

    def test_nothing_at_all(self, gpu: Gpu) -> None:
        spec = Spec.from_example({"obs": np.zeros((0, 3), np.float32), "more": np.zeros((0,), np.int8)})
        empty = ByInterface(gpu, np.zeros(0, np.int8), data=(0, False))
        got = spec.flattener.flatten({"obs": OnDevice(gpu, np.zeros((0, 3), np.float32)), "more": empty})
        assert [array.shape for array in got] == [(0,), (0, 3)] and gpu.copies() == 0

    def test_an_example_may_lie_there(self, gpu: Gpu) -> None:
        assert Spec.from_example({name: OnDevice(gpu, value) for name, value in example().items()}) == Spec.from_example(example())
        assert gpu.copies() == 0


class TestRefusals:
    SPEC = Spec.from_example({"obs": np.zeros((3, 4), np.float32)})

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (np.zeros((3, 4), np.float64), "'obs' must be float32, got float64; convert it"),
            (np.zeros((4, 3), np.float32), r"'obs' must have shape \(3, 4\), got \(4, 3\)"),
            (np.zeros((2, 3, 4), np.float32), "'obs' .*use send_batch"),
        ],
    )
    def test_another_shape_or_type_is_refused_as_on_the_host(self, gpu: Gpu, value: np.ndarray, words: str) -> None:
        for lent in (OnDevice(gpu, value), ByInterface(gpu, value)):
            with pytest.raises(SpecError, match=words):
                self.SPEC.check({"obs": lent})
        assert gpu.copies() == 0

    def test_a_batch_of_another_number(self, gpu: Gpu) -> None:
        spec = Spec.from_example(example())
        batch = {name: OnDevice(gpu, value) for name, value in stacked(host(1), host(2)).items()}
        assert spec.flattener.check_batch(batch) == 2
        with pytest.raises(SpecError, match=r"'reward' must have shape \(2,\), got \(3,\)"):
            spec.flattener.check_batch(batch | {"reward": OnDevice(gpu, np.zeros(3, np.float32))})

    def test_what_is_not_contiguous(self, gpu: Gpu) -> None:
        value = np.zeros((3, 4), np.float32)
        for lent in (OnDevice(gpu, value, strides=(1, 3)), ByInterface(gpu, value, strides=(4, 12))):
            with pytest.raises(SpecError, match=r"'obs': .*not contiguous; use value\.contiguous\(\)"):
                self.SPEC.check({"obs": lent})
        for lent in (OnDevice(gpu, value, strides=(4, 1)), ByInterface(gpu, value, strides=(16, 4))):
            self.SPEC.check({"obs": lent})

    def test_what_its_library_does_not_give(self, gpu: Gpu) -> None:
        class Gradient(OnDevice):
            def __dlpack__(self, *, stream: int) -> Any:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

        with pytest.raises(SpecError, match=r"'obs': the Gradient lies in the memory of CUDA device 0, .*use tensor\.detach\(\).*copy it to the host"):
            self.SPEC.check({"obs": Gradient(gpu, np.zeros((3, 4), np.float32))})

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"mask": object()}, "has a mask"),
            ({"typestr": ">f4"}, "another byte order"),
            ({"data": (4096, False)}, "CUDA_ERROR_INVALID_VALUE"),
        ],
    )
    def test_other_oddities(self, gpu: Gpu, more: dict[str, Any], words: str) -> None:
        with pytest.raises(SpecError, match=f"'obs': .*{words}.*copy it to the host first"):
            self.SPEC.check({"obs": ByInterface(gpu, np.zeros((3, 4), np.float32), **more)})

    def test_types_that_numpy_does_not_have(self, gpu: Gpu) -> None:
        value = OnDevice(gpu, np.zeros((3, 4), np.float32))
        for value.code in ((2, 16, 2), (17, 4, 1), (3, 64, 1)):
            with pytest.raises(SpecError, match="numpy has no type for DLPack's type"):
                self.SPEC.check({"obs": value})

    def test_another_process_s_driver(self, gpu: Gpu) -> None:
        value = OnDevice(gpu, np.zeros((3, 4), np.float32))
        self.SPEC.check({"obs": value})

        def child() -> None:
            with pytest.raises(SpecError, match="cuCtxPushCurrent"):
                self.SPEC.check({"obs": value})

        forked(child)
