"""Tests that Stable-Baselines3 learns from transitions that workers send."""

from __future__ import annotations

from types import SimpleNamespace

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
        assert model.replay_buffer.size() == 124, "60 of its own transitions, 64 of a worker"


@pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG"])
def test_actions_are_kept_as_the_model_keeps_its_own(algorithm: str) -> None:
    import stable_baselines3
    from gymnasium.wrappers import RescaleAction

    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = RescaleAction(gymnasium.make("Pendulum-v1"), np.float32(-1), np.float32(3))  # neither [-1, 1] nor symmetric
    example = sb3_example(env)
    with Server(example, 5) as server:
        echo = {"replay_buffer_class": EchoReplayBuffer, "replay_buffer_kwargs": {"server": server}}
        model = getattr(stable_baselines3, algorithm)("MlpPolicy", env, **echo, buffer_size=100, learning_starts=10, device="cpu", seed=0)
        actions = np.linspace(-1, 3, 5, dtype=np.float32)[:, None]
        server.submit_batch({**{key: np.repeat(value[None], 5, 0) for key, value in example.items()}, "action": actions})
        assert model.replay_buffer.collect() == 5
        kept = model.replay_buffer.actions[:5, 0]
        assert kept.tolist() == [[-1], [-0.5], [0], [0.5], [1]] and np.array_equal(kept, model.policy.scale_action(actions))
        model.learn(20)
        assert model.replay_buffer.size() == 25 and np.abs(model.replay_buffer.actions[:25]).max() <= 1
        unbounded = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        with pytest.raises(ValueError, match="finite"):
            EchoReplayBuffer(10, env.observation_space, unbounded, server=server)


@pytest.mark.parametrize("space", [gymnasium.spaces.Discrete(7), gymnasium.spaces.MultiDiscrete([7, 7])], ids=str)
def test_discrete_observations_and_actions_are_kept_as_by_add(space: gymnasium.Space) -> None:
    from stable_baselines3.common.buffers import ReplayBuffer

    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    example = sb3_example(SimpleNamespace(observation_space=space, action_space=space))
    space.seed(0)
    batch = {key: np.stack([space.sample() if value.dtype == space.dtype else value for _ in range(4)]) for key, value in example.items()}
    with Server(example, 4) as server:
        buffer, plain = EchoReplayBuffer(10, space, space, server=server), ReplayBuffer(10, space, space)
        server.submit_batch(batch)
        assert buffer.collect() == 4
    for row in range(4):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        plain.add(*(one[key] for key in ("obs", "next_obs", "action", "reward", "done")), [{}])
    for kept in ("observations", "next_observations", "actions", "rewards", "dones"):
        assert np.array_equal(getattr(buffer, kept), getattr(plain, kept)), kept


def test_images_of_another_layout_are_refused() -> None:
    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    last, first = (gymnasium.spaces.Box(0, 255, shape, np.uint8) for shape in ((4, 4, 3), (3, 4, 4)))
    actions = gymnasium.spaces.Discrete(2)
    example = sb3_example(SimpleNamespace(observation_space=last, action_space=actions))
    with Server(example, 2) as server:
        buffer = EchoReplayBuffer(10, first, actions, server=server)  # the space into which SB3 converts it
        server.submit_batch({key: np.repeat(value[None], 2, 0) for key, value in example.items()})
        with pytest.raises(ValueError, match="broadcast"):
            buffer.collect()
