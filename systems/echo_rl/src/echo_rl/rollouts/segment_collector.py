"""Makes segments of episodes: so many steps of some environments that observe numbers, as one record for each ticket."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from echo_core import ConfigError
from echo_rl.core import PlanningConfig
from echo_rl.environments import CheckedEnvironment, EnvironmentFailure, make_environment
from echo_rl.rollouts.acting import Acting, Spaces
from echo_rl.rollouts.actor import Policy
from echo_rl.rollouts.tickets import Ticket
from echo_rl.rollouts.timed_calls import TimedCalls

__all__ = ["SegmentCollector", "SegmentRules", "leaves_of", "spaces_of"]

_log = logging.getLogger("echo.rl")
Floats = npt.NDArray[np.float32]
_TASKS = 1 << 30


@dataclass(frozen=True)
class SegmentRules:
    """How segments are made; an actor gets it as JSON.

    Attributes:
        environment, options: what ``make_environment`` takes.
        seed: of all draws.
        environments: how many environments a ticket steps side by side. steps: how often.
        max_steps: the most steps of an episode; None leaves it to the environment.
        timeout: the most seconds that a step of all environments may take.
        planning: the shape of the plans that condition the policy; None for a policy of the last state alone.
    """

    environment: str
    seed: int
    environments: int
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    timeout: float = 30.0
    planning: PlanningConfig | None = None

    #: How many tickets an actor takes together.
    at_once: ClassVar[int] = 1


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
    """The example of a record: arrays (steps, environments). With plans it also has ``began`` and ``history``, see ``windows_of``."""
    both = (rules.steps, rules.environments)
    states = np.zeros((*both, *spaces.shape), np.float32)
    numbers, flags = np.zeros(both, np.float32), np.zeros(both, np.uint8)
    steps = {"states": states, "next_states": states, "actions": np.zeros(both, np.int64), "log_probs": numbers, "rewards": numbers}
    steps |= {"terminated": flags, "truncated": flags, "mask": flags}
    if rules.planning is not None:
        steps |= {"began": flags, "history": np.zeros((rules.planning.state_window_size - 1, rules.environments, spaces.size), np.float32)}
    return {**steps, "returns": np.zeros(both[0] * both[1], np.float32), "ended": np.int64(0), "failed": np.int64(0)}


class SegmentCollector:
    """Steps environments that go on from one ticket to the next.

    A step that fails is masked, and its environment begins another episode. ``returns`` has the rewards of the episodes that ended in the segment, one
    after the other, and zeros up to its length; ``ended`` is their number.

    Args:
        rules: of the segments.
        index: of this actor, so that its episodes are others than those of the other actors.
    """

    at_once = SegmentRules.at_once

    def __init__(self, rules: SegmentRules, index: int = 0) -> None:
        self.rules, self._calls = rules, TimedCalls(rules.timeout)
        self._environments = [self._made() for _ in range(rules.environments)]
        self.spaces = spaces_of(self._environments[0])
        self._acting = Acting(self.spaces, rules.environments, rules.planning)
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

    def collect(self, tickets: Sequence[Ticket], policy: Policy, newer: Callable[[int], Policy | None]) -> list[dict[str, Any]]:
        """See ``Collector``."""
        return [self._segment(policy) for _ in tickets]

    def _segment(self, policy: Policy) -> dict[str, Any]:
        record = {name: np.zeros_like(leaf) for name, leaf in self.leaves.items()}
        returns: list[float] = []
        failed, planned = 0, self.rules.planning is not None
        if planned:
            record["history"] = self._acting.history
        for t in range(self.rules.steps):
            fresh = sorted(self._fresh)
            failed += self._begin()
            self._acting.begin(fresh)
            if planned:
                record["began"][t, fresh] = 1
            actions, logprobs = self._acting.act(policy.params, self._states, self._random)
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
        self._calls.close([each.close for each in self._environments], [f"environment {self.rules.environment}: close()"] * len(self._environments))

    def _made(self) -> CheckedEnvironment:
        return make_environment(self.rules.environment, **self.rules.options)

    def _begin(self) -> int:
        """Begin an episode where one has ended. Return how often that failed; what fails for ever ends the actor."""
        failed = 0
        for attempt in range(4):
            fresh = sorted(self._fresh)
            seeds = self._random.integers(_TASKS, size=len(fresh)).tolist()
            calls = [partial(self._reset, self._environments[i], seed) for i, seed in zip(fresh, seeds, strict=True)]
            for i, found in zip(fresh, self._made_calls(calls, "reset()", fresh), strict=True):
                if not isinstance(found, BaseException):
                    self._states[i], self._ages[i], self._sums[i] = found, 0, 0.0
                    self._fresh.discard(i)
                elif attempt == 3:
                    raise found
                else:
                    failed += 1
            if not self._fresh:
                break
        return failed

    def _reset(self, environment: CheckedEnvironment, seed: int) -> Floats:
        return self._checked(environment.reset(seed))

    def _stepped(self, actions: npt.NDArray[np.int64]) -> list[tuple[Floats, float, bool, bool] | None]:
        """What followed each action; None where the environment has failed."""

        def step(environment: CheckedEnvironment, action: int) -> tuple[Floats, float, bool, bool]:
            transition = environment.step(action + self.spaces.first)
            return self._checked(transition.observation), transition.reward, transition.terminated, transition.truncated

        calls = [partial(step, environment, action) for environment, action in zip(self._environments, actions.tolist(), strict=True)]
        return [None if isinstance(one, BaseException) else one for one in self._made_calls(calls, "step()", range(len(calls)))]

    def _made_calls(self, calls: Sequence[Callable[[], Any]], what: str, indices: Iterable[int]) -> list[Any]:
        """Make calls of some environments; those that fail are replaced."""
        found = self._calls.each(calls, [f"environment {self.rules.environment}: {what}"] * len(calls))
        for i, one in zip(indices, found, strict=True):
            if isinstance(one, EnvironmentFailure):
                _log.warning("%s; this step does not count, and another episode begins", one)
                self._environments[i] = self._made()
            elif isinstance(one, BaseException):
                raise one
        return found

    def _checked(self, observation: Any) -> Floats:
        found = np.asarray(observation, np.float32)
        if found.shape != self.spaces.shape or not np.isfinite(found).all():
            raise EnvironmentFailure(f"environment {self.rules.environment}: the observation {observation!r:.80} is not finite or has another shape")
        return found
