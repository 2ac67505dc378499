"""Weights: the digest tells damage, and what is unpacked is what was packed."""

from __future__ import annotations

import collections
import json
import random
import threading
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import optree
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core.base.errors import ProtocolError, SpecError
from echo_core.wire.weights import ALIGNMENT, PackedWeights, aligned_bytes, digest, pack, unpack, verify

pytestmark = pytest.mark.every_python


class Net(NamedTuple):
    w: Any
    b: Any


@optree.dataclasses.dataclass(namespace="echo-weights")
class Layer:
    w: Any
    scale: Any


# --- the digest -----------------------------------------------------------------------------------

MASK = (1 << 64) - 1
KEY = [
    *(0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
]


def rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def fold(a: int, b: int) -> int:
    return (a * b & MASK) ^ (a * b >> 64)


def reference(data: bytes, seed: int = 0) -> int:
    """The digest again, written for reading."""
    lanes = [seed ^ key for key in KEY[4:]]
    padded = data + bytes(-len(data) % 64)
    for block in range(0, len(padded), 64):
        for i in range(4):
            at = block + 16 * i
            first = int.from_bytes(padded[at : at + 8], "little")
            second = int.from_bytes(padded[at + 8 : at + 16], "little")
            mixed = lanes[i] ^ first
            lanes[i] = fold(mixed, second ^ KEY[i]) + (rotate(mixed, 29) ^ second) & MASK
    value = seed + len(data) * KEY[0] & MASK
    for i in range(4):
        value = fold(value ^ lanes[i], KEY[4 + i]) + rotate(lanes[i], 23) & MASK
    value = (value ^ value >> 32) * KEY[1] & MASK
    value = (value ^ value >> 29) * KEY[2] & MASK
    return value ^ value >> 32


@given(st.binary(max_size=200), st.integers(0, MASK))
def test_digest_is_the_reference(data: bytes, seed: int) -> None:
    assert digest(data) == reference(data)
    assert digest(data, seed) == reference(data, seed)


def test_digest_of_every_length_and_offset() -> None:
    data = random.Random(1).randbytes(300)
    for length in range(200):
        assert digest(data[:length]) == reference(data[:length])
        assert digest(memoryview(data)[length:]) == reference(data[length:])


def test_digest_is_fixed_for_good() -> None:
    """Learners and workers of different releases compare these."""
    assert [digest(b""), digest(b"a"), digest(bytes(64)), digest(b"weights", 7)] == [
        0x9898B726FFB85B81,
        0x8E58A6F71932FCB9,
        0xF82642F3B625BE34,
        0x6E95D23CCCDF75D4,
    ]


def test_one_flipped_bit_flips_half_of_the_digest() -> None:
    source = random.Random(2)
    for length in (1, 8, 15, 63, 64, 65, 200):
        data = bytearray(source.randbytes(length))
        whole = digest(data)
        flips = []
        for bit in range(8 * length):
            data[bit // 8] ^= 1 << bit % 8
            flips.append((digest(data) ^ whole).bit_count())
            data[bit // 8] ^= 1 << bit % 8
        assert min(flips) >= 10
        assert 29 < sum(flips) / len(flips) < 35 or length == 1


def test_every_output_bit_depends_on_every_input_bit() -> None:
    source = random.Random(3)
    changed = np.zeros((8 * 16, 64))
    for _ in range(200):
        data = bytearray(source.randbytes(70))
        whole = digest(data)
        for bit in range(8 * 16):
            data[bit // 8] ^= 1 << bit % 8
            difference = digest(data) ^ whole
            changed[bit] += [difference >> i & 1 for i in range(64)]
            data[bit // 8] ^= 1 << bit % 8
    assert (changed / 200).min() > 0.3 and (changed / 200).max() < 0.7


def test_no_collisions_among_simple_inputs() -> None:
    inputs = {bytes(n) for n in range(300)}
    inputs |= {bytes([value]) * n for value in range(1, 8) for n in range(1, 200)}
    inputs |= {bytes(i) + b"\1" + bytes(255 - i) for i in range(256)}
    inputs |= {n.to_bytes(8, "little") for n in range(5000)}
    assert len({digest(data) for data in inputs}) == len(inputs)


def test_no_word_wipes_out_what_came_before() -> None:
    """A product with zero forgets its other factor; the digest must not."""
    for lane in range(4):
        wiping = bytearray(64)
        wiping[16 * lane + 8 : 16 * lane + 16] = KEY[lane].to_bytes(8, "little")
        values = set()
        for n in range(50):
            start = bytearray(64)
            start[16 * lane : 16 * lane + 8] = n.to_bytes(8, "little")
            values.add(digest(bytes(start) + bytes(wiping)))
        assert len(values) == 50


def test_digest_takes_any_contiguous_buffer() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert digest(array) == digest(array.tobytes()) == digest(bytearray(array.tobytes()))
    for bad in (array[:, ::2], "text", 3):
        with pytest.raises((BufferError, TypeError, ValueError)):
            digest(bad)


def test_large_digests_from_several_threads() -> None:
    data = np.random.default_rng(4).integers(0, 256, 1 << 20, np.uint8)
    expected, found = digest(data), []
    threads = [threading.Thread(target=lambda: found.append(digest(data))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


# --- packing --------------------------------------------------------------------------------------

TREES = [
    {"w": np.random.default_rng(0).random((30, 7)), "b": np.zeros(7, np.float32)},
    [np.float16(3), (np.zeros((0, 3)), None), {"deep": {}}],
    {"z": 1, "a": 2.5, "m": "text", "t": True, "n": None, "inf": float("inf"), "big": 10**30},
    {1: np.zeros(2), "1": np.ones(2), "flag": np.zeros((), bool)},
    np.arange(5),
    {},
    None,
    {"half": np.ones(3, ml_dtypes.bfloat16), "records": np.zeros(2, [("a", "i2"), ("b", "U3")])},
    {"times": np.array(["2020-01-01"], "M8[D]"), "complex": np.full(2, 1j, np.complex64)},
]


@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_there_and_back(tree: Any) -> None:
    packed = pack(tree, 3)
    weights = unpack(packed.meta, packed.payload)
    assert (weights.version, weights.digest) == (3, packed.digest)
    ours, theirs = optree.tree_flatten(tree), optree.tree_flatten(weights.params)
    assert ours[1] == theirs[1]
    for one, two in zip(ours[0], theirs[0]):
        if isinstance(one, (np.ndarray, np.generic)):
            assert two.dtype == one.dtype and two.shape == one.shape and not two.flags.writeable
            np.testing.assert_array_equal(two, one)
        else:
            assert two == one and type(two) is type(one)


def test_the_payload_is_aligned_and_frozen() -> None:
    packed = pack([np.ones(3, np.uint8), np.ones(5)], 1)
    assert packed.payload.nbytes == 2 * ALIGNMENT and not packed.payload.flags.writeable
    assert packed.payload.ctypes.data % ALIGNMENT == 0
    assert packed.payload[3:ALIGNMENT].tolist() == [0] * (ALIGNMENT - 3)
    assert packed.nbytes == len(packed.meta) + packed.payload.nbytes
    for array in unpack(packed.meta, packed.payload).params:
        assert array.ctypes.data % ALIGNMENT == 0
        with pytest.raises(ValueError):
            array[0] = 2
    for count in (0, 1, 1000):
        assert aligned_bytes(count).nbytes == count and aligned_bytes(count).flags.writeable


def test_packing_copies_and_unpacking_does_not() -> None:
    source = np.ones(1000)
    packed = pack({"x": source}, 1)
    source[:] = 2
    received = bytearray(packed.payload.tobytes())
    params = unpack(packed.meta, received).params
    assert params["x"].sum() == 1000
    with pytest.raises(BufferError):
        received.clear()  # still looked at by the array
    assert np.shares_memory(params["x"], np.frombuffer(received, np.uint8))
    assert not params["x"].flags.writeable


def test_any_memory_layout_and_byte_order() -> None:
    tree = {
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "be": np.arange(4, dtype=">i4")[::2],
    }
    packed = pack(tree, 1)
    params = unpack(packed.meta, packed.payload).params
    assert params["f"].tolist() == tree["f"].tolist() and params["be"].tolist() == [0, 2]
    assert params["be"].dtype == np.dtype("=i4")
    plain = {"f": np.ascontiguousarray(tree["f"]), "be": np.array([0, 2], np.int32)}
    assert pack(plain, 2).digest == packed.digest


def test_equal_weights_have_equal_digests_and_others_not() -> None:
    tree = {"w": np.ones((2, 3)), "step": 4}
    packed = pack(tree, 1)
    assert pack(tree, 9).digest == packed.digest
    for other in (
        {"w": np.ones((3, 2)), "step": 4},
        {"w": np.ones((2, 3)), "step": 5},
        {"v": np.ones((2, 3)), "step": 4},
        {"w": np.ones((2, 3), np.int64), "step": 4},
        [np.ones((2, 3)), 4],
    ):
        assert pack(other, 1).digest != packed.digest


def test_dicts_keep_their_order_and_kinds_of_dict_become_dict() -> None:
    state = collections.OrderedDict([("b.weight", np.zeros(1)), ("a.bias", np.zeros(2))])
    packed = pack({"z": np.zeros(1), "state": state}, 1)
    params = unpack(packed.meta, packed.payload).params
    assert list(params) == ["z", "state"] and list(params["state"]) == ["b.weight", "a.bias"]
    assert type(params["state"]) is dict


def test_array_likes() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(3.0)

    packed = pack({"t": Tensor()}, 1)
    assert unpack(packed.meta, packed.payload).params["t"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "bad", [object(), np.array([None]), np.array(["x"], np.dtypes.StringDType())]
)
def test_what_cannot_travel_is_named(bad: Any) -> None:
    with pytest.raises(SpecError, match="leaf 'net/1'"):
        pack({"net": [np.zeros(1), bad]}, 1)


# --- other classes --------------------------------------------------------------------------------


def test_namedtuples_and_dataclasses_need_like() -> None:
    tree = {"net": Net(np.ones((2, 2)), np.zeros(2)), "layers": [Layer(np.ones(3), 2.0)]}
    packed = pack(tree, 5, namespace="echo-weights")
    with pytest.raises(SpecError, match=r"contain a (Net|Layer).*like="):
        unpack(packed.meta, packed.payload)
    weights = unpack(packed.meta, packed.payload, like=tree, namespace="echo-weights")
    assert type(weights.params["net"]) is Net and type(weights.params["layers"][0]) is Layer
    assert weights.params["net"].w.tolist() == [[1, 1], [1, 1]]
    assert weights.params["layers"][0].scale == 2.0
    deque = pack(collections.deque([np.zeros(1)]), 1)
    with pytest.raises(SpecError, match="deque"):
        unpack(deque.meta, deque.payload)
    tuples = pack({(1, 2): np.zeros(1)}, 1)
    with pytest.raises(SpecError, match="unusual keys"):
        unpack(tuples.meta, tuples.payload)
    like = {(1, 2): np.zeros(1)}
    assert list(unpack(tuples.meta, tuples.payload, like=like).params) == [(1, 2)]


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (
            {"w": np.ones((2, 3), np.float32), "b": 0},
            "leaf 'w' of the published weights is float64",
        ),
        ({"w": np.ones((3, 2)), "b": 0}, r"leaf 'w' .* \(2, 3\), but `like` has float64 \(3, 2\)"),
        ({"v": np.ones((2, 3)), "b": 0}, "leaf 'w' where `like` has leaf 'v'"),
        ({"w": np.ones((2, 3)), "b": np.zeros(1)}, "leaf 'b'"),
        ({"w": np.ones((2, 3))}, "leaf 'b' where"),
        ({"w": np.ones((2, 3)), "b": 0, "c": None}, "containers"),
    ],
)
def test_like_must_be_like_it(like: Any, message: str) -> None:
    packed = pack({"w": np.ones((2, 3)), "b": 1}, 1)
    with pytest.raises(SpecError, match=message):
        unpack(packed.meta, packed.payload, like=like)
    assert (
        unpack(packed.meta, packed.payload, like={"b": 0, "w": np.zeros((2, 3))}).params["b"] == 1
    )


# --- damage ---------------------------------------------------------------------------------------


def damaged(packed: PackedWeights, **change: Any) -> bytes:
    return json.dumps({**json.loads(packed.meta), **change}).encode()


def signed(payload: bytes, **content: Any) -> bytes:
    """A description with a right digest, as a broken or hostile learner could make it."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    value = digest(payload, digest(text.encode()))
    return json.dumps({"version": 1, "digest": f"{value:016x}", **content}).encode()


def test_every_damaged_byte_is_noticed() -> None:
    packed = pack({"w": np.arange(20, dtype=np.float32), "b": 3}, 1)
    payload = bytearray(packed.payload.tobytes())
    for i in range(len(payload)):
        payload[i] ^= 1
        with pytest.raises(ProtocolError, match="damaged"):
            unpack(packed.meta, payload)
        payload[i] ^= 1
    for other in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(ProtocolError, match="damaged"):
            unpack(packed.meta, other)
    unpack(packed.meta, payload)


def test_trees_that_differ_in_anything_have_descriptions_of_their_own() -> None:
    """The description of the tree before is used again, if it is that of this one, too."""
    a, b = np.arange(3.0), np.arange(4.0)
    trees = [
        {"a": a, "b": b},
        {"b": b, "a": a},  # in another order
        {"a": b, "b": a},
        {"a": a, "b": b.astype(np.float32)},
        {"a": a, "b": b.astype(">f8")},
        {"a": a.reshape(3, 1), "b": b},
        {"a": [a], "b": b},
        {"a": (a,), "b": b},
        {"x": {"a": a, "b": b}},
        {"x": {"b": b, "a": a}},
        {1: a, 2: b},
        {True: a, 2: b},
        {"a": a, "b": b, "c": 1},
        {"a": a, "b": b, "c": 2},
        [a, b],
        a,
    ]
    for version, tree in enumerate((*trees, *trees, *reversed(trees)), 1):
        packed = pack(tree, version)
        weights = unpack(packed.meta, packed.payload)
        assert repr(weights.params) == repr(optree.tree_map(lambda x: x.astype(x.dtype.newbyteorder("=")) if isinstance(x, np.ndarray) else x, tree))
        assert weights.version == version
        assert packed.digest == pack(tree, 1).digest


def test_bytes_that_were_proven_are_not_read_again() -> None:
    packed = pack({"w": np.arange(100.0)}, 3)
    weights = unpack(packed.meta, packed.payload, proven=verify(packed.meta, packed.payload))
    assert weights.params["w"].tolist() == list(range(100)) and (weights.version, weights.digest) == (3, packed.digest)
    other = pack({"w": np.arange(100.0) + 1}, 3)
    with pytest.raises(ProtocolError, match="damaged"):
        unpack(packed.meta, packed.payload, proven=other.digest)  # proven of other bytes


def test_mixed_up_versions_are_noticed() -> None:
    one, two = pack({"w": np.zeros(100)}, 1), pack({"w": np.ones(100)}, 2)
    torn = np.concatenate([one.payload[:400], two.payload[400:]])
    for packed in (one, two):
        with pytest.raises(ProtocolError, match="damaged"):
            unpack(packed.meta, torn)
    with pytest.raises(ProtocolError, match="damaged"):
        unpack(damaged(one, leaves=json.loads(two.meta)["leaves"], digest="0" * 16), one.payload)


@pytest.mark.parametrize(
    "meta", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 5000, b'{"version":1}']
)
def test_malformed_descriptions(meta: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(meta, b"")


LEAF = {"path": "x", "shape": [2], "dtype": "<f4", "offset": 0}


@pytest.mark.parametrize(
    "content",
    [
        {"leaves": [{**LEAF, "offset": 60}], "structure": 0},
        {"leaves": [{**LEAF, "offset": -4}], "structure": 0},
        {"leaves": [{**LEAF, "shape": [17]}], "structure": 0},
        {"leaves": [{**LEAF, "shape": [-1]}], "structure": 0},
        {"leaves": [{**LEAF, "shape": [1 << 62, 1 << 62]}], "structure": 0},
        {"leaves": [{**LEAF, "shape": ["2"]}], "structure": 0},
        {"leaves": [{**LEAF, "shape": [1] * 100}], "structure": 0},
        {"leaves": [{**LEAF, "dtype": "O"}], "structure": 0},
        {"leaves": [{"path": "x", "value": {"float": "?"}}], "structure": 0},
        {"leaves": [{"path": "x", "value": {"float": "0x1p99999"}}], "structure": 0},
        {"leaves": [{"path": "x", "value": [1]}], "structure": 0},
        {"leaves": [LEAF], "structure": 1},
        {"leaves": [LEAF], "structure": "0"},
        {"leaves": [LEAF], "structure": {"dict": [[["list"], 0]]}},
        {"leaves": [LEAF], "structure": {"dict": 3}},
        {"leaves": 3, "structure": 0},
        {"structure": 0},
        {"leaves": [LEAF], "structure": {"other": []}},
    ],
)
def test_descriptions_that_lie(content: dict[str, Any]) -> None:
    payload = bytes(64)
    with pytest.raises((ProtocolError, SpecError)):
        unpack(signed(payload, **content), payload)


def test_blanks_and_order_in_the_description_do_not_matter() -> None:
    packed = pack({"b": np.zeros(3), "a": 1}, 1)
    content = json.loads(packed.meta)
    again = json.dumps(dict(reversed(content.items())), indent=2).encode()
    assert unpack(again, packed.payload).digest == packed.digest
