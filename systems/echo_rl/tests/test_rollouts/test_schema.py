"""Records of groups of rollouts: what a worker packs, the learner reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Client, Queue, Ragged, Server, SpecError, Table
from echo_rl.rollouts import Rollout, RolloutSchema

SCHEMA = RolloutSchema(group=3, most=50, most_prompt=20, extra={"picture": Ragged("u1", (3,), "pixel", 100), "score": np.float32(0)})


def rollout(seed: int, length: int, **changes: Any) -> Rollout:
    random = np.random.default_rng(seed)
    values: dict[str, Any] = {
        "tokens": random.integers(0, 1000, length),
        "logprobs": -random.random(length),
        "versions": random.integers(0, 9, length),
        "mask": random.random(length) < 0.5,
        "turns": np.arange(0, length, 4),
        "reward": seed / 2,
        "attempt": seed,
        "finish": ("stop", "length", "abort", "error")[seed % 4],
    }
    return Rollout(**{**values, **changes})


GROUPS = [[rollout(10 * g + i, length) for i, length in enumerate(lengths)] for g, lengths in enumerate([(3, 0, 50), (7, 7, 7), (0, 0, 0), (1, 20, 9)])]


def sample_of(g: int) -> dict[str, Any]:
    picture = np.full((g, 3), g, np.uint8)
    return SCHEMA.pack(GROUPS[g], task=100 + g, prompt=np.arange(5 * g), picture=picture, score=g / 4)


def check(batch: Any) -> None:
    flat = [one for group in GROUPS for one in group]
    assert len(batch) == 12
    assert batch.cu_seqlens.dtype == np.int32
    for i, one in enumerate(flat):
        span = slice(*batch.cu_seqlens[i : i + 2])
        for name in ("tokens", "logprobs", "versions", "mask"):
            np.testing.assert_array_equal(getattr(batch, name)[span], np.asarray(getattr(one, name)).astype(getattr(batch, name).dtype))
        turns = slice(*batch.turn_cu_seqlens[i : i + 2])
        np.testing.assert_array_equal(batch.turns[turns], one.turns)
        assert batch.rewards[i] == one.reward
        assert batch.attempts[i] == one.attempt
        assert batch.finish[i] == one.attempt % 4
        prompt = slice(*batch.prompt_cu_seqlens[batch.group[i] : batch.group[i] + 2])
        np.testing.assert_array_equal(batch.prompts[prompt], np.arange(5 * (i // 3)))
    assert batch.tasks.tolist() == [100, 101, 102, 103]
    assert batch.extra["picture"].shape == (6, 3)
    assert batch.extra_offsets["pixel"].tolist() == [0, 0, 1, 3, 6]
    assert batch.extra["score"].tolist() == [0, 0.25, 0.5, 0.75]
    full = batch.with_prompts()
    for i, one in enumerate(flat):
        span, n = slice(*full.cu_seqlens[i : i + 2]), 5 * (i // 3)
        np.testing.assert_array_equal(full.tokens[span], np.concatenate([np.arange(n), one.tokens]))
        assert not full.mask[span][:n].any()
        assert (full.versions[span][:n] == -1).all()
        np.testing.assert_array_equal(full.mask[span][n:], one.mask)
        np.testing.assert_array_equal(full.turns[slice(*full.turn_cu_seqlens[i : i + 2])], np.asarray(one.turns) + n)
    assert not len(full.prompts)


@pytest.mark.needs("echo-tcp", "echo-samplers")
def test_groups_arrive_as_they_were_packed() -> None:
    table = Table("rollouts", SCHEMA.example(), capacity=10, sampler="fifo", rate_limiter=Queue(10))
    with Server(tables=[table], batch_size=4, transport="tcp://127.0.0.1:0") as server, Client(server.address, SCHEMA.example()) as client:
        client.send(sample_of(0))
        client.send_batch([sample_of(g) for g in (1, 2, 3)])
        client.wait(30)
        check(SCHEMA.unpack(server.sample(timeout=30)))


def test_one_version_and_no_mask_and_no_turns() -> None:
    sample = RolloutSchema(most=5).pack([Rollout(tokens=[1, 2, 3], logprobs=[0, -1, -2], versions=7)], task=0)
    assert sample["versions"].tolist() == [7, 7, 7]
    assert sample["mask"].all()
    assert sample["turns"].tolist() == [0]
    assert sample["prompt"].shape == (0,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": [0.0]}, r"rollout 1 of the group: logprobs has shape \(1,\), and its tokens have \(4,\)"),
        ({"versions": [1, 2]}, "versions has shape"),
        ({"mask": np.ones(3, bool)}, "mask has shape"),
        ({"mask": np.ones(4)}, "mask is float64, not bool"),
        ({"tokens": np.zeros(4)}, "tokens must be whole numbers"),
        ({"tokens": np.array([1, 2, 3, 2**31])}, "fit into int32"),
        ({"tokens": np.zeros(51, int)}, "has 51 tokens, and most is 50"),
        ({"turns": [1, 2]}, "turns must ascend from 0"),
        ({"turns": [0, 4]}, "turns must ascend from 0 to less than its 4 tokens"),
        ({"turns": [0, 2, 2]}, "turns must ascend"),
        ({"finish": "done"}, "finish is 'done'"),
    ],
)
def test_a_rollout_that_does_not_fit_is_refused_by_its_number(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        SCHEMA.pack([rollout(0, 4), rollout(1, 4, **changes), rollout(2, 4)], task=0, picture=np.zeros((0, 3), "u1"), score=0)


def test_an_incomplete_group_and_missing_extra_leaves_are_refused() -> None:
    with pytest.raises(SpecError, match="a record has 3 rollouts, not 2; send the group when it is complete"):
        SCHEMA.pack([rollout(0, 4), rollout(1, 4)], task=0)
    with pytest.raises(SpecError, match=r"the extra leaves are \['picture', 'score'\], not \[\]"):
        SCHEMA.pack(GROUPS[0], task=0)
    with pytest.raises(SpecError, match="'tokens', which every record"):
        RolloutSchema(extra={"tokens": np.float32(0)})
    with pytest.raises(ValueError, match="group must be at least 1"):
        RolloutSchema(group=0)


def test_lengths_that_lie_are_refused() -> None:
    schema = RolloutSchema(group=2, most=9)
    sample = schema.pack([rollout(0, 4), rollout(1, 5)], task=0)

    class Packed:
        batch = {name: np.asarray(value) if np.ndim(value) and name not in ("lengths", "turn_counts") else np.array([value]) for name, value in sample.items()}
        offsets = {"token": np.array([0, 9], np.int32), "turn": np.array([0, 3], np.int32), "prompt": np.array([0, 0], np.int32)}

    assert schema.unpack(Packed).cu_seqlens.tolist() == [0, 4, 9]
    Packed.batch["lengths"] = np.array([[4, 6]])
    with pytest.raises(SpecError, match=r"record 0 of the batch: lengths is \[4, 6\]"):
        schema.unpack(Packed)
