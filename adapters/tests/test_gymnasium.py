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


class Batched(gymnasium.vector.VectorEnv):
    """Observes 100 * episode + step, truncates after 3 steps, and resets at once, as simulators on a GPU do. `told(final, ended)` makes the info."""

    def __init__(self, count: int, metadata: Any, told: Any = lambda final, ended: {}) -> None:
        from gymnasium.vector.utils import batch_space

        self.num_envs, self.metadata, self._told, self.steps = count, metadata, told, 0
        self.single_observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)

    def _obs(self) -> np.ndarray:
        return (100.0 * self.episode + self.at).astype(np.float32)[:, None]

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episode, self.at = np.zeros(self.num_envs), np.arange(self.num_envs) % 3  # they end in different steps
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.steps, self.at = self.steps + 1, self.at + 1
        ended, final = self.at >= 3, self._obs()
        self.episode[ended] += 1
        self.at[ended] = 0
        return self._obs(), np.ones(self.num_envs), np.zeros(self.num_envs, bool), ended, self._told(final, ended)


SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}


def _each(final: np.ndarray, ended: np.ndarray) -> np.ndarray:
    one = np.full(len(ended), None, object)
    for index in np.flatnonzero(ended):
        one[index] = final[index]
    return one


@pytest.mark.parametrize(
    "told",
    [
        lambda final, ended: {"final_obs": final},
        lambda final, ended: {"final_obs": final, "_final_obs": ended},
        lambda final, ended: {"final_obs": _each(final, ended)} if ended.any() else {},
        lambda final, ended: {"final_obs": list(_each(final, ended)), "_final_obs": ended},
    ],
    ids=["a batch without a mask", "a batch", "one for each without a mask", "a list"],
)
def test_final_observations_are_taken_in_every_form(told: Any) -> None:
    from echo_adapters.gymnasium import Recorder

    client = Keeping()
    recorder = Recorder(Batched(2, SAME_STEP, told), client)
    recorder.reset()
    for _ in range(7):
        recorder.step(np.zeros(2, np.int64))
    first = [(100.0 * episode + at, 100.0 * episode + at + 1, at == 2) for episode in range(3) for at in range(3)]
    assert client.sent[::2] == first[:7] and client.sent[1::2] == first[1:8]


@pytest.mark.parametrize(
    "told",
    [
        lambda final, ended: {},
        lambda final, ended: [{}] * len(ended),
        lambda final, ended: None,
        lambda final, ended: {"final_obs": final, "_final_obs": np.zeros_like(ended)},
        lambda final, ended: {"final_obs": np.full(len(ended), None, object)},
    ],
    ids=["nothing", "a list", "None", "masked out", "None for each"],
)
def test_an_unknown_final_observation_is_refused_and_nothing_of_that_step_is_sent(told: Any) -> None:
    from echo_adapters.gymnasium import Recorder

    client = Keeping()
    recorder = Recorder(Batched(2, SAME_STEP, told), client)
    recorder.reset()
    recorder.step(np.zeros(2, np.int64))
    sent = list(client.sent)
    with pytest.raises(ValueError, match=r"environments \[1\] ended .*final_obs.*NEXT_STEP"):
        recorder.step(np.zeros(2, np.int64))
    assert sent == client.sent == [(0, 1, False), (1, 2, False)]
    with pytest.raises(ValueError, match=r"environments \[0\]"):
        recorder.step(np.zeros(2, np.int64))
    recorder.step(np.zeros(2, np.int64))
    assert client.sent[2:] == [(100, 101, False), (101, 102, False)], "the steps after it are true"


def test_the_autoreset_mode_is_never_guessed() -> None:
    from echo_adapters.gymnasium import Recorder

    told = lambda final, ended: {"final_obs": final}  # noqa: E731
    for metadata in ({}, None):
        with pytest.raises(ValueError, match="autoreset_mode=AutoresetMode.NEXT_STEP"):
            Recorder(Batched(1, metadata, told), Keeping())
    client = Keeping()
    recorder = Recorder(Batched(1, {}, told), client, autoreset_mode="SameStep")
    recorder.reset()
    for _ in range(4):
        recorder.step(np.zeros(1, np.int64))
    assert client.sent == [(0, 1, False), (1, 2, False), (2, 3, True), (100, 101, False)]
    with pytest.raises(ValueError, match="declares autoreset mode SAME_STEP, but autoreset_mode is NEXT_STEP"):
        Recorder(Batched(1, SAME_STEP), Keeping(), autoreset_mode=AutoresetMode.NEXT_STEP)


