"""Tests that the recorder of episodes sends whole episodes, in every autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers", "gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from test_gymnasium import Counting  # noqa: E402

from echo_core import Client, EchoTimeoutError, Queue, Server, Table  # noqa: E402


class Keeping:
    """Replaces a client: it keeps `(observations, last observation, terminated, truncated)` of each episode, and accepts nothing while `full`."""

    def __init__(self) -> None:
        self.full, self.sent = False, []

    def send_batch(self, episodes: list[dict[str, Any]], timeout: float | None = None) -> None:
        if self.full:
            raise EchoTimeoutError("the window stayed full")
        for one in episodes:
            end = one["end"]
            self.sent.append((one["steps"]["obs"][:, 0].tolist(), float(end["obs"][0]), bool(end["terminated"]), bool(end["truncated"])))


def episodes_of(mode: AutoresetMode, lengths: tuple[int, ...], steps: int, **options: Any) -> list[Any]:
    from echo_adapters.gymnasium import EpisodeRecorder

    client: Any = Keeping()
    recorder = EpisodeRecorder(SyncVectorEnv([lambda n=n: Counting(n) for n in lengths], autoreset_mode=mode), client, **options)
    recorder.reset(seed=0)
    for step in range(steps):
        _, _, terminated, truncated, _ = recorder.step(np.full(len(lengths), step % 7))
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            recorder.reset(options={"reset_mask": terminated | truncated})
    return client.sent


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_episodes_are_those_that_happened(mode: AutoresetMode) -> None:
    sent = episodes_of(mode, (3, 5), 24)
    assert len(sent) >= 9
    for observations, last, terminated, truncated in sent:
        first = observations[0]
        assert first % 100 == 0
        assert observations == [first + i for i in range(len(observations))]
        assert last == first + len(observations)
        assert len(observations) in (3, 5)
        assert (terminated, truncated) == (first // 100 % 2 == 0, first // 100 % 2 == 1)


def test_an_episode_longer_than_most_is_sent_in_pieces() -> None:
    sent = episodes_of(AutoresetMode.SAME_STEP, (5,), 5, most=2)
    assert sent == [([0, 1], 2, False, True), ([2, 3], 4, False, True), ([4], 5, True, False)]
    assert episodes_of(AutoresetMode.SAME_STEP, (4,), 4, most=2)[-1] == ([2, 3], 4, True, False)


def test_a_reset_within_an_episode_sends_it_as_truncated() -> None:
    from echo_adapters.gymnasium import EpisodeRecorder

    client: Any = Keeping()
    recorder = EpisodeRecorder(SyncVectorEnv([lambda: Counting(9), lambda: Counting(9)], autoreset_mode=AutoresetMode.DISABLED), client)
    recorder.reset(seed=0)
    recorder.step(np.zeros(2, int))
    recorder.step(np.zeros(2, int))
    recorder.reset(options={"reset_mask": np.array([False, True])})
    assert client.sent == [([0, 1], 2, False, True)]
    recorder.step(np.zeros(2, int))
    recorder.reset()
    assert client.sent[1:] == [([0, 1, 2], 3, False, True), ([100], 101, False, True)]


def test_an_episode_that_could_not_be_sent_is_left_out_and_no_other_is_changed() -> None:
    from echo_adapters.gymnasium import EpisodeRecorder

    client: Any = Keeping()
    recorder = EpisodeRecorder(SyncVectorEnv([lambda: Counting(2), lambda: Counting(3)], autoreset_mode=AutoresetMode.SAME_STEP), client)
    recorder.reset(seed=0)
    recorder.step(np.zeros(2, int))
    client.full = True
    with pytest.raises(EchoTimeoutError):
        recorder.step(np.zeros(2, int))
    client.full = False
    recorder.step(np.zeros(2, int))
    assert client.sent == [([0, 1, 2], 3, True, False)]


def test_no_episode_has_a_gap() -> None:
    from echo_adapters.gymnasium import EpisodeRecorder

    class Broken(SyncVectorEnv):
        wrong = False

        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(actions)
            return obs, reward, terminated[:0] if self.wrong else terminated, truncated, info

    client: Any = Keeping()
    envs = Broken([lambda: Counting(4)], autoreset_mode=AutoresetMode.DISABLED)
    recorder = EpisodeRecorder(envs, client)
    recorder.reset(seed=0)
    recorder.step(np.zeros(1, int))
    envs.wrong = True
    with pytest.raises(ValueError, match="terminated of shape"):
        recorder.step(np.zeros(1, int))
    envs.wrong = False
    recorder.reset()
    for _ in range(4):
        recorder.step(np.zeros(1, int))
    assert client.sent == [([100, 101, 102, 103], 104, False, True)]


def test_episodes_reach_a_table() -> None:
    from echo_adapters.gymnasium import EpisodeRecorder, episode_example

    envs = SyncVectorEnv([lambda n=n: Counting(n) for n in (3, 5)], autoreset_mode=AutoresetMode.SAME_STEP)
    example = episode_example(envs, most=50)
    table = Table("episodes", example, capacity=100, sampler="fifo", rate_limiter=Queue(100))
    with Server(tables=[table], batch_size=4, transport="tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        recorder = EpisodeRecorder(envs, client, most=50)
        recorder.reset(seed=0)
        for _ in range(10):
            recorder.step(np.zeros(2, int))
        client.wait(20)
        sample = server.sample(timeout=20)
        assert sample.lengths["t"].tolist() == [3, 5, 3, 3]
        assert sample.row(1)["steps"]["obs"][:, 0].tolist() == [0, 1, 2, 3, 4]
        assert sample.row(1)["end"]["obs"][0] == 5
