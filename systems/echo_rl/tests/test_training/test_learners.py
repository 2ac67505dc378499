"""Several learners take the steps of one. The death of one ends the run, and none of them outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from test_token_learner import LOSSES, batch, learner, same  # noqa: E402

from echo_core import ConfigError, EchoError, EchoTimeoutError  # noqa: E402
from echo_rl.core.ppo_learner import PPOConfig, PPOLearner  # noqa: E402
from echo_rl.core.process_group import divide  # noqa: E402
from echo_rl.core.vtrace import VTraceLearner  # noqa: E402
from echo_rl.models.actor_critic import ActorCritic  # noqa: E402
from echo_rl.training.learners import Learners, _Gloo  # noqa: E402
from echo_rl.training.token_learner import TokenLearner  # noqa: E402
from echo_testing.processes import until  # noqa: E402


def together(n: int, make: Callable[[], Any], batches: list[Any]) -> list[tuple[Any, list[Any]]]:
    """Train n learners as one group of gloo, each in a thread. Return each, and its figures."""
    store = os.memfd_create("learners")

    def work(rank: int) -> tuple[Any, list[Any]]:
        one, group = make(), _Gloo(store, rank, n, 60.0)
        one.group = group
        try:
            return one, [one.update(given) for given in batches]
        finally:
            group.close()

    try:
        with ThreadPoolExecutor(n) as pool:
            return list(pool.map(work, range(n)))
    finally:
        os.close(store)


def check(n: int, make: Callable[[], Any], batches: list[Any]) -> None:
    """n learners have the parameters, the optimiser and the figures of one, and each the same bits as the others."""
    alone = make()
    expected = [alone.update(given) for given in batches]
    (first, figures), *others = together(n, make, batches)
    for other, found in others:
        assert same(other.state(), first.state()) and found == figures
    mine, theirs = alone.state(), first.state()
    assert mine["values"] == theirs["values"] and mine["tensors"].keys() == theirs["tensors"].keys()
    for name, tensor in mine["tensors"].items():
        torch.testing.assert_close(theirs["tensors"][name], tensor, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    for one, other in zip(expected, figures, strict=True):
        assert asdict(other) == pytest.approx(asdict(one), rel=1e-3, abs=1e-5)
        assert one.gradient_norm > 0


@pytest.mark.parametrize(("name", "n"), [(name, 2 + (name == "ppo")) for name in LOSSES])
def test_learners_of_a_language_model_take_the_steps_of_one(name: str, n: int) -> None:
    """Masks, values, divergences, scales of the loss, microbatches, several steps of a batch; the whole gradient is clipped."""
    batches = [batch(0), batch(1)]
    options = {"micro_tokens": 30, "epochs": 2, "minibatches": 2, "max_grad_norm": 0.05}
    check(n, lambda: learner(name, **options), batches)
    assert learner(name, **options).update(batch(0)).gradient_norm > 0.05  # so it was clipped


def rollout(seed: int, steps: int = 21) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shape = (steps, 3)
    found: dict[str, Any] = {"states": rng.normal(size=(*shape, 4)), "next_states": rng.normal(size=(*shape, 4)), "rewards": rng.normal(size=shape)}
    found |= {"actions": rng.integers(0, 3, shape), "log_probs": -rng.random(shape) - 0.5, "reference_log_probs": -rng.random(shape) - 0.5}
    found |= {"terminated": rng.random(shape) < 0.1, "truncated": rng.random(shape) < 0.1, "mask": rng.random(shape) < 0.8, "weights": rng.random(shape)}
    return {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in found.items()}


RULES = {
    "ppo": PPOConfig(epochs=2, minibatch_size=31, seed=3, max_grad_norm=0.05, value_clip=0.2),  # the last of three minibatches has one step
    "decoupled": PPOConfig(epochs=2, minibatch_size=20, seed=3, correction="decoupled", learning_rate=1e-3),
    "impala": PPOConfig(epochs=1, minibatch_size=20, seed=3),
    "stops early": PPOConfig(epochs=6, minibatch_size=20, seed=3, learning_rate=3e-2, target_kl=0.02, normalize_advantages=False),
}


@pytest.mark.parametrize("name", RULES)
def test_learners_of_a_policy_take_the_steps_of_one(name: str) -> None:
    def make() -> PPOLearner:
        policy = ActorCritic(4, 3, hidden=(16,), seed=1)
        # A mean over states, as the loss of a planner is.
        kind = VTraceLearner if name == "impala" else PPOLearner
        return kind(policy, RULES[name], auxiliary=lambda states: 0.1 * policy(states)[0].square().mean())

    batches = [rollout(0), rollout(1)]
    check(2, make, batches)
    taken = [make().update(given).steps for given in batches]
    planned = RULES[name].epochs * -(-63 // RULES[name].minibatch_size)
    assert (min(taken) < planned) == (name == "stops early"), taken


def test_more_learners_than_rollouts() -> None:
    check(14, lambda: learner("reinforce"), [batch(0)])


def test_shares_are_all_of_a_batch_and_even() -> None:
    class Of:
        def __init__(self, rank: int, size: int) -> None:
            self.rank, self.size = rank, size

        def all_reduce(self, tensor: Any) -> None:
            raise AssertionError

    costs = np.random.default_rng(0).integers(1, 200, 64)
    for size in (1, 2, 3, 5):
        shares = [divide(costs, Of(rank, size)) for rank in range(size)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(64)) and all((np.diff(share) > 0).all() for share in shares)
        sums = [costs[share].sum() for share in shares]
        assert max(sums) - min(sums) <= costs.min() + 5
    assert divide([], Of(1, 2)).tolist() == [] and divide([7], Of(1, 2)).tolist() == []


# ---- processes ------------------------------------------------------------------------------------------------------------


@contextmanager
def running(n: int, timeout: float = 60.0) -> Iterator[tuple[TokenLearner, Learners]]:
    one = learner("reinforce", epochs=2)
    learners = Learners(one, n, timeout)
    try:
        learners.start()
        yield one, learners
    finally:
        pids = learners.pids
        learners.close()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_learner_that_dies_is_named_and_the_files_are_closed() -> None:
    before = os.listdir("/proc/self/fd")
    with running(3) as (one, learners):
        alone = learner("reinforce", epochs=2)
        for seed in range(3):
            assert asdict(learners.update(batch(seed))) == pytest.approx(asdict(alone.update(batch(seed))), rel=1e-3, abs=1e-5)
        assert learners.stats()["learners"] == 3 and 0 < float(learners.stats()["learners_wait_share"]) < 1
        with pytest.raises(ValueError, match="is not finite"):  # as of one learner
            learners.update(_spoilt(batch(3)))
    one.update(batch(3))  # goes on alone
    assert len(os.listdir("/proc/self/fd")) == len(before)


def _spoilt(given: Any) -> Any:
    given.rewards[0] = np.nan
    return given


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_learner_that_is_killed_or_hangs_is_named(how: str) -> None:
    with running(3, timeout=60.0 if how == "killed" else 20.0) as (_, learners):
        learners.update(batch(0))
        victim = learners.pids[0]
        os.kill(victim, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        if how == "killed":
            with pytest.raises(EchoError, match=rf"^learner 1 \(process {victim}\) has ended by signal 9\. The learners share .* last checkpoint"):
                learners.update(batch(1))
            with pytest.raises(EchoError, match=rf"^learner 1 \(process {victim}\) has ended by signal 9\."):
                learners.check()
        else:
            with pytest.raises(EchoTimeoutError, match=rf"^no answer of learner 1 \(process {victim}\) within 20 s \(patience\)"):
                learners.update(batch(1))


def test_a_learner_that_cannot_be_copied_is_refused() -> None:
    policy = PPOLearner(ActorCritic(4, 3), auxiliary=lambda states: states.mean())
    learners = Learners(policy, 2, 60.0)
    try:
        with pytest.raises(ConfigError, match="num_learners=2: a part of the learner cannot be copied"):
            learners.start()
    finally:
        learners.close()


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from test_learners import batch, learner
from echo_rl.training.learners import Learners
learners = Learners(learner("reinforce"), 2, 60.0)
learners.start()
print(*learners.pids, flush=True)
try:
    while True:
        learners.update(batch(0))
finally:
    learners.close()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_learners_end_with_the_trainer(how: signal.Signals) -> None:
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(how)
        try:
            _, words = process.communicate(timeout=90)
        finally:
            process.kill()
    assert process.returncode in (-how, 130) and ("KeyboardInterrupt" in words) == (how == signal.SIGINT), words
    until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(), "the other learner ends", 60)
