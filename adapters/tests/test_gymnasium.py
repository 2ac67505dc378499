"""Tests that the recorder sends true transitions in every autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers", "gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from echo_core import Client, EchoTimeoutError, Server  # noqa: E402


class Counting(gymnasium.Env):
    """An environment whose observation is 100 * episode + step. Episodes have `length` steps and end by termination and truncation in turn."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self, length: int) -> None:
        self.length, self.episode, self.at = length, -1, 0

    def _obs(self) -> np.ndarray:
        return np.full(2, 100 * self.episode + self.at, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += 1
        over = self.at == self.length
        return self._obs(), float(action), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


class Keeping:
    """Replaces a client: it keeps `(obs, next_obs, ended)` of each sent transition, and accepts nothing while `full`."""

    def __init__(self) -> None:
        self.full, self.sent = False, []

    def send_batch(self, samples: dict[str, np.ndarray], timeout: float | None = None) -> None:
        if self.full:
            raise EchoTimeoutError("the window stayed full")
        ended = samples["terminated"] | samples["truncated"]
        self.sent += zip(samples["obs"][:, 0].tolist(), samples["next_obs"][:, 0].tolist(), ended.tolist())


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_transitions_are_those_that_happened(mode: AutoresetMode) -> None:
    from echo_adapters.gymnasium import Recorder, transition_example

    lengths, steps = (3, 5), 16
    envs = SyncVectorEnv([lambda n=n: Counting(n) for n in lengths], autoreset_mode=mode)
    example = transition_example(envs)
    with Server(example, 1, "tcp://127.0.0.1:0", num_buffers=64) as server, Client(server.address, example) as client:
        recorder = Recorder(envs, client)
        recorder.reset(seed=0)
        for step in range(steps):
            _, _, terminated, truncated, _ = recorder.step(np.array([step % 7, 3]))
            over = terminated | truncated
            if mode is AutoresetMode.DISABLED and over.any():
                recorder.reset(options={"reset_mask": over})
        client.wait(20)
        rows = [server.sample(10).batch for _ in range(int(server.stats()["store/samples"]))]
        seen = [{key: value[0].copy() for key, value in row.items()} for row in rows]
    # Every transition goes from one step of an episode to the next step of the same episode; this includes the last step.
    for row in seen:
        assert row["next_obs"][0] == row["obs"][0] + 1 and row["next_obs"][1] == row["next_obs"][0]
    made = {length: [row for row in seen if row["obs"][0] % 100 < length] for length in lengths}
    ends = [row for row in seen if row["terminated"] or row["truncated"]]
    assert ends and all(row["next_obs"][0] % 100 in lengths for row in ends)
    assert all(bool(row["terminated"]) == (row["obs"][0] // 100 % 2 == 0) for row in ends)
    assert not [row for row in seen if row["obs"][0] % 100 >= max(lengths)]
    # In NEXT_STEP, a step that only resets is not a transition. In other modes, every step of every environment is a transition.
    resets = sum(steps // (length + 1) for length in lengths) if mode is AutoresetMode.NEXT_STEP else 0
    assert len(seen) == len(lengths) * steps - resets and made[max(lengths)]
    envs.close()


@pytest.mark.parametrize("refused", [{0}, {1}, {1, 2}, {2}, {2, 3}, {3}], ids=str)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_a_step_that_could_not_be_sent_is_left_out_and_no_other_is_changed(mode: AutoresetMode, refused: set[int]) -> None:
    from echo_adapters.gymnasium import Recorder

    def sent_by_step(refused: set[int]) -> list[Any]:
        client, rows = Keeping(), []
        recorder = Recorder(SyncVectorEnv([lambda: Counting(3)], autoreset_mode=mode), client)
        recorder.reset(seed=0)
        for step in range(8):
            client.full, client.sent = step in refused, []
            try:
                recorder.step(np.array([0]))
            except EchoTimeoutError:
                assert client.full
            rows.append(client.sent)
        return rows

    happened = sent_by_step(set())
    assert happened[:3] == [[(0, 1, False)], [(1, 2, False)], [(2, 3, True)]]
    assert sent_by_step(refused) == [[] if step in refused else rows for step, rows in enumerate(happened)]


def test_a_partial_reset_leaves_the_other_environments_to_theirs() -> None:
    from echo_adapters.gymnasium import Recorder

    client = Keeping()
    recorder = Recorder(SyncVectorEnv([lambda: Counting(2), lambda: Counting(2)], autoreset_mode=AutoresetMode.NEXT_STEP), client)
    recorder.reset(seed=0)
    for _ in range(2):
        recorder.step(np.array([0, 0]))
    assert client.sent == [(0, 1, False)] * 2 + [(1, 2, True)] * 2
    client.sent.clear()
    options = {"reset_mask": np.array([True, False])}
    recorder.reset(options=options)
    recorder.step(np.array([0, 0]))  # the second environment only resets
    assert client.sent == [(100, 101, False)]
    recorder.step(np.array([0, 0]))
    assert client.sent[1:] == [(101, 102, True), (100, 101, False)]
    client.sent.clear()
    recorder.reset()
    recorder.step(np.array([0, 0]))
    assert client.sent == [(200, 201, False)] * 2, "after a reset of all environments, none needs a reset"


def test_a_real_environment_keeps_its_results() -> None:
    from echo_adapters.gymnasium import Recorder, transition_example

    plain, watched = gymnasium.make_vec("CartPole-v1", 3), gymnasium.make_vec("CartPole-v1", 3)
    example = transition_example(plain)
    with Server(example, 8, "tcp://127.0.0.1:0", num_buffers=32) as server, Client(server.address, example) as client:
        recorder = Recorder(watched, client)
        assert np.array_equal(plain.reset(seed=1)[0], recorder.reset(seed=1)[0])
        for _ in range(40):
            actions = np.ones(3, np.int64)
            for one, other in zip(plain.step(actions)[:4], recorder.step(actions)[:4]):
                assert np.array_equal(one, other)
        client.wait(20)
        assert 0 < server.stats()["store/samples"] < 120  # minus the resets
    plain.close()
    watched.close()
