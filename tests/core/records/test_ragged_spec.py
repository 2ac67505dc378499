"""`Ragged` in an example, and the spec that follows from it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core import Ragged, Spec, SpecError
from echo_core.spec.ragged import CHUNK_BYTES, ChunkSpec, RaggedSpec, has_ragged

EXAMPLE = {
    "tokens": Ragged(np.int32, most=8192),
    "logprobs": Ragged(np.float32),
    "boxes": Ragged(np.float16, (4,), axis="box", most=20),
    "reward": np.float32(0),
    "meta": {"task": np.int64(0), "tag": np.zeros(3, "S4")},
}


def spec(**changes: Any) -> RaggedSpec:
    return RaggedSpec.from_example({**EXAMPLE, **changes})


def test_axes_come_in_the_order_of_their_first_leaves_and_share_the_most_that_one_leaf_states() -> None:
    made = spec()
    assert made.axes == ("box", "t")
    assert made.most == (20, 8192)
    assert [leaf.path for leaf in made.leaves] == ["boxes", "logprobs", "meta/tag", "meta/task", "reward", "tokens"]
    assert [leaf.axis for leaf in made.leaves] == [0, 1, -1, -1, -1, 1]
    assert [leaf.row_bytes for leaf in made.leaves] == [8, 4, 0, 0, 0, 4]
    assert [leaf.fixed_bytes for leaf in made.leaves] == [0, 0, 12, 8, 4, 0]
    assert made.record_bytes([2, 100]) == 32 + 24 + 2 * 8 + 100 * 8
    assert made.max_record_bytes == 32 + 24 + 20 * 8 + 8192 * 8


def test_an_axis_without_a_stated_most_has_4096_rows() -> None:
    assert RaggedSpec.from_example({"x": Ragged("f4")}).most == (4096,)


def test_a_bare_ragged_leaf_is_an_example() -> None:
    made = RaggedSpec.from_example(Ragged("u1", (2, 3), "frames", 9))
    assert [leaf.path for leaf in made.leaves] == [""]
    assert made.max_record_bytes == 32 + 9 * 6


def test_contradicting_most_of_one_axis_is_refused_by_both_names() -> None:
    with pytest.raises(SpecError, match=r"leaf 'tokens'.*most=8192.*axis 't'.*leaf 'logprobs' says 100"):
        spec(logprobs=Ragged(np.float32, most=100))


def test_a_fifth_axis_is_refused_by_the_name_of_its_leaf() -> None:
    with pytest.raises(SpecError, match=r"leaf '4'.*axis 'e'"):
        RaggedSpec.from_example([Ragged("f4", axis=name) for name in "abcde"])
    assert RaggedSpec.from_example([Ragged("f4", axis=name) for name in "abcda"]).axes == ("a", "b", "c", "d")


def test_an_example_without_a_ragged_leaf_is_refused() -> None:
    with pytest.raises(SpecError, match="none of the leaves is Ragged"):
        RaggedSpec.from_example({"x": np.zeros(3)})
    assert not has_ragged({"x": np.zeros(3)})
    assert has_ragged(EXAMPLE)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"dtype": object}, "no fixed size"),
        ({"dtype": "f4", "shape": (-1,)}, "shape"),
        ({"dtype": "f4", "shape": (True,)}, "shape"),
        ({"dtype": "f4", "shape": (1,) * 32}, "shape"),
        ({"dtype": "f4", "axis": ""}, "axis"),
        ({"dtype": "f4", "axis": 1}, "axis"),
        ({"dtype": "f4", "most": 0}, "most"),
        ({"dtype": "f4", "most": 2**31}, "most"),
        ({"dtype": "f4", "most": 1.5}, "most"),
        ({"dtype": "f4", "most": True}, "most"),
    ],
)
def test_an_invalid_ragged_leaf_is_refused_at_once(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Ragged(**arguments)


def test_samples_beyond_the_limit_of_all_samples_are_refused() -> None:
    with pytest.raises(SpecError, match="lower most="):
        RaggedSpec.from_example(Ragged("f8", (1 << 20,), most=1 << 30))


def test_what_travels_is_chunks_and_the_description_of_the_example() -> None:
    chunks = spec().chunk_spec
    assert [(leaf.path, leaf.shape, leaf.dtype) for leaf in chunks.leaves] == [("(records)", (CHUNK_BYTES,), np.dtype("u1"))]
    assert chunks.records == spec()
    told = json.loads(json.dumps(chunks.to_json()))
    back = ChunkSpec.from_json(told)
    assert back == chunks
    assert isinstance(back, ChunkSpec)
    assert back.records == spec()
    assert back.records.axes == ("box", "t")
    for one in (chunks, chunks.records):
        again = pickle.loads(pickle.dumps(one))
        assert again == one
        assert hash(again) == hash(one)
    assert chunks != spec(reward=np.float64(0)).chunk_spec
    assert chunks != RaggedSpec.from_example({**EXAMPLE, "tokens": Ragged("i4", most=8191)}).chunk_spec


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"tokens": Ragged(np.int64, most=8192)}, r"leaf 'tokens' is int32 \(t,\) with t <= 8192 here but int64 \(t,\) with t <= 8192 there"),
        ({"tokens": Ragged(np.int32, most=100)}, r"leaf 'logprobs' is float32 \(t,\) with t <= 8192 here but float32 \(t,\) with t <= 100 there"),
        ({"boxes": Ragged(np.float16, (5,), "box", 20)}, r"leaf 'boxes' is float16 \(box, 4\).* but float16 \(box, 5\)"),
        ({"boxes": Ragged(np.float16, (4,), "t")}, r"leaf 'boxes' is float16 \(box, 4\).* but float16 \(t, 4\)"),
        ({"reward": Ragged(np.float32)}, r"leaf 'reward' is float32 \(\) here but float32 \(t,\) with t <= 8192 there"),
        ({"reward": np.float64(0)}, r"leaf 'reward' is float32 \(\) here but float64 \(\) there"),
        ({"more": np.float64(0)}, r"leaf 'more' .* is declared there but not here"),
    ],
)
def test_another_ragged_example_differs_by_the_name_of_a_leaf(other: dict[str, Any], words: str) -> None:
    there = ChunkSpec.from_json(spec(**other).chunk_spec.to_json())
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(spec().chunk_spec.difference(there))


def test_an_example_of_fixed_size_differs_by_the_name_of_the_ragged_leaf() -> None:
    plain = Spec.from_example({"tokens": np.zeros(16, "i4"), "reward": np.float32(0)})
    ragged = RaggedSpec.from_example({"tokens": Ragged("i4", most=16), "reward": np.float32(0)}).chunk_spec
    there = ChunkSpec.from_json(plain.to_json())
    assert ragged.difference(there) == "leaf 'tokens' is int32 (t,) with t <= 16 here but int32 (16,) there"
    with pytest.raises(SpecError, match="leaf 'tokens' is Ragged there"):
        Spec.from_json(ragged.to_json())
    nothing = Spec.from_example(())
    assert "is declared here but not there, where samples have no leaves" in str(ragged.difference(nothing))


BROKEN = [
    {"axes": [["t", 5]]},
    {"axes": [["t", 5]] * 9},
    {"axes": [["box", 20], ["t", 0]]},
    {"axes": [["box", 20], ["t", 1 << 40]]},
    {"axes": [["t", 20], ["t", 8192]]},
    {"axes": [["t", 20], [5, 8192]]},
    {"axes": [["box", 20], ["t", 8192], ["unused", 3]]},
    {"axes": "axes"},
    {"leaves": []},
    {"leaves": "leaves"},
    {"leaves": [{"path": "x", "shape": [], "dtype": "<f4"}]},
    {"leaves": [{"path": "x", "shape": [], "dtype": "<f4", "axis": True}]},
    {"leaves": [{"path": "x", "shape": [], "dtype": "<f4", "axis": -1}]},
    {"leaves": [{"path": "x", "shape": [-4], "dtype": "<f4", "axis": 0}]},
    {"leaves": [{"path": "x", "shape": [1] * 32, "dtype": "<f4", "axis": 0}]},
    {"leaves": [{"path": "x", "shape": [1 << 50], "dtype": "<f4", "axis": 0}]},
]


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_description_that_a_peer_made_up_is_refused(broken: dict[str, Any]) -> None:
    told = {**spec().to_json(), **broken}
    with pytest.raises(SpecError):
        RaggedSpec.from_json(told)
    with pytest.raises(SpecError):
        ChunkSpec.from_json({**spec().chunk_spec.to_json(), "records": told})


@pytest.mark.parametrize("told", [None, [], {}, {"records": 5}, {"records": {"leaves": []}}, {"records": {"leaves": [5]}}], ids=str)
def test_nonsense_is_refused(told: Any) -> None:
    with pytest.raises(SpecError):
        ChunkSpec.from_json(told)
    with pytest.raises(SpecError):
        Spec.from_json(told)


def test_other_chunks_are_refused() -> None:
    told = spec().chunk_spec.to_json()
    told["leaves"] = [{"path": "(records)", "shape": [512], "dtype": "|u1"}]
    with pytest.raises(SpecError, match="same version of echo-core"):
        ChunkSpec.from_json(told)


def test_a_spec_from_a_description_has_no_tree() -> None:
    with pytest.raises(SpecError, match=r"RaggedSpec\.from_example"):
        RaggedSpec.from_json(spec().to_json()).flattener.flatten(EXAMPLE)


@pytest.mark.needs("echo-replay")
def test_places_that_take_samples_of_one_size_refuse_ragged_leaves_by_name() -> None:
    for make in (Spec.from_example, echo_core.Steps):
        with pytest.raises(SpecError, match="leaf 'tokens' of the example is Ragged"):
            make({"tokens": Ragged("i4")})


@pytest.mark.parametrize(
    ("leaf", "value", "words"),
    [
        ("tokens", np.zeros(5, "i8"), "leaf 'tokens' must be int32, got int64"),
        ("tokens", np.zeros((5, 1), "i4"), r"leaf 'tokens' must have shape \(t,\) with any t up to 8192, got \(5, 1\)"),
        ("tokens", np.int32(4), "leaf 'tokens' must have shape"),
        ("boxes", np.zeros(4, "f2"), r"leaf 'boxes' must have shape \(box, 4\) with any box up to 20, got \(4,\)"),
        ("tokens", [1, 2], "leaf 'tokens' must be an array"),
        ("tokens", None, "leaf 'tokens' must be an array"),
        ("reward", np.zeros(2, "f4"), r"leaf 'reward' must have shape \(\)"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_the_name_of_its_leaf(leaf: str, value: Any, words: str) -> None:
    made = next(one for one in spec().leaves if one.path == leaf)
    with pytest.raises(SpecError, match=words):
        made.array_of(value)


def test_values_that_fit_are_converted_only_where_they_have_to_be() -> None:
    leaves = {leaf.path: leaf for leaf in spec().leaves}
    tokens = np.arange(7, dtype=np.int32)
    assert leaves["tokens"].array_of(tokens) is tokens
    assert leaves["tokens"].array_of(tokens.astype(">i4")).dtype == np.dtype("i4")
    assert leaves["tokens"].array_of(np.arange(14, dtype="i4")[::2]).flags.c_contiguous
    assert leaves["boxes"].array_of(np.zeros((0, 4), "f2")).shape == (0, 4)
    assert leaves["reward"].array_of(1.5) == np.float32(1.5)


def test_ragged_is_a_public_name() -> None:
    assert "Ragged" in echo_core.__all__
    assert repr(Ragged("i4", (2,), most=5)) == "Ragged(int32, (2,), axis='t', most=5)"
