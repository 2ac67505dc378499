"""A value either arrives exactly as it was given, or it is refused by name: no conversion of numpy may change it silently."""

from __future__ import annotations

import collections
import enum
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core import Client, Server
from echo_core.base.errors import SpecError
from echo_core.spec.spec import Spec
from echo_core.store.sampler import check_keys
from echo_core.wire.weights import pack, unpack

MASKED = np.ma.masked_array(np.arange(3.0), mask=[False, True, False])


class Name(enum.StrEnum):
    POLICY = "policy"


def there_and_back(value: Any) -> Any:
    packed = pack({"x": value}, 1)
    return unpack(packed.meta, packed.payload).params["x"]


@pytest.mark.parametrize(
    "value",
    [
        *(b"header\x00\x01\x00\x00", b"", b"\x00", bytes(range(256)) * 300, "text\x00\x00", "", "€ 😀"),
        *(None, True, 10**30, -(2**64), 10**5000, 2**63, float("inf")),
    ],
    ids=lambda value: str(value)[:12] if not isinstance(value, int) else f"{value.bit_length()} bits",
)
def test_python_values_in_weights_come_back_as_they_were(value: Any) -> None:
    got = there_and_back(value)
    assert type(got) is type(value) and got == value


def test_other_kinds_of_text_and_bytes_in_weights() -> None:
    assert there_and_back(Name.POLICY) == "policy"
    assert there_and_back(bytearray(b"a\x00")).tobytes() == b"a\x00"
    assert there_and_back(memoryview(b"a\x00")).tobytes() == b"a\x00"
    assert there_and_back(np.array([b"a\x00", b"bc"])).tobytes() == b"a\x00bc"


def test_equal_bytes_have_equal_digests_and_others_not() -> None:
    assert pack({"x": b"a\x00"}, 1).digest == pack({"x": b"a\x00"}, 2).digest
    assert len({pack({"x": value}, 1).digest for value in (b"a", b"a\x00", b"a\x00\x00", "a", np.frombuffer(b"a\x00", np.uint8))}) == 5


@pytest.mark.needs("echo-samplers", "echo-tcp")
def test_bytes_travel_from_a_server_to_a_client() -> None:
    blob = b"header\x00\x01\x00\x00"
    with Server({"x": np.zeros(1)}, 1, "tcp://127.0.0.1:0") as server, Client(server.address, {"x": np.zeros(1)}) as client:
        server.publish({"blob": blob, "w": np.ones(2)})
        weights = client.weights(timeout=10)
        assert weights is not None and weights.params["blob"] == blob and weights.params["w"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (MASKED, r"masked array.*filled"),
        (collections.UserList([b"a\x00"]), r"UserList, which is no array.*np\.asarray"),
        (collections.UserList([1, "a"]), r"UserList, which is no array"),
        (collections.UserList([2**63, -1]), r"UserList, which is no array"),
        ({1, 2}, r"set, which is no array"),
        ("\ud83d\ude00", "is not valid Unicode"),
        (np.array([2**70], object), "object"),
    ],
)
def test_what_numpy_would_change_is_refused(value: Any, words: str) -> None:
    with pytest.raises(SpecError, match=f"leaf 'x'.*{words}"):
        pack({"x": value}, 1)


@pytest.mark.parametrize("value", [collections.UserList([2**63, -1]), {1, 2}, range(2), MASKED])
def test_it_is_refused_in_samples_and_examples_too(value: Any) -> None:
    spec = Spec.from_example({"x": np.zeros(2)})
    with pytest.raises(SpecError, match="leaf 'x'"):
        spec.check({"x": value})
    with pytest.raises(SpecError, match="leaf 'x' of the example"):
        Spec.from_example({"x": value})


PRIORITIES = [
    (np.ma.masked_array([1.0, 2.0], mask=[True, False]), "masked"),
    (np.array([1 + 1j, 2]), "complex"),
    (["1", "2"], "numbers"),
    ([1.0, None], "numbers"),
    (np.array(["2020-01-01", "2021-01-01"], "M8[D]"), "datetime64"),
]


@pytest.mark.needs("echo-samplers", "echo-tcp")
@pytest.mark.parametrize(("bad", "words"), PRIORITIES, ids=range(len(PRIORITIES)))
def test_priorities_must_be_real_numbers(bad: Any, words: str) -> None:
    table = echo_core.Table("t", {"x": np.float32(0)}, capacity=8, sampler="prioritized", seed=0)
    with Server(tables=[table], batch_size=2, transport="tcp://127.0.0.1:0") as server, Client(server.address, {"x": np.float32(0)}) as client:
        local, remote = server.table(), client.table()
        keys = local.submit_batch({"x": np.zeros(2, np.float32)})
        before = local.top(2)[1].tolist()
        for call in (
            lambda: local.update_priorities(keys, bad),
            lambda: remote.update_priorities(keys, bad),
            lambda: local.submit_batch({"x": np.zeros(2, np.float32)}, priorities=bad),
            lambda: remote.insert({"x": np.zeros(2, np.float32)}, priorities=bad),
            lambda: client.send_batch({"x": np.zeros(2, np.float32)}, priorities=bad),
        ):
            with pytest.raises(ValueError, match=f"priorities.*{words}"):
                call()
        assert local.top(2)[1].tolist() == before and len(local.keys()) == 2


def test_keys_must_be_whole_numbers_without_a_mask() -> None:
    with pytest.raises(TypeError, match="masked"):
        check_keys(np.ma.masked_array([1, 2], mask=[True, False]))


@pytest.mark.needs("echo-samplers", "echo-tcp")
def test_update_items_takes_only_what_the_leaf_holds() -> None:
    example = {"x": np.float32(0)}
    described = echo_core.Table("t", example, capacity=8, sampler="uniform", seed=0)
    with Server(tables=[described], batch_size=2, transport="tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        keys = server.table().submit_batch({"x": np.zeros(2, np.float32)})
        for table in (server.table(), client.table()):
            with pytest.raises(SpecError, match=r"leaf 'x'.*masked"):
                table.update_items(keys, {"x": np.ma.masked_array(np.ones(2, np.float32), mask=True)})
            with pytest.raises(SpecError, match=r"leaf 'x' must be float32, got float64"):
                table.update_items(keys, {"x": np.ones(2)})
            with pytest.raises(SpecError, match=r"leaf 'x' must have shape \(2,\), got \(3,\)"):
                table.update_items(keys, {"x": np.ones(3, np.float32)})
            assert table.update_items(keys, {"x": np.ones(2, np.float32)}).all()


def test_a_client_does_not_import_numpy_ma() -> None:
    """Looking for masked arrays must not import their module: that takes about 50 ms, which each worker would spend at its start."""
    code = "import sys, numpy; before = 'numpy.ma' in sys.modules; from echo_core import Client; sys.exit('numpy.ma' in sys.modules and not before)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