def test_steps_after_an_end_without_a_reset_are_no_transitions() -> None:
    from echo_adapters.gymnasium import Recorder

    client = Keeping()
    recorder = Recorder(SyncVectorEnv([lambda: Counting(2), lambda: Counting(5)], autoreset_mode=AutoresetMode.DISABLED), client)
    with pytest.raises(RuntimeError, match="reset"):
        recorder.step(np.array([0, 0]))
    recorder.reset()
    for _ in range(2):
        recorder.step(np.array([0, 0]))
    client.sent.clear()
    recorder.reset(options={"reset_mask": np.array([True, False])})
    recorder.step(np.array([0, 0]))
    assert client.sent == [(100, 101, False), (2, 3, False)]


class Spaces(gymnasium.vector.VectorEnv):
    """Takes every action and counts its steps."""

    def __init__(self, action: gymnasium.Space, observation: gymnasium.Space | None = None) -> None:
        self.num_envs, self.metadata, self.steps = 2, SAME_STEP, 0
        self.single_observation_space = observation or gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = action

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        return np.zeros((2, 1), np.float32), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}


@pytest.mark.parametrize(
    ("space", "actions", "sent"),
    [
        (gymnasium.spaces.Discrete(3), [0, 2], [0, 2]),
        (gymnasium.spaces.Discrete(3), (0, 2), [0, 2]),
        (gymnasium.spaces.Discrete(3), np.array([0, 2], np.int32), [0, 2]),
        (gymnasium.spaces.Discrete(3), np.array([0, 2], np.uint8), [0, 2]),
        (gymnasium.spaces.Discrete(3), np.array([0.0, 2.0]), [0, 2]),
        (gymnasium.spaces.Box(-1, 1, (1,), np.float32), np.array([[0.1], [0.2]]), [[np.float32(0.1)], [np.float32(0.2)]]),
        (gymnasium.spaces.Box(-1, 1, (1,), np.float32), [[1], [0]], [[1.0], [0.0]]),
        (gymnasium.spaces.MultiBinary(2), [[True, False], [False, True]], [[1, 0], [0, 1]]),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)]), ([1, 2],), ([1, 2],)),
    ],
)
def test_actions_are_sent_with_the_dtype_of_their_space(space: Any, actions: Any, sent: Any) -> None:
    from echo_adapters.gymnasium import Recorder, transition_example

    envs = Spaces(space)
    example = transition_example(envs)
    with Server(example, 2, num_buffers=4) as server:
        client = type("Local", (), {"send_batch": staticmethod(lambda rows, timeout: server.submit_batch(rows))})()
        recorder = Recorder(envs, client)
        recorder.reset()
        recorder.step(actions)
        got = server.sample(5).batch["action"]
    if isinstance(space, gymnasium.spaces.Tuple):
        got, sent, example = got[0], sent[0], {"action": example["action"][0]}
    assert got.dtype == example["action"].dtype and got.tolist() == np.array(sent).tolist()


@pytest.mark.parametrize(
    ("space", "actions", "why"),
    [
        (gymnasium.spaces.Discrete(3), np.array([0, 0.5]), r"action holds 0\.5, which int64 cannot hold"),
        (gymnasium.spaces.Discrete(3), np.array([0, np.nan]), "action holds nan"),
        (gymnasium.spaces.Discrete(3), np.array([0, 2**63], np.uint64), "action holds 9223372036854775808"),
        (gymnasium.spaces.Discrete(3), np.array([0, 2.0**63]), "which int64 cannot hold"),
        (gymnasium.spaces.MultiBinary(1), np.array([[0], [300]]), "action holds 300, which int8 cannot hold"),
        (gymnasium.spaces.Discrete(3, dtype=np.uint64), np.array([0, -1]), "action holds -1"),
        (gymnasium.spaces.Box(-1, 1, (1,), np.float32), np.array([[0], [1e39]]), r"action holds 1e\+39, which float32 cannot hold"),
        (gymnasium.spaces.Discrete(3), np.array([[0], [1]]), r"action must have shape \(2,\)"),
        (gymnasium.spaces.Discrete(3), 1, r"action must have shape \(2,\)"),
        (gymnasium.spaces.Discrete(3), ["a", "b"], "action must hold numbers"),
        (gymnasium.spaces.Discrete(3), [[0], [0, 1]], "action is no array"),
        (gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3)), {"b": [0, 1]}, r"keys \['a'\], not \['b'\]"),
        (gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3)), {"a": [0, 0.5]}, r"action\['a'\] holds 0\.5"),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)]), ([0, 1], [0, 1]), "tuple of 1"),
    ],
)
def test_actions_that_do_not_fit_are_refused_before_the_environments_step(space: Any, actions: Any, why: str) -> None:
    from echo_adapters.gymnasium import Recorder

    recorder = Recorder(envs := Spaces(space), Keeping())
    recorder.reset()
    with pytest.raises(ValueError, match=why):
        recorder.step(actions)
    assert envs.steps == 0


