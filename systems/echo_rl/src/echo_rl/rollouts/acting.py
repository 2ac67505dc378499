"""How a policy of numbers chooses actions: by the last state alone, or by the last state and a latent plan of the last few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from echo_rl.core.latent_planning import LatentPlanningOptimizer, PlanningConfig
from echo_rl.models.actor_critic import logits_of

__all__ = ["Acting", "Spaces", "planner_of", "windows_of"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
_WIDTH = 64  # of the layers of a policy with a plan, as of one without


@dataclass(frozen=True)
class Spaces:
    """What a policy of numbers needs to know: the shape of an observation, how many actions there are, and the number of the first one."""

    shape: tuple[int, ...]
    actions: int
    first: int = 0

    @property
    def size(self) -> int:
        """Numbers of an observation."""
        return int(np.prod(self.shape))


def planner_of(spaces: Spaces, config: PlanningConfig, seed: int = 0) -> LatentPlanningOptimizer:
    """The encoder of plans and the policy that they condition, with weights that belong to this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LatentPlanningOptimizer(spaces.size, spaces.actions, config, width=_WIDTH)


class Acting:
    """Chooses actions in environments that are played side by side, and remembers the last states of each.

    Args:
        spaces: of the environments.
        count: how many environments there are.
        planning: the shape of plans. None acts on the last state alone, and nothing is remembered.
    """

    def __init__(self, spaces: Spaces, count: int, planning: PlanningConfig | None = None) -> None:
        self.planning = planning
        self._planner = None if planning is None else planner_of(spaces, planning).eval()
        self._windows = np.zeros((count, 0 if planning is None else planning.state_window_size, spaces.size), np.float32)
        self._begins = np.ones(count, bool)
        self._loaded: Any = None

    @property
    def history(self) -> Floats:
        """The states before the next ones, (window - 1, environments, numbers of a state), oldest first."""
        return self._windows[:, 1:].swapaxes(0, 1).copy()

    def begin(self, which: Iterable[int]) -> None:
        """Episodes begin in these environments: their next states are first ones."""
        self._begins[list(which)] = True

    def act(self, params: Mapping[str, Any], states: Floats, random: np.random.Generator | None, which: Iterable[int] | None = None) -> tuple[Ints, Floats]:
        """Actions for states (n, ...) of the environments ``which`` (all of them by default), and their log-probabilities, (n,) each.

        Args:
            params: published weights of the policy.
            random: draws the actions; None takes the likeliest ones.
        """
        if self._planner is None:
            return _chosen(logits_of(params, states), random)
        if params is not self._loaded:
            self._planner.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in params.items()})
            self._loaded = params
        rows = np.arange(len(self._windows)) if which is None else np.fromiter(which, np.intp)
        flat = states.reshape(len(states), -1)
        moved = np.concatenate([self._windows[rows, 1:], flat[:, None]], axis=1)
        # The first state of an episode stands for those before it.
        self._windows[rows] = np.where(self._begins[rows, None, None], flat[:, None], moved)
        self._begins[rows] = False
        with torch.no_grad():
            logits, _ = self._planner(torch.from_numpy(self._windows[rows]))
        return _chosen(logits.numpy(), random)


def windows_of(states: Floats, next_states: Floats, began: npt.NDArray[Any], history: Floats) -> tuple[Floats, Floats]:
    """The windows that ``Acting`` has seen at each step, and those after each step, both (steps, environments, window, numbers of a state).

    Args:
        states, next_states: (steps, environments, ...).
        began: (steps, environments), not 0 where a state is the first one of an episode.
        history: ``Acting.history`` before the first step.
    """
    steps, count = states.shape[:2]
    before = len(history)
    rows = np.concatenate([history, states.reshape(steps, count, -1)])
    # The row of the first state of the episode that each step belongs to; 0 where it began before the history.
    first = np.maximum.accumulate(np.where(began.astype(bool), before + np.arange(steps)[:, None], 0), axis=0)
    at = np.maximum(np.arange(steps)[:, None, None] + np.arange(before + 1), first[:, :, None])
    windows = rows[at, np.arange(count)[:, None]]
    following = np.concatenate([windows[:, :, 1:], next_states.reshape(steps, count, 1, -1)], axis=2)
    return windows, following


def _chosen(logits: npt.NDArray[Any], random: np.random.Generator | None) -> tuple[Ints, Floats]:
    logits = logits.astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    noise = 0.0 if random is None else random.gumbel(size=logits.shape)
    actions = (logprobs + noise).argmax(1)
    return actions, np.minimum(logprobs[np.arange(len(actions)), actions], 0.0).astype(np.float32)
