"""Stable-Baselines3 learns from what workers send."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers", "stable-baselines3")

from echo_core import Client, EchoTimeoutError, Server  # noqa: E402


def test_a_buffer_is_filled_by_workers_and_wraps_around() -> None:
    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.make("CartPole-v1")
    example = sb3_example(env)
    with Server(example, 4, "tcp://127.0.0.1:0", num_buffers=8) as server:
        buffer = EchoReplayBuffer(10, env.observation_space, env.action_space, server=server, wait=0.1)
        with pytest.raises(EchoTimeoutError, match="no worker sent a transition"):
            buffer.sample(4)
        with Client(server.address, example) as client:
            for i in range(12):
                client.send({**example, "obs": np.full(4, i, np.float32), "action": np.int64(i % 2), "reward": np.float32(i)})
            client.wait(10)
        assert len(buffer.sample(6).rewards) == 6
        assert buffer.full and buffer.pos == 2 and buffer.size() == 10
        assert sorted(buffer.rewards[:, 0].tolist()) == list(range(2, 12)), "the oldest two made room"
        assert (buffer.observations[:, 0, 0] == buffer.rewards[:, 0]).all()
        with pytest.raises(ValueError, match="do not fit"):
            EchoReplayBuffer(3, env.observation_space, env.action_space, server=server)


def test_dqn_takes_steps() -> None:
    from stable_baselines3 import DQN

    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.make("CartPole-v1")
    example = sb3_example(env)
    with Server(example, 32, "tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        client.send_batch({key: np.repeat(value[None], 64, 0) for key, value in example.items()})
        client.wait(10)
        echo = {"replay_buffer_class": EchoReplayBuffer, "replay_buffer_kwargs": {"server": server}}
        model = DQN("MlpPolicy", env, **echo, buffer_size=500, learning_starts=10, device="cpu", seed=0)
        model.learn(60)
        assert model.replay_buffer.size() == 124, "60 of its own, 64 of a worker's"
