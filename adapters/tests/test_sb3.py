"""Tests that Stable-Baselines3 learns from transitions that workers send."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optree
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


def _rows(example: dict[str, Any], count: int, **given: Any) -> dict[str, Any]:
    return {**optree.tree_map(lambda leaf: np.repeat(leaf[None], count, 0), example), **given}


def test_images_are_transposed_as_the_model_transposes_its_own() -> None:
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import VecTransposeImage

    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.wrappers.TimeLimit(Images(), 5)
    example = sb3_example(env)
    assert example["obs"].shape == (36, 40, 3)
    seen = np.random.default_rng(0).integers(0, 256, (2, 36, 40, 3)).astype(np.uint8)
    with Server(example, 2) as server:
        echo = {"replay_buffer_class": EchoReplayBuffer, "replay_buffer_kwargs": {"server": server}}
        model = DQN("CnnPolicy", env, **echo, buffer_size=20, learning_starts=5, device="cpu")
        server.submit_batch(_rows(example, 2, obs=seen, next_obs=seen[::-1].copy()))
        assert model.replay_buffer.collect() == 2
        kept = model.replay_buffer
        assert np.array_equal(kept.observations[:2, 0], VecTransposeImage.transpose_image(seen))
        assert np.array_equal(kept.next_observations[:2, 0], VecTransposeImage.transpose_image(seen[::-1]))
        model.learn(8)


class Images(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 40, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


class Parts(gymnasium.Env):
    """Observes a Dict with every kind of part, an image among them."""

    observation_space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (36, 40, 3), np.uint8),
        place=gymnasium.spaces.Box(-1, 1, (3,), np.float32),
        room=gymnasium.spaces.Discrete(4),
        doors=gymnasium.spaces.MultiBinary(2),
    )
    action_space = gymnasium.spaces.Discrete(2)
    reset, step = Images.reset, Images.step


def test_dict_observations_are_kept_as_by_the_model() -> None:
    from stable_baselines3 import DQN

    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.wrappers.TimeLimit(Parts(), 5)
    example = sb3_example(env)
    env.observation_space.seed(0)
    sent = [env.observation_space.sample() for _ in range(5)]
    stacked = {key: np.stack([np.asarray(one[key]) for one in sent]) for key in sent[0]}
    with Server(example, 4, "tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        echo = {"replay_buffer_class": EchoReplayBuffer, "replay_buffer_kwargs": {"server": server}}
        model = DQN("MultiInputPolicy", env, **echo, buffer_size=50, learning_starts=5, device="cpu", seed=0)
        client.send_batch(_rows(example, 4, obs={k: v[:4] for k, v in stacked.items()}, next_obs={k: v[1:] for k, v in stacked.items()}))
        client.wait(10)
        buffer = model.replay_buffer
        assert buffer.collect() == 4
        assert np.array_equal(buffer.observations["image"][:4, 0], stacked["image"][:4].transpose(0, 3, 1, 2))
        for key in ("place", "doors", "room"):
            assert np.array_equal(buffer.observations[key][:4, 0].reshape(4, -1), stacked[key][:4].reshape(4, -1)), key
            assert np.array_equal(buffer.next_observations[key][:4, 0].reshape(4, -1), stacked[key][1:].reshape(4, -1)), key
        model.learn(20)
        assert buffer.size() == 24 and buffer.sample(3).observations["image"].shape == (3, 3, 36, 40)


@pytest.mark.parametrize("obeyed", [True, False])
def test_time_limits_of_workers_are_handled_as_those_of_the_model(obeyed: bool) -> None:
    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.make("CartPole-v1")
    example = sb3_example(env)
    with Server(example, 1) as server:
        buffer = EchoReplayBuffer(10, env.observation_space, env.action_space, server=server, handle_timeout_termination=obeyed)
        server.submit_batch(_rows(example, 1, done=np.array([True]), timeout=np.array([True])))
        assert buffer.sample(1).dones.item() == (0 if obeyed else 1)


def test_returns_over_several_steps_are_refused() -> None:
    from stable_baselines3 import DQN

    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.make("CartPole-v1")
    with Server(sb3_example(env), 4) as server:
        with pytest.raises(ValueError, match="n_steps=3 needs transitions in one worker's order"):
            DQN("MlpPolicy", env, replay_buffer_class=EchoReplayBuffer, replay_buffer_kwargs={"server": server, "n_steps": 3, "gamma": 0.9}, device="cpu")
        if "n_steps" in signature(DQN).parameters:
            with pytest.warns(UserWarning), pytest.raises(ValueError, match="n_steps=3 needs transitions"):
                DQN("MlpPolicy", env, n_steps=3, replay_buffer_class=EchoReplayBuffer, replay_buffer_kwargs={"server": server}, device="cpu")


def test_models_and_buffers_are_saved_without_their_server_and_take_it_again(tmp_path: Path) -> None:
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import CheckpointCallback

    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.make("CartPole-v1")
    example = sb3_example(env)
    with Server(example, 4) as server:
        given = {"server": server, "wait": 0.5}
        model = DQN("MlpPolicy", env, replay_buffer_class=EchoReplayBuffer, replay_buffer_kwargs=given, buffer_size=100, learning_starts=5, device="cpu")
        model.learn(20, callback=CheckpointCallback(10, str(tmp_path / "kept"), save_replay_buffer=True))
        server.submit_batch(_rows(example, 4, reward=np.arange(4, dtype=np.float32) + 10))
        model.replay_buffer.collect()
        model.save(tmp_path / "model.zip")
        model.save_replay_buffer(tmp_path / "buffer.pkl")
        assert given == {"server": server, "wait": 0.5}, "the caller's own dict is unchanged"

        again = DQN.load(tmp_path / "model.zip", env, replay_buffer_kwargs=given)
        again.load_replay_buffer(tmp_path / "buffer.pkl")
        assert again.replay_buffer.size() == 24 and np.array_equal(again.replay_buffer.rewards, model.replay_buffer.rewards)
        server.submit_batch(_rows(example, 4))
        assert again.replay_buffer.collect() == 4
        again.learn(10)
        again.save(tmp_path / "again.zip")

        model.save(tmp_path / "bare.zip", exclude=["replay_buffer_kwargs"])
        with pytest.raises(RuntimeError, match="this buffer has no server"):
            DQN.load(tmp_path / "bare.zip", env).replay_buffer.collect()

        alone = DQN.load(tmp_path / "kept" / "rl_model_20_steps.zip", env)
        assert alone.predict(np.zeros(4, np.float32))[0] in (0, 1)
        alone.load_replay_buffer(tmp_path / "kept" / "rl_model_replay_buffer_20_steps.pkl")
        with pytest.raises(RuntimeError, match=r"replay_buffer_kwargs=.*attach"):
            alone.replay_buffer.sample(2)
        alone.replay_buffer.attach(server)
        assert len(alone.replay_buffer.sample(2).rewards) == 2
        assert not alone.replay_buffer.collect()


@pytest.mark.parametrize(
    ("space", "why"),
    [
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)]), "does not support the Tuple observation space"),
        (gymnasium.spaces.Dict(a=gymnasium.spaces.Dict(b=gymnasium.spaces.Discrete(2))), "its part 'a' is a Dict"),
        (gymnasium.spaces.Dict(a=gymnasium.spaces.Text(3)), "its part 'a' is a Text"),
        (gymnasium.spaces.Text(3), "does not support the Text observation space"),
    ],
    ids=["Tuple", "nested", "part", "Text"],
)
def test_spaces_that_no_policy_takes_are_refused(space: gymnasium.Space, why: str) -> None:
    from echo_adapters.sb3 import sb3_example

    flat = gymnasium.spaces.Discrete(2)
    with pytest.raises(TypeError, match=why):
        sb3_example(SimpleNamespace(observation_space=space, action_space=flat))
    with pytest.raises(TypeError, match=r"does not support the \w+ action space"):
        sb3_example(SimpleNamespace(observation_space=flat, action_space=space))


def test_servers_that_do_not_belong_to_the_model_are_refused() -> None:
    from echo_adapters.sb3 import EchoReplayBuffer, sb3_example

    env = gymnasium.make("CartPole-v1")
    example, spaces = sb3_example(env), (env.observation_space, env.action_space)
    for other, why in (
        ({**example, "obs": np.zeros(5, np.float32)}, r"leaf 'obs' is float32 \(5,\), and the model needs float32 \(4,\)"),
        ({**example, "next_obs": np.zeros(4)}, "leaf 'next_obs' is float64"),
        ({**example, "extra": np.zeros(4)}, "leaf 'extra' has no place"),
        ({key: leaf for key, leaf in example.items() if key != "timeout"}, "leaf 'timeout' is missing"),
    ):
        with Server(other, 2) as server, pytest.raises(ValueError, match=why):
            EchoReplayBuffer(10, *spaces, server=server)
    with Server(example, 2, sampler="uniform", capacity=10) as server, pytest.raises(ValueError, match="replay table 'default', which never runs empty"):
        EchoReplayBuffer(10, *spaces, server=server)
