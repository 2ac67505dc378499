"""Makes segments of episodes: so many steps of some environments that observe numbers, as one record for each ticket."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_core import ConfigError, EchoError
from echo_rl.environments import CheckedEnvironment, EnvironmentFailure, make_environment
from echo_rl.models.actor_critic import logits_of
from echo_rl.rollouts.actor import Policy
from echo_rl.rollouts.tickets import Ticket
from echo_rl.rollouts.timed_calls import TimedCalls, TimeoutFailure

__all__ = ["SegmentCollector", "SegmentRules", "Spaces", "draw", "leaves_of", "spaces_of"]

_log = logging.getLogger("echo.rl")
Floats = npt.NDArray[np.float32]
_TASKS = 1 << 30


@dataclass(frozen=True)
class Spaces:
    """What a policy of numbers needs to know: numbers of an observation, its shape, and how many actions there are."""

    shape: tuple[int, ...]
    actions: int
    first: int = 0

    @property
    def size(self) -> int:
        """Numbers of an observation."""
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class SegmentRules:
    """How segments are made; an actor gets it as JSON.

    Attributes:
        environment, options: what ``make_environment`` takes.
        seed: of all draws.
        environments: how many environments a ticket steps side by side. steps: how often.
        max_steps: the most steps of an episode; None leaves it to the environment.
        timeout: the most seconds that a step of all environments may take.
    """

    environment: str
    seed: int
    environments: int
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    timeout: float = 30.0


def spaces_of(environment: CheckedEnvironment) -> Spaces:
    """The spaces of an environment of Gymnasium's kind. Raises ConfigError for one that has no discrete actions or does not observe a box of numbers."""
    inner, spaces = environment.environment, importlib.import_module("gymnasium.spaces")
    seen, acts = getattr(inner, "observation_space", None), getattr(inner, "action_space", None)
    if not isinstance(acts, spaces.Discrete):
        raise ConfigError(f"environment {environment.name}: algorithm 'ppo' needs discrete actions, and the action space is {acts}")
    if not isinstance(seen, spaces.Box):
        raise ConfigError(f"environment {environment.name}: algorithm 'ppo' needs observations in a box of numbers, and the observation space is {seen}")
    return Spaces(tuple(seen.shape), int(acts.n), int(acts.start))


def leaves_of(rules: SegmentRules, spaces: Spaces) -> dict[str, Any]:
    """The example of a record: arrays (steps, environments)."""
    both = (rules.steps, rules.environments)
    states = np.zeros((*both, *spaces.shape), np.float32)
    numbers, flags = np.zeros(both, np.float32), np.zeros(both, np.uint8)
    steps = {"states": states, "next_states": states, "actions": np.zeros(both, np.int64), "log_probs": numbers, "rewards": numbers}
    steps |= {"terminated": flags, "truncated": flags, "mask": flags}
    return {**steps, "returns": np.zeros(both[0] * both[1], np.float32), "ended": np.int64(0), "failed": np.int64(0)}


def draw(params: Mapping[str, Any], states: Floats, random: np.random.Generator | None) -> tuple[npt.NDArray[np.int64], Floats]:
    """Actions for states (n, ...) and their log-probabilities; without ``random`` the likeliest ones."""
    logits = logits_of(params, states).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    noise = 0.0 if random is None else random.gumbel(size=logits.shape)
    actions = (logprobs + noise).argmax(1)
    return actions, np.minimum(logprobs[np.arange(len(actions)), actions], 0.0).astype(np.float32)