def test_torch_tensors_are_taken() -> None:
    torch = pytest.importorskip("torch")
    from echo_adapters.gymnasium import Recorder

    class OnTorch(Batched):
        def step(self, actions: Any) -> Any:
            assert isinstance(actions, torch.Tensor), "the environments get what the caller gave"
            obs, *rest, info = super().step(actions)
            return (torch.from_numpy(obs), *map(torch.from_numpy, rest), {"final_obs": torch.from_numpy(info["final_obs"])})

    client = Keeping()
    recorder = Recorder(OnTorch(1, SAME_STEP, lambda final, ended: {"final_obs": final}), client)
    recorder.reset()
    for _ in range(4):
        recorder.step(torch.zeros(1, dtype=torch.int32))
    assert client.sent == [(0, 1, False), (1, 2, False), (2, 3, True), (100, 101, False)]


@pytest.mark.parametrize("name", ["Text", "Sequence", "Graph", "OneOf"])
def test_an_example_never_depends_on_a_draw(name: str) -> None:
    from echo_adapters.gymnasium import transition_example

    spaces, box = gymnasium.spaces, gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    of = {
        "Text": lambda: spaces.Text(5),
        "Sequence": lambda: spaces.Sequence(box),
        "Graph": lambda: spaces.Graph(box, None),
        "OneOf": lambda: spaces.OneOf([box, box]),
    }
    with pytest.raises(TypeError, match=rf"observation\['a'\]\[1\] is a {name} space"):
        transition_example(Spaces(box, spaces.Dict(a=spaces.Tuple([box, of[name]()]))))
    with pytest.raises(TypeError, match=f"action is a {name} space"):
        transition_example(Spaces(of[name]()))
    nested = transition_example(Spaces(spaces.Discrete(3), spaces.Dict(a=spaces.Tuple([box, spaces.Discrete(4)]))))
    assert nested["obs"]["a"][0].tolist() == [0, 0] and nested["next_obs"]["a"][1].dtype == np.int64


def test_atari_environments_that_reset_in_the_same_step() -> None:
    ale = pytest.importorskip("ale_py")
    from echo_adapters.gymnasium import Recorder, transition_example

    envs = ale.AtariVectorEnv("pong", 2, autoreset_mode=AutoresetMode.SAME_STEP, max_num_frames_per_episode=60)
    example = transition_example(envs)
    with Server(example, 80, num_buffers=2) as server:
        client = type("Local", (), {"send_batch": staticmethod(lambda rows, timeout: server.submit_batch(rows))})()
        recorder, finals = Recorder(envs, client), []
        recorder.reset(seed=0)
        for _ in range(40):
            _, _, terminated, truncated, info = recorder.step(np.zeros(2, np.int32))
            finals += [info["final_obs"][i].copy() for i in np.flatnonzero(terminated | truncated)]
        batch = server.sample(5).batch
        ended = batch["terminated"] | batch["truncated"]
        assert finals and np.array_equal(batch["next_obs"][ended], np.stack(finals))
    envs.close()


def test_a_watcher_that_does_not_say_what_to_do_with_steps_is_not_made() -> None:
    from echo_adapters._episodes import Watcher

    class Forgetful(Watcher):
        pass

    envs = SyncVectorEnv([lambda: Counting(3)])
    with pytest.raises(TypeError, match="abstract.*_happened"):
        Forgetful(envs, None)
    envs.close()
