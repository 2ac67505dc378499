"""SharedWeightSync: what one side wrote is what the other reads, or an error says why not."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ClosedError, ConfigError, EchoTimeoutError, SpecError
from echo_ipc import SharedWeightSync

SHAPES = {"layer.weight": (4, 3), "layer.bias": (4,), "scale": ()}


def weights(number: float, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {name: np.full(shape, number, dtype) for name, shape in SHAPES.items()}


def test_what_was_written_is_read() -> None:
    sync, mine = SharedWeightSync(SHAPES), weights(0)
    assert sync.version == 0 and sync.read_weights_into(mine) == 0 and mine["scale"] == 0
    for version in (1, 2):
        sync.write_weights(weights(version))
        assert sync.version == version and sync.read_weights_into(mine) == version
        assert all((value == version).all() for value in mine.values())
    sync.cleanup()
    sync.cleanup()


def test_who_attaches_reads_and_writes_the_same() -> None:
    owner = SharedWeightSync.from_state_dict(weights(3))
    attached, mine = SharedWeightSync(SHAPES, create=False, shm_name=owner.name, lock="kept"), weights(0)
    assert attached._lock == "kept" and attached.read_weights_into(mine) == 1 and (mine["layer.weight"] == 3).all()
    attached.write_weights(weights(4))
    assert owner.read_weights_into(mine) == 2 and (mine["layer.bias"] == 4).all()
    owner.close()  # the name stays
    SharedWeightSync(SHAPES, create=False, shm_name=owner.name).close()
    owner.cleanup()
    assert attached.read_weights_into(mine) == 2, "who is attached keeps the memory"
    attached.close()


def test_dtypes_are_kept_and_adopted() -> None:
    state = {"w": np.array([0.1, 1e300]), "count": np.array(2**40), "on": np.array([True, False])}
    owner = SharedWeightSync.from_state_dict(state)
    attached = SharedWeightSync({name: value.shape for name, value in state.items()}, create=False, shm_name=owner.name)
    mine = {name: np.zeros_like(value) for name, value in state.items()}
    assert attached.read_weights_into(mine) == 1
    assert all((mine[name] == value).all() for name, value in state.items())
    attached.close()
    owner.cleanup()


def test_other_dtypes_are_converted_or_refused() -> None:
    sync = SharedWeightSync(SHAPES)
    sync.write_weights(weights(0.5, "float64"))
    for dtype in ("float16", "float64"):
        mine = weights(0, dtype)
        sync.read_weights_into(mine)
        assert (mine["layer.weight"] == 0.5).all()
    with pytest.raises(SpecError, match="'layer.weight' is float32 and has numbers that int64 cannot hold"):
        sync.read_weights_into(weights(0, "int64"))
    sync.write_weights(weights(7, "int64"))
    mine = weights(0, "int64")
    assert sync.read_weights_into(mine) == 2 and (mine["layer.weight"] == 7).all()
    with pytest.raises(SpecError, match="'layer.weight' is int64 and has numbers that float32 cannot hold"):
        sync.write_weights(weights(2**24 + 1, "int64"))
    assert sync.version == 2
    sync.cleanup()


def test_bits_are_not_numbers() -> None:
    sync = SharedWeightSync({"w": (2,)}, dtypes={"w": "bfloat16"})
    sync.write_weights({"w": np.array([1, 2], np.uint16)})
    with pytest.raises(SpecError, match=r"'w' must be uint16\[2\]"):
        sync.read_weights_into({"w": np.zeros(2, np.float32)})
    with pytest.raises(SpecError, match=r"'w' must be uint16\[2\]"):
        sync.write_weights({"w": np.zeros(2, np.float32)})
    sync.cleanup()


def test_what_does_not_fit_is_named_and_nothing_is_written() -> None:
    sync = SharedWeightSync(SHAPES)
    with pytest.raises(SpecError, match="there is no parameter 'scale' in the state_dict"):
        sync.write_weights({name: value for name, value in weights(1).items() if name != "scale"})
    with pytest.raises(SpecError, match=r"'layer.bias' must be float32\[4\], but is float32\[5\]"):
        sync.write_weights(weights(1) | {"layer.bias": np.zeros(5, np.float32)})
    sync.write_weights(weights(1) | {"other": np.zeros(5)})
    assert sync.version == 1
    sync.cleanup()


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (SHAPES | {"more": (1,)}, "have no parameter 'more'"),
        (SHAPES | {"scale": (1,)}, r"'scale' of the weights .* has the shape \(\), not \(1,\)"),
        ({"scale": ()}, "also have a parameter 'layer.weight'"),
    ],
)
def test_another_network_cannot_attach(shapes: dict[str, Any], text: str) -> None:
    owner = SharedWeightSync(SHAPES)
    with pytest.raises(SpecError, match=text):
        SharedWeightSync(shapes, create=False, shm_name=owner.name)
    owner.cleanup()


def test_arguments() -> None:
    with pytest.warns(UserWarning, match="shm_name='x' is ignored"):
        SharedWeightSync(SHAPES, shm_name="x").cleanup()
    with pytest.raises(ConfigError, match="needs shm_name"):
        SharedWeightSync(SHAPES, create=False)
    with pytest.raises(SpecError, match="dtypes has 'scal', which is no parameter.*scale"):
        SharedWeightSync(SHAPES, dtypes={"scal": "float64"})


def test_waiting_and_closing() -> None:
    sync = SharedWeightSync(SHAPES)
    assert not sync.wait_for_version(1, timeout=0)
    with pytest.raises(EchoTimeoutError):
        sync.read_weights_into(weights(0), newer_than=0, timeout=0)
    sync.write_weights(weights(1))
    assert sync.wait_for_version(1, timeout=0) and not sync.wait_for_version(2, timeout=0)
    sync.cleanup()
    for use in (lambda: sync.version, lambda: sync.read_weights_into(weights(0)), lambda: sync.write_weights(weights(0))):
        with pytest.raises(ClosedError):
            use()


def test_a_recorder_is_told() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.found: list[Any] = []

        def add_slice(self, name: str, *, category: str, start_ns: int, end_ns: int, args: Any) -> None:
            assert 0 < start_ns <= end_ns and category == "weight_sync"
            self.found.append((name, args["version"]))

        def add_counter(self, name: str, value: float, *, category: str) -> None:
            self.found.append(name)

    sync = SharedWeightSync(SHAPES)
    sync.trace_recorder, sync.trace_thread_time = Recorder(), True
    sync.write_weights(weights(1))
    sync.read_weights_into(weights(0))
    assert sync.trace_recorder.found == [
        ("weight_sync/write_weights_d2h", 1),
        "weight_sync/write_thread_cpu_us",
        ("weight_sync/read_weights_into_cpu_actor", 1),
        "weight_sync/read_thread_cpu_us",
    ]
    assert pickle.loads(pickle.dumps(sync)).trace_recorder is None
    sync.cleanup()


def answer(sync: SharedWeightSync, name: str) -> None:
    """Add one to what version 1 has."""
    mine = weights(0)
    assert sync.read_weights_into(mine, newer_than=0, timeout=60) == 1
    SharedWeightSync(SHAPES, create=False, shm_name=name).write_weights({key: value + 1 for key, value in mine.items()})


@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
def test_another_process(how: str) -> None:
    sync, mine = SharedWeightSync(SHAPES), weights(0)
    process = multiprocessing.get_context(how).Process(target=answer, args=(sync, sync.name))  # type: ignore[attr-defined]
    process.start()
    sync.write_weights(weights(5))
    assert sync.read_weights_into(mine, newer_than=1, timeout=60) == 2 and (mine["layer.weight"] == 6).all()
    process.join()
    assert process.exitcode == 0
    sync.cleanup()
