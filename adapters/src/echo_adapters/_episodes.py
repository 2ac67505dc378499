"""What happened in a step of a vector environment: the true next observations, and where episodes ended, in every autoreset mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from ._spaces import array, exact, structured

__all__ = ["Happened", "Watcher"]


@dataclass(frozen=True)
class Happened:
    """One step of N environments. Leaves have shape `(N, *leaf.shape)`.

    Attributes:
        real: bool (N,); false where the step was no transition, because it only reset or the episode was over.
        known: bool (N,); false where an episode ended and the environments do not tell its final observation.
    """

    obs: Any
    action: Any
    reward: np.ndarray  # float32 (N,)
    next_obs: Any
    terminated: np.ndarray  # bool (N,)
    truncated: np.ndarray  # bool (N,)
    real: np.ndarray
    known: np.ndarray


class Watcher(VectorWrapper, ABC):
    """Changes nothing. It tells `_happened` what each step was, and `_was_reset` which environments the caller reset."""

    def __init__(self, env: VectorEnv, autoreset_mode: AutoresetMode | str | None) -> None:
        super().__init__(env)
        self._mode = _mode(env, autoreset_mode)
        self._obs: Any = None
        self._over = np.zeros(self.num_envs, bool)  # the environments whose next step is no transition

    @abstractmethod
    def _happened(self, step: Happened) -> None:
        """Use what happened in a step. If it raises, `_lost` is called, and the caller of `step` gets the error."""

    def _lost(self) -> None:
        """The environments have stepped, and `_happened` raised or could not be called."""

    def _was_reset(self, which: np.ndarray) -> None:
        """`which` is bool (N,)."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = None if options is None or "reset_mask" not in options else np.array(options["reset_mask"], bool)  # Gymnasium removes it from options
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs = structured(self.single_observation_space, obs, "obs")  # copied: environments may write into the same arrays again
        which = np.ones(self.num_envs, bool) if mask is None else mask
        self._over = self._over & ~which
        self._was_reset(which)
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._obs is None:
            raise RuntimeError("call reset() before step(), and again after a step whose observations could not be read")
        action = exact(self.single_action_space, actions, self.num_envs, "action")  # before the environments step: an error changes nothing
        obs, reward, terminated, truncated, info = self.env.step(actions)
        try:
            self._happened(self._read(action, obs, reward, terminated, truncated, info))
        except BaseException:
            self._lost()
            raise
        return obs, reward, terminated, truncated, info

    def _read(self, action: Any, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Happened:
        before, self._obs = self._obs, None  # unknown, if the lines below raise
        following = structured(self.single_observation_space, obs, "obs")
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        over, real = terminated | truncated, ~self._over
        self._obs = following
        if self._mode is AutoresetMode.NEXT_STEP:
            self._over = over
        elif self._mode is AutoresetMode.DISABLED:
            self._over = self._over | over
        final, known = self._finals(following, over, info) if self._mode is AutoresetMode.SAME_STEP else (following, np.ones_like(over))
        return Happened(before, action, np.array(array(reward), np.float32), final, terminated, truncated, real, known)

    def _flags(self, value: Any, name: str) -> np.ndarray:
        flags = np.array(array(value), bool)  # a copy, because environments may write into the same array again
        if flags.shape != (self.num_envs,):
            raise ValueError(f"the environments returned {name} of shape {flags.shape}, not {(self.num_envs,)}")
        return flags

    def _finals(self, following: Any, over: np.ndarray, info: Any) -> tuple[Any, np.ndarray]:
        """Return `following` with the final observations of ended episodes in place of the first ones of the next episodes, and where they are known.

        `info["final_obs"]` has an entry for each environment (Gymnasium), or is batched as observations are (simulators, ALE). Without the mask
        `info["_final_obs"]`, it is valid for every episode that ended.
        """
        finals = info.get("final_obs") if isinstance(info, Mapping) else None
        if finals is None or not over.any():
            return following, ~over
        known = ~over | (self._flags(info["_final_obs"], "info['_final_obs']") if "_final_obs" in info else True)
        final = optree.tree_map(np.copy, following)
        each = isinstance(finals, list) or (isinstance(finals, np.ndarray) and finals.dtype == object)
        if each and len(finals) != self.num_envs:
            raise ValueError(f"info['final_obs'] must have an entry for each of the {self.num_envs} environments, not {len(finals)}")
        batch = None if each else structured(self.single_observation_space, finals, "info['final_obs']")
        for index in np.flatnonzero(over & known):
            if each and finals[index] is None:
                known[index] = False
                continue
            if each:
                one = structured(self.single_observation_space, finals[index], f"info['final_obs'][{index}]")
            else:
                one = optree.tree_map(lambda leaf, i=index: _row(leaf, i, self.num_envs), batch)
            optree.tree_map(lambda into, value, i=index: _put(into, value, i), final, one)
        return final, known


def _mode(env: VectorEnv, given: AutoresetMode | str | None) -> AutoresetMode:
    """Return when the environments reset themselves, as they declare it or as the caller says.

    Raises:
        ValueError: nobody says it, or the two contradict each other.
    """
    declared = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if declared is None and given is None:
        raise ValueError(
            f"{env} does not declare when it resets ended environments, and a wrong guess would make wrong transitions; find out, and give "
            "autoreset_mode=AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED (gymnasium.vector). Simulators on a GPU mostly use SAME_STEP"
        )
    modes = [AutoresetMode(mode) for mode in (declared, given) if mode is not None]
    if modes[0] is not modes[-1]:
        raise ValueError(f"{env} declares autoreset mode {modes[0].name}, but autoreset_mode is {modes[1].name}; leave the argument out")
    return modes[0]


def _row(leaf: np.ndarray, index: int, count: int) -> np.ndarray:
    if leaf.ndim == 0 or len(leaf) != count:
        raise ValueError(f"info['final_obs'] must have an entry for each of the {count} environments, not the shape {leaf.shape}")
    return np.asarray(leaf[index])


def _put(into: np.ndarray, value: np.ndarray, index: int) -> None:
    if value.shape != into.shape[1:]:
        raise ValueError(f"info['final_obs'] has an observation of shape {value.shape} for environment {index}, not {into.shape[1:]}")
    into[index] = value