class SegmentCollector:
    """Steps environments that go on from one ticket to the next.

    A step that fails is masked, and its environment begins another episode. ``returns`` has the rewards of the episodes that ended in the segment, one
    after the other, and zeros up to its length; ``ended`` is their number.

    Args:
        rules: of the segments.
        index: of this actor, so that its episodes are others than those of the other actors.
    """

    def __init__(self, rules: SegmentRules, index: int = 0) -> None:
        self.rules, self._calls = rules, TimedCalls(rules.timeout)
        self._environments = [self._made() for _ in range(rules.environments)]
        self.spaces = spaces_of(self._environments[0])
        self._random = np.random.default_rng([rules.seed, index])
        self._states = np.zeros((rules.environments, *self.spaces.shape), np.float32)
        self._ages = np.zeros(rules.environments, np.int64)
        self._sums = np.zeros(rules.environments)
        self._fresh = set(range(rules.environments))
        self._at = 0

    @property
    def leaves(self) -> dict[str, Any]:
        """The example of a record."""
        return leaves_of(self.rules, self.spaces)

    def collect(self, ticket: Ticket, policy: Policy, newer: Callable[[int], Policy | None]) -> dict[str, Any]:
        """See ``Collector``."""
        record = {name: np.zeros_like(leaf) for name, leaf in self.leaves.items()}
        returns: list[float] = []
        failed = 0
        for t in range(self.rules.steps):
            failed += self._begin()
            actions, logprobs = draw(policy.params, self._states, self._random)
            record["states"][t], record["actions"][t], record["log_probs"][t] = self._states, actions, logprobs
            for i, found in enumerate(self._stepped(actions)):
                record["next_states"][t, i] = self._states[i]
                if found is None:
                    failed += 1
                    self._fresh.add(i)
                    continue
                observation, reward, terminated, truncated = found
                self._ages[i] += 1
                self._sums[i] += reward
                truncated = truncated or (self.rules.max_steps is not None and self._ages[i] >= self.rules.max_steps and not terminated)
                record["next_states"][t, i], record["rewards"][t, i], record["mask"][t, i] = observation, reward, 1
                record["terminated"][t, i], record["truncated"][t, i] = terminated, truncated
                self._states[i] = observation
                if terminated or truncated:
                    returns.append(float(self._sums[i]))
                    self._fresh.add(i)
        record["returns"][: len(returns)] = returns
        return {**record, "ended": np.int64(len(returns)), "failed": np.int64(failed)}

    def close(self) -> None:
        """Close the environments."""
        for environment in self._environments:
            environment.close()
        self._calls.close()

    def _made(self) -> CheckedEnvironment:
        return make_environment(self.rules.environment, **self.rules.options)

    def _begin(self) -> int:
        """Begin an episode where one has ended. Return how often that failed; what fails for ever ends the actor."""
        failed = 0
        for i in sorted(self._fresh):
            for attempt in range(4):
                seed = int(self._random.integers(_TASKS))
                try:
                    state = self._calls.call(f"environment {self.rules.environment}: reset({seed})", self._environments[i].reset, seed)
                    self._states[i] = self._checked(state)
                    break
                except EnvironmentFailure as error:
                    failed += 1
                    if attempt == 3:
                        raise
                    self._replace(i, error)
            self._ages[i], self._sums[i] = 0, 0.0
        self._fresh.clear()
        return failed

    def _stepped(self, actions: npt.NDArray[np.int64]) -> list[tuple[Floats, float, bool, bool] | None]:
        found: list[tuple[Floats, float, bool, bool] | None] = [None] * len(actions)
        begun: list[int] = []
        faults: dict[int, EnvironmentFailure] = {}

        def step(turn: int) -> None:
            for i, environment in enumerate(environments):
                if turn != len(hanging):
                    return  # this call was given up, and another one steps the environments that are left
                if i in begun:
                    continue
                begun.append(i)
                try:
                    transition = environment.step(int(actions[i]) + self.spaces.first)
                    found[i] = self._checked(transition.observation), transition.reward, transition.terminated, transition.truncated
                except EnvironmentFailure as error:
                    faults[i] = error

        environments, hanging = list(self._environments), list[int]()
        done = False
        while not done:
            try:
                self._calls.call(f"environment {self.rules.environment}: step()", step, len(hanging))
                done = True
            except TimeoutFailure as error:  # the one that was begun last hangs; the others go on
                faults[begun[-1]] = error
                hanging.append(begun[-1])
        for i, error in faults.items():
            self._replace(i, error)
        return [None if i in faults else one for i, one in enumerate(found)]

    def _checked(self, observation: Any) -> Floats:
        found = np.asarray(observation, np.float32)
        if found.shape != self.spaces.shape or not np.isfinite(found).all():
            raise EnvironmentFailure(f"environment {self.rules.environment}: the observation {observation!r:.80} is not finite or has another shape")
        return found

    def _replace(self, i: int, error: EchoError) -> None:
        _log.warning("%s; this step does not count, and another episode begins", error)
        self._environments[i] = self._made()
