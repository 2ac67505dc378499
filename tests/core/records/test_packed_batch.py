"""Packed batches: parts, rows and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Ragged, SpecError
from echo_core.spec.packed import PackedBatch
from echo_core.spec.ragged import RaggedSpec

EXAMPLE = {"tokens": Ragged("i4", most=100), "boxes": Ragged("f4", (2,), "box", 9), "reward": np.float32(0), "image": np.zeros((2, 3), "u1")}
LENGTHS = [(3, 1), (0, 2), (70, 0), (5, 9)]  # of tokens and boxes


def samples() -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    return [
        {
            "tokens": random.integers(1, 1000, t, np.int32),
            "boxes": random.random((box, 2), np.float32),
            "reward": np.float32(i),
            "image": random.integers(0, 255, (2, 3), np.uint8),
        }
        for i, (t, box) in enumerate(LENGTHS)
    ]


def packed(of: list[dict[str, Any]], spec: RaggedSpec | None = None) -> PackedBatch:
    spec = spec or RaggedSpec.from_example(EXAMPLE)
    arrays = [np.stack([s[leaf.path] for s in of]) if leaf.axis < 0 else np.concatenate([s[leaf.path] for s in of]) for leaf in spec.leaves]
    first = {leaf.axis: leaf.path for leaf in reversed(spec.leaves)}
    lengths = [[len(s[first[axis]]) for s in of] for axis in range(len(spec.axes))]
    return PackedBatch(spec, arrays, [np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in lengths])


def assert_same(one: Any, two: Any) -> None:
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
        assert (one[name].dtype, one[name].shape) == (two[name].dtype, two[name].shape)


def test_offsets_and_lengths_have_the_names_of_the_axes() -> None:
    batch = packed(samples())
    assert len(batch) == 4
    assert {name: at.tolist() for name, at in batch.offsets.items()} == {"box": [0, 1, 3, 3, 12], "t": [0, 3, 3, 73, 78]}
    assert {name: each.tolist() for name, each in batch.lengths.items()} == {"box": [1, 2, 0, 9], "t": [3, 0, 70, 5]}
    assert batch.offsets["t"].dtype == batch.lengths["t"].dtype == np.int32
    assert batch.batch["tokens"].shape == (78,)
    assert list(batch.batch) == list(EXAMPLE)
    assert repr(batch) == "PackedBatch(4 samples, box: 12, t: 78 rows)"


def test_every_row_is_the_sample() -> None:
    given = samples()
    batch = packed(given)
    for i, row in enumerate(batch):
        assert_same(row, given[i])
        assert_same(batch.row(i - 4), given[i])
        assert not row["tokens"].size or np.shares_memory(row["tokens"], batch.batch["tokens"])
        assert np.shares_memory(row["reward"], batch.batch["reward"])
    for index in (4, -5):
        with pytest.raises(IndexError, match=f"sample {index} of a batch of 4"):
            batch.row(index)


@pytest.mark.parametrize("part", [slice(1, 3), slice(None), slice(2, None), slice(-1, None), slice(3, 1), slice(0, 0), slice(1, 99)], ids=str)
def test_a_part_is_a_batch_over_the_same_memory(part: slice) -> None:
    given = samples()
    whole = packed(given)
    some = whole[part]
    assert len(some) == len(given[part])
    assert some.offsets["t"][0] == 0
    for row, sample in zip(some, given[part], strict=True):
        assert_same(row, sample)
    if some.batch["tokens"].size:
        assert np.shares_memory(some.batch["tokens"], whole.batch["tokens"])


@pytest.mark.parametrize("part", [1, slice(0, 4, 2), slice(None, None, -1), [0, 1]], ids=str)
def test_other_parts_are_refused(part: Any) -> None:
    with pytest.raises(TypeError, match="consecutive samples"):
        packed(samples())[part]


@pytest.mark.parametrize(("multiple", "tokens", "boxes"), [(64, 128, 64), (1, 70, 9), (16, 80, 16)])
def test_padding_copies_to_a_length_that_few_batches_differ_in(multiple: int, tokens: int, boxes: int) -> None:
    given = samples()
    whole = packed(given)
    batch, masks = whole.padded(multiple)
    assert batch["tokens"].shape == (4, tokens)
    assert batch["boxes"].shape == (4, boxes, 2)
    assert masks["t"].shape == (4, tokens)
    assert masks["box"].dtype == bool
    for i, sample in enumerate(given):
        np.testing.assert_array_equal(batch["tokens"][i][masks["t"][i]], sample["tokens"])
        np.testing.assert_array_equal(batch["boxes"][i][masks["box"][i]], sample["boxes"])
        assert not batch["tokens"][i][~masks["t"][i]].any()
        assert masks["t"][i].sum() == len(sample["tokens"])
        np.testing.assert_array_equal(batch["image"][i], sample["image"])
    for path in batch:
        assert not np.shares_memory(batch[path], whole.batch[path])


def test_the_fill_is_for_all_ragged_leaves_or_for_some() -> None:
    whole = packed(samples())
    batch, masks = whole.padded(fill=-1)
    assert (batch["tokens"][~masks["t"]] == -1).all()
    assert (batch["boxes"][~masks["box"]] == -1).all()
    batch, masks = whole.padded(fill={"tokens": 7})
    assert (batch["tokens"][~masks["t"]] == 7).all()
    assert not batch["boxes"][~masks["box"]].any()


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (0.5, "leaf 'tokens' is int32 and cannot hold"),
        ({"tokens": 1 << 40}, "cannot hold"),
        ({"token": 1}, "did you mean 'tokens'"),
        ({"reward": 1}, "'reward'"),
    ],
)
def test_a_fill_that_a_leaf_cannot_hold_is_refused(fill: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        packed(samples()).padded(fill=fill)


@pytest.mark.parametrize("multiple", [0, -1, 1.5, True])
def test_an_invalid_multiple_is_refused(multiple: Any) -> None:
    with pytest.raises(ValueError, match="multiple must be"):
        packed(samples()).padded(multiple)


def test_an_empty_batch_and_empty_samples() -> None:
    nothing = packed(samples())[0:0]
    batch, masks = nothing.padded()
    assert (len(nothing), batch["tokens"].shape, masks["t"].shape) == (0, (0, 0), (0, 0))
    empty = packed(samples())[1:2]
    batch, masks = empty.padded()
    assert (batch["tokens"].shape, masks["t"].shape) == ((1, 0), (1, 0))


def test_rows_keep_the_memory_of_the_batch() -> None:
    row = packed(samples()).row(3)["tokens"]
    np.testing.assert_array_equal(row, samples()[3]["tokens"])


def test_text_and_bool_leaves_are_filled_with_their_zero() -> None:
    spec = RaggedSpec.from_example({"word": Ragged("U4", most=8), "flag": Ragged("?", axis="f", most=8)})
    given = [{"word": np.array(["a", "bcd"], "U4"), "flag": np.array([True])}, {"word": np.array([], "U4"), "flag": np.array([True, True])}]
    batch, _ = packed(given, spec).padded(multiple=2)
    assert batch["word"].tolist() == [["a", "bcd"], ["", ""]]
    assert batch["flag"].tolist() == [[True, False], [True, True]]
