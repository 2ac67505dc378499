"""Tests that steps of vector environments become true items of a table of steps, in every autoreset mode and after every interruption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers", "gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from test_gymnasium import SAME_STEP, Batched, Counting  # noqa: E402

from echo_core import Client, EchoTimeoutError, NStep, Server, Steps, Table  # noqa: E402

GAMMA, N = 0.5, 3


class OneTable:
    """A table of n-step items of one recorder, and every item in it."""

    def __init__(self, envs: Any, capacity: int = 500) -> None:
        from echo_adapters.gymnasium import step_example

        self.example = step_example(envs)
        table = Table("steps", self.example, capacity=capacity, items=NStep(N, gamma=GAMMA), sampler="fifo", max_times_sampled=1)
        self.server = Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0").start()
        self.client = Client(self.server.address, Steps(self.example), table="steps")

    def items(self) -> list[tuple[float, float, float, float, bool]]:
        """Return (obs, next obs, return, discount, terminated) of every item, in order of obs."""
        self.client.wait(20)
        made = []
        while len(self.server.table()):
            sample = self.server.sample(10)
            made.append(
                (
                    float(sample.batch["obs"][0, 0]),
                    float(sample.next["obs"][0, 0]),
                    float(sample.returns[0]),
                    float(sample.discounts[0]),
                    bool(sample.terminated[0]),
                )
            )
        return sorted(made)

    def close(self) -> None:
        self.client.close()
        self.server.close()


def expected(episode: int, length: int, terminated: bool, reward: float = 1.0) -> list[tuple[float, float, float, float, bool]]:
    """The items of a whole episode whose observation is 100 * episode + step, where the final observation is known."""
    made = []
    for at in range(length):
        span = min(N, length - at)
        over = terminated and at + span == length
        made.append((at, length - 1 if over else at + span, sum(reward * GAMMA**i for i in range(span)), GAMMA**span, over))
    return [(100.0 * episode + at, 100.0 * episode + last, *rest) for at, last, *rest in made]


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_items_are_those_of_the_episodes(mode: AutoresetMode) -> None:
    """The first environment's episodes have 5 steps; the second's are at 1000 and have 7. They end by termination and by truncation in turn."""
    from echo_adapters.gymnasium import StepRecorder

    envs = SyncVectorEnv([lambda: Counting(5), lambda: Counting(7)], autoreset_mode=mode)
    envs.envs[1].episode = 9  # its observations begin at 1000
    table = OneTable(envs)
    recorder = StepRecorder(envs, table.client)
    recorder.reset()
    for _ in range(24):
        _, _, terminated, truncated, _ = recorder.step([1, 1])
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            recorder.reset(options={"reset_mask": terminated | truncated})
    whole = [expected(episode, 5, episode % 2 == 0) for episode in range(4)] + [expected(10 + i, 7, i % 2 == 0) for i in range(3)]
    items, limits = table.items(), sorted(item for episode in whole for item in episode)
    have = [item for item in items if item[0] % 100 < 7 and item[0] // 100 in (0, 1, 2, 3, 10, 11, 12)]
    assert have == [item for item in limits if item in have] and len(set(have)) == len(have)
    assert len(have) >= len(limits) - 2 * N, "all but those of an episode that is open at the end"
    table.close()
    envs.close()


def test_without_final_observations_episodes_are_truncated() -> None:
    from echo_adapters.gymnasium import StepRecorder

    envs = Batched(1, SAME_STEP)
    table = OneTable(envs)
    recorder = StepRecorder(envs, table.client)
    recorder.reset()
    for _ in range(6):
        recorder.step([0])
    # The last step of each episode is only bootstrapped from.
    assert table.items() == [(0, 2, 1.5, 0.25, False), (1, 2, 1.0, 0.5, False), (100, 102, 1.5, 0.25, False), (101, 102, 1.0, 0.5, False)]
    table.close()


def test_a_reset_within_an_episode_ends_it() -> None:
    from echo_adapters.gymnasium import StepRecorder

    envs = SyncVectorEnv([lambda: Counting(50), lambda: Counting(50)], autoreset_mode=AutoresetMode.DISABLED)
    envs.envs[1].episode = 9
    table = OneTable(envs)
    recorder = StepRecorder(envs, table.client)
    recorder.reset()
    for step in range(8):
        recorder.step([1, 1])
        if step == 3:
            recorder.reset(options={"reset_mask": np.array([True, False])})
    items = table.items()
    assert [item[:2] for item in items if item[0] < 1000] == [(0, 3), (1, 3), (2, 3), (100, 103)]
    assert [item[:2] for item in items if item[0] >= 1000] == [(1000.0 + at, 1003.0 + at) for at in range(5)], "the other one goes on"
    table.close()


@pytest.mark.parametrize("part", ["the steps", "the final observation"])
def test_steps_that_could_not_be_sent_are_never_joined(part: str) -> None:
    from echo_adapters.gymnasium import StepRecorder

    class Refusing:
        """Lets everything through to the client, except one call of `send_batch`."""

        def __init__(self, client: Client) -> None:
            self.client, self.refuse = client, ""

        def send_batch(self, steps: Any, timeout: Any, *, ends: Any, streams: Any) -> None:
            if self.refuse == ("the final observation" if "boundary" in ends else "the steps"):
                self.refuse = ""
                raise EchoTimeoutError("the window stayed full")
            self.client.send_batch(steps, timeout, ends=ends, streams=streams)

        def end_episode(self, *arguments: Any, **named: Any) -> None:
            self.client.end_episode(*arguments, **named)

    envs = Batched(1, SAME_STEP, lambda final, ended: {"final_obs": final})
    table = OneTable(envs)
    client = Refusing(table.client)
    recorder = StepRecorder(envs, client)
    recorder.reset()
    recorder.step([0])
    recorder.step([0])
    client.refuse = part
    with pytest.raises(EchoTimeoutError):
        recorder.step([0])
    for _ in range(3):
        recorder.step([0])
    items = table.items()
    first = {"the steps": [(0, 1)], "the final observation": [(0, 2), (1, 2)]}[part]
    assert [item[:2] for item in items] == [*first, (100, 103), (101, 103), (102, 103)]
    table.close()


def test_refused_actions_leave_the_episode_open() -> None:
    from echo_adapters.gymnasium import StepRecorder

    envs = Batched(1, SAME_STEP, lambda final, ended: {"final_obs": final})
    table = OneTable(envs)
    recorder = StepRecorder(envs, table.client, first_stream=7)
    recorder.reset()
    recorder.step([0])
    with pytest.raises(ValueError, match="action holds"):
        recorder.step([0.5])
    recorder.step([0])
    recorder.step([0])
    assert table.items() == expected(0, 3, False)
    table.close()
