"""The digest of bytes that come piece by piece, and memory that is used again."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

from echo_core.base.errors import ProtocolError
from echo_core.base.memory.recycled import MOST, MOST_BYTES, _spares, large
from echo_core.wire.digest import Digester, digest
from echo_core.wire.weights import aligned_bytes, pack, unpack, verify
from echo_testing.processes import forked

pytestmark = pytest.mark.every_python

LARGE = (1 << 20) + 64 * 5  # beyond which copies go past the caches


@pytest.mark.parametrize("pieces", [[0], [64, 0, 13], [128, LARGE, 64, 1], [LARGE + 63], [16384, 16384, 7], [3 * LARGE]])
@pytest.mark.parametrize("start", [0, 1, 8])
def test_pieces_have_the_digest_of_the_whole(pieces: list[int], start: int) -> None:
    source = np.frombuffer(os.urandom(sum(pieces) + start), np.uint8)[start:]
    target = aligned_bytes(len(source) + 64)
    updated, copied, at = Digester(7), Digester(7), 0
    for length in pieces:
        updated.update(source[at : at + length])
        copied.copy(target[at : at + length], source[at : at + length])
        at += length
    assert updated.value == copied.value == digest(source, 7)
    assert (target[:at] == source).all()


def test_a_piece_that_would_change_the_digest_is_refused() -> None:
    digester = Digester()
    digester.update(bytes(65))
    with pytest.raises(ValueError, match="64"):
        digester.update(bytes(64))
    with pytest.raises(ValueError, match="must have the same size"):
        Digester().copy(bytearray(64), bytes(63))
    with pytest.raises((BufferError, TypeError)):
        Digester().copy(bytes(64), bytes(64))
    assert digester.value == digest(bytes(65))


def test_what_is_copied_is_what_is_digested_whoever_writes_meanwhile() -> None:
    source, target, over = np.zeros(4 * LARGE, np.uint8), aligned_bytes(4 * LARGE), threading.Event()

    def scribble() -> None:
        value = 0
        while not over.is_set():
            value += 1
            source[:] = value % 251

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        mixed = 0
        for _ in range(200):
            digester = Digester()
            digester.copy(target, source)
            assert digester.value == digest(target)
            mixed += len(np.unique(target)) > 1
    finally:
        over.set()
        writer.join()
    assert mixed, "nobody wrote while it was copied"


def test_weights_of_every_size_and_layout_have_one_digest() -> None:
    rng = np.random.default_rng(1)
    tree = {
        "large": rng.random((700, 301)),
        "odd": rng.integers(0, 255, LARGE + 13, np.uint8),
        "turned": rng.random((300, 500)).T,
        "foreign": rng.random(9).astype(">f8"),
        "time": np.arange(5).astype("M8[s]"),
        "text": np.array(["a", "bcd"]),
        "none": np.empty((0, 3)),
        "one": np.float32(3.5),
    }
    packed = pack(tree, 3)
    assert verify(packed.meta, packed.payload) == packed.digest
    for name, value in unpack(packed.meta, packed.payload).params.items():
        assert np.array_equal(value, tree[name]), name
    damaged = packed.payload.copy()
    damaged[LARGE // 2] ^= 1
    with pytest.raises(ProtocolError, match="^weights 3 arrived damaged"):
        verify(packed.meta, damaged)


def test_memory_is_used_again_only_when_nothing_refers_to_it() -> None:
    size = (3 << 20) + 4096 * 7
    first = large(size)
    where = first.ctypes.data
    first[:] = 7
    view = first[100:200].reshape(10, 10)[2:]
    del first
    gc.collect()
    second = large(size)
    assert second.ctypes.data != where
    second[:] = 9
    assert (view == 7).all()
    del view
    third = large(size)
    assert third.ctypes.data == where
    assert where % 4096 == 0 and len(third) == size


def test_memory_that_is_kept_is_bounded() -> None:
    some = [large((2 << 20) + 4096 * i) for i in range(MOST + 4)]
    del some
    assert len(_spares) <= MOST
    huge = large(MOST_BYTES + 1)
    del huge
    assert sum(map(len, _spares)) <= MOST_BYTES


def test_a_child_does_not_share_it() -> None:
    block = large(2 << 20)
    block[:] = 1

    def child() -> None:
        block[:] = 2

    forked(child)
    assert (block == 1).all()
