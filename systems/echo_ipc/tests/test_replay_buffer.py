"""ReplayBuffer: what was added is sampled, and what does not fit is refused. Without torch; test_seed_api_torch.py has its tensors."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ClosedError, SpecError
from echo_ipc import ReplayBuffer

OBS, ACTION = 5, 2


def buffer(capacity: int = 64, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, OBS, ACTION, "numpy", **options)


def batch(first: int, n: int, critic: int = 0) -> dict[str, np.ndarray]:
    """All numbers of a row are those of its number."""
    numbers = np.arange(first, first + n, dtype=np.float32)
    found = {"obs": np.repeat(numbers[:, None], OBS, 1), "actions": np.repeat(numbers[:, None], ACTION, 1), "rewards": numbers, "next_obs": None}
    found |= {"next_obs": found["obs"], "dones": numbers % 2 == 0, "truncated": numbers % 4 == 0}
    if critic:
        found |= {"critic": np.repeat(numbers[:, None], critic, 1), "next_critic": np.repeat(numbers[:, None], critic, 1)}
    return found


def check(sample: dict[str, np.ndarray]) -> set[int]:
    numbers = sample["rewards"]
    for name, values in sample.items():
        wanted = {"dones": numbers % 2 == 0, "truncated": numbers % 4 == 0}.get(name, numbers if values.ndim == 1 else numbers[:, None])
        assert (values == wanted).all(), f"{name} is torn"
    return {int(number) for number in numbers}


def test_samples_are_what_was_added() -> None:
    replay = buffer(critic_dim=3, seed=1)
    with pytest.raises(ValueError, match="no rows to sample"):
        replay.sample(4)
    replay.add(**batch(0, 20, 3))
    assert (int(replay.ptr[0]), int(replay.size[0])) == (20, 20)
    sample = replay.sample(500)
    assert set(sample) == {"obs", "next_obs", "actions", "rewards", "dones", "truncated", "critic", "next_critic"}
    assert sample["obs"].shape == (500, OBS) and sample["critic"].shape == (500, 3) and sample["rewards"].shape == (500,)
    assert check(sample) == set(range(20))
    replay.cleanup()
    with pytest.raises(ClosedError):
        replay.sample(1)


def test_the_newest_stay() -> None:
    replay = buffer(32)
    replay.add(**batch(0, 28))
    replay.add(**batch(28, 8))
    assert (int(replay.ptr[0]), int(replay.size[0])) == (36, 32) and check(replay.sample(1000)) == set(range(4, 36))
    assert (replay._storage[0:4, replay._obs_sl] == batch(32, 4)["obs"]).all() and (replay._storage[28:32, replay._rew_col] == [28, 29, 30, 31]).all()
    replay.add(**batch(100, 80))  # more than there is room for
    assert int(replay.ptr[0]) == 116 and check(replay.sample(1000)) == set(range(148, 180))
    replay.cleanup()


def test_the_seed_decides_the_draws() -> None:
    first, second = buffer(seed=3), buffer(seed=3)
    for replay in (first, second):
        replay.add(**batch(0, 60))
    for _ in range(3):
        assert (first.sample(20)["rewards"] == second.sample(20)["rewards"]).all()
    first.cleanup()
    second.cleanup()


@pytest.mark.parametrize("column", [False, True])
def test_terminal_observations(column: bool) -> None:
    replay = buffer(critic_dim=2)
    mask = np.array([False, True, False, True])
    last, critic = np.full((4, OBS), 99.0), np.full((4, 2), 77)
    replay.add(**batch(0, 4, 2), terminal_mask=mask[:, None] if column else mask, terminal_next_obs=last, terminal_next_critic=critic)
    assert replay._storage[:4, replay._nobs_sl][:, 0].tolist() == [0, 99, 2, 99]
    assert replay._storage[:4, replay._ncritic_sl][:, 1].tolist() == [0, 77, 2, 77]
    assert replay._storage[:4, replay._obs_sl][:, 0].tolist() == [0, 1, 2, 3]
    replay.cleanup()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"obs": np.zeros((4, 3))}, r"obs must have the shape \[4, 5\], but has \[4, 3\]"),
        ({"rewards": np.zeros(3)}, r"rewards must have the shape \[4\], but has \[3\]"),
        ({"dones": np.zeros((4, 2))}, r"dones must have the shape \[4\], but has \[4, 2\]"),
        ({"actions": np.zeros((4, ACTION), complex)}, "actions must be numbers that float32 can hold, not complex128"),
        ({"terminal_mask": np.zeros((2, 2))}, r"terminal_mask must be bool\[4\]"),
        ({"terminal_mask": np.ones(4, bool), "terminal_next_obs": np.zeros(4)}, r"terminal_next_obs must have the shape \[4, 5\]"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], text: str) -> None:
    replay = buffer()
    with pytest.raises(SpecError, match=text):
        replay.add(**(batch(0, 4) | change))
    assert int(replay.ptr[0]) == 0
    replay.cleanup()


def test_the_critic() -> None:
    replay = buffer(critic_dim=2)
    with pytest.raises(ValueError, match="needs critic and next_critic"):
        replay.add(**batch(0, 4))
    replay.cleanup()
    replay = buffer()
    replay.add(**batch(0, 4, critic=2))
    assert set(replay.sample(1)) == {"obs", "next_obs", "actions", "rewards", "dones", "truncated"}
    replay.cleanup()


def test_a_column_may_have_two_dimensions() -> None:
    replay, rows = buffer(), batch(0, 6)
    replay.add(**(rows | {name: rows[name][:, None] for name in ("rewards", "dones", "truncated")}))
    assert check(replay.sample(100)) == set(range(6))
    replay.cleanup()


def test_it_can_be_saved(tmp_path: Path) -> None:
    replay, other = buffer(), buffer()
    replay.add(**batch(0, 6))
    assert replay.rows.save(tmp_path / "rows") == other.rows.load(tmp_path / "rows") == 6
    assert check(other.sample(100)) == set(range(6))
    replay.cleanup()
    other.cleanup()


def add(replay: ReplayBuffer, first: int) -> None:
    for number in range(first, first + 400, 8):
        replay.add(**batch(number, 8))


@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
def test_collectors_add_while_the_learner_samples(how: str) -> None:
    replay = buffer(100)
    replay.trace_recorder = object()  # not taken along
    context: Any = multiprocessing.get_context(how)
    copy = pickle.loads(pickle.dumps(replay))
    assert copy.trace_recorder is None
    copy.close()
    replay.trace_recorder = None
    processes = [context.Process(target=add, args=(replay, first)) for first in (0, 1000)]
    for process in processes:
        process.start()
    assert replay.rows.wait(0, 60)
    while any(process.is_alive() for process in processes):
        check(replay.sample(64))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert int(replay.ptr[0]) == 800
    replay.cleanup()
