"""Packed batches as nested tensors and as segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Ragged
from echo_core.spec.packed import PackedBatch
from echo_core.spec.ragged import RaggedSpec

pytestmark = pytest.mark.needs("echo-samplers")
EXAMPLE = {"tokens": Ragged("i4"), "hidden": Ragged("f4", (3,)), "boxes": Ragged("f4", axis="box"), "reward": np.float32(0)}
LENGTHS = [4, 1, 7]


def packed() -> PackedBatch:
    total = sum(LENGTHS)
    at = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
    arrays = {
        "tokens": np.arange(total, dtype=np.int32),
        "hidden": np.arange(3 * total, dtype=np.float32).reshape(total, 3),
        "boxes": np.zeros(2, np.float32),
        "reward": np.arange(3, dtype=np.float32),
    }
    spec = RaggedSpec.from_example(EXAMPLE)
    return PackedBatch(spec, [arrays[leaf.path] for leaf in spec.leaves], [np.array([0, 2, 2, 2], np.int32), at])


def test_nested_tensors_share_the_memory_and_the_offsets() -> None:
    torch = pytest.importorskip("torch")
    from echo_adapters.torch import as_nested

    batch = packed()
    nested = as_nested(batch)
    assert nested["tokens"].layout == torch.jagged
    assert [tensor.tolist() for tensor in nested["tokens"].unbind()] == [batch.row(i)["tokens"].tolist() for i in range(3)]
    assert nested["tokens"].values().data_ptr() == batch.batch["tokens"].ctypes.data
    assert nested["hidden"].shape[2] == 3
    # Operations of two nested tensors need the same offsets.
    product = nested["hidden"] * nested["tokens"].unsqueeze(-1)
    np.testing.assert_array_equal(product.values().numpy(), batch.batch["hidden"] * batch.batch["tokens"][:, None])
    assert nested["reward"].tolist() == [0, 1, 2]
    assert [len(tensor) for tensor in nested["boxes"].unbind()] == [2, 0, 0]


def test_segments_say_the_sample_and_the_place_of_each_row() -> None:
    from echo_adapters.segments import padded_rows, positions, segment_ids

    batch = packed()
    offsets = batch.offsets["t"]
    assert segment_ids(offsets).tolist() == [0] * 4 + [1] + [2] * 7
    assert positions(offsets).tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6]
    assert segment_ids(offsets, 14).tolist() == [0] * 4 + [1] + [2] * 7 + [3, 3]
    assert positions(offsets, 14).tolist()[-3:] == [6, 0, 1]
    assert segment_ids(batch.offsets["box"], 4).tolist() == [0, 0, 3, 3]
    assert segment_ids([0], 2).tolist() == [0, 0]
    rows = padded_rows(batch, 8)
    assert rows["tokens"].shape == (16,)
    assert rows["hidden"].shape == (16, 3)
    assert not rows["tokens"][12:].any()
    np.testing.assert_array_equal(rows["tokens"][:12], batch.batch["tokens"])
    assert padded_rows(batch, 6)["tokens"] is batch.batch["tokens"]
    sums = np.bincount(segment_ids(offsets, 16), rows["tokens"], minlength=4)[:3]
    assert sums.tolist() == [float(batch.row(i)["tokens"].sum()) for i in range(3)]


def test_segments_are_those_that_jax_sums() -> None:
    jax = pytest.importorskip("jax")
    from echo_adapters.segments import padded_rows, segment_ids

    batch = packed()
    rows = padded_rows(batch, 8)["tokens"]
    sums = jax.ops.segment_sum(rows, segment_ids(batch.offsets["t"], len(rows)), num_segments=3)
    assert sums.tolist() == [int(batch.row(i)["tokens"].sum()) for i in range(3)]


@pytest.mark.parametrize(("offsets", "length"), [([], None), ([1, 2], None), ([0, 3, 2], None), ([0, 1.5], None), ([[0, 1]], None), ([0, 3], 2)])
def test_what_are_no_offsets_is_refused(offsets: Any, length: int | None) -> None:
    from echo_adapters.segments import positions, segment_ids

    for function in (segment_ids, positions):
        with pytest.raises(ValueError, match=r"offsets must be|length is"):
            function(offsets, length)


@pytest.mark.needs("echo-samplers", "torch")
def test_a_dataset_of_batches_of_varying_length() -> None:
    torch = pytest.importorskip("torch")
    from echo_adapters.torch import BatchDataset
    from echo_core import Server

    server = Server(EXAMPLE, 2)
    with pytest.raises(RuntimeError, match="pin what as_nested"):
        BatchDataset(server, pin_memory=True)
    loader = iter(BatchDataset(server, timeout=20))
    for i in (3, 5):
        server.submit({"tokens": np.arange(i, dtype="i4"), "hidden": np.zeros((i, 3), "f4"), "boxes": np.zeros(i, "f4"), "reward": i})
    batch = next(loader)
    assert batch["tokens"].layout == torch.jagged
    assert [one.tolist() for one in batch["tokens"].unbind()] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    assert batch["reward"].tolist() == [3, 5]
    server.close()
