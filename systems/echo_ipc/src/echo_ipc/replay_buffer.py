"""Transitions from collectors to a learner: `ReplayBuffer` as unilab.ipc has it, on `Rows`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from echo_core.base.errors import SpecError

from .arrays import tensors
from .shared_buffer import SharedBufferBase

__all__ = ["ReplayBuffer"]


class ReplayBuffer(SharedBufferBase):
    """The newest transitions. Collectors add, the learner samples, and no row is ever torn, although neither waits for the other.

    Args:
        capacity: how many transitions are kept.
        obs_dim, action_dim: widths of observations and actions.
        device: where samples go: a device of torch; or "numpy", and they are arrays, without torch.
        defer_gpu, packed_cpu_storage: are ignored; rows are always packed and in the CPU's memory.
        critic_dim: width of the critic's observations; 0: there are none.
        seed: for the draws of `sample`. None: of torch's generator, so that torch.manual_seed makes them reproducible; of the system without torch.

    Raises:
        MemoryError: there is not enough memory; it is reserved here.

    Attributes:
        rows: the table, which can be saved and loaded; see `Rows`.
        trace_recorder: an object with `add_slice`, which is told how long each addition and sample took; None: nobody.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        device: str,
        defer_gpu: bool = False,
        critic_dim: int = 0,
        packed_cpu_storage: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        del packed_cpu_storage
        widths = {"obs": obs_dim, "next_obs": obs_dim, "actions": action_dim, "rewards": None, "dones": None, "truncated": None}
        if critic_dim:
            widths |= {"critic": critic_dim, "next_critic": critic_dim}
        columns = {name: (() if width is None else (width,), "float32") for name, width in widths.items()}
        super().__init__(capacity, device, defer_gpu, columns=columns)
        self._obs_dim, self._action_dim, self._critic_dim = obs_dim, action_dim, critic_dim
        self._packed_cpu_storage = True
        self.last_incremental_h2d_time_s = 0.0
        self.trace_recorder: Any = None
        self.trace_thread_time = False
        self.trace_cuda_events = True
        self._seed = seed
        self._generator: np.random.Generator | None = None
        self._places: dict[str, Any] = {}
        column = 0
        for name, width in widths.items():
            self._places[name] = column if width is None else slice(column, column + width)
            column += width or 1
        self._obs_sl, self._nobs_sl, self._act_sl = (self._places[name] for name in ("obs", "next_obs", "actions"))
        self._rew_col, self._done_col, self._trunc_col = (self._places[name] for name in ("rewards", "dones", "truncated"))
        if critic_dim:
            self._critic_sl, self._ncritic_sl = self._places["critic"], self._places["next_critic"]

    @property
    def _storage(self) -> Any:
        """float32 [capacity, width]: the memory of all rows. Nothing protects who reads here from rows that are being added."""
        array = self.rows.storage().view(np.float32)
        if self.device == "numpy":
            return array
        import torch

        return torch.from_numpy(array)

    # ---- adding

    def add(
        self,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        dones: Any,
        truncated: Any,
        terminal_mask: Any = None,
        terminal_next_obs: Any = None,
        critic: Any = None,
        next_critic: Any = None,
        terminal_next_critic: Any = None,
    ) -> None:
        """Add a batch of n transitions. Of more than `capacity`, the last ones stay.

        Args:
            obs, next_obs: tensors or arrays [n, obs_dim] of numbers, which become float32, as everything here.
            actions: [n, action_dim].
            rewards, dones, truncated: [n], or [n, 1]. An environment is done when it was terminated or truncated.
            terminal_mask: bool [n], or [n, 1]: rows whose next observation is that of `terminal_next_obs`, because `next_obs` begins a new episode there.
            terminal_next_obs: [n, obs_dim]; without it the mask has no effect.
            critic, next_critic: [n, critic_dim]; needed if `critic_dim` is not 0, and ignored otherwise.
            terminal_next_critic: [n, critic_dim], as `terminal_next_obs`.

        Raises:
            ValueError: there are no critic observations although `critic_dim` is not 0.
            SpecError: an argument has another shape, or is not of numbers. Nothing was added.
            ClosedError: after close().
        """
        started = time.perf_counter_ns() if self.trace_recorder is not None else 0
        columns = [obs, next_obs, actions, rewards, dones, truncated]
        if self._critic_dim:
            if critic is None or next_critic is None:
                raise ValueError("a ReplayBuffer with critic_dim > 0 needs critic and next_critic")
            columns += [critic, next_critic]
        n = len(obs)
        if terminal_mask is not None or not self.rows._add_as_they_are(columns):
            self._add_converted(columns, n, terminal_mask, {"next_obs": terminal_next_obs, "next_critic": terminal_next_critic})
        if self.trace_recorder is not None:
            self._trace("replay/add", started, n)

    def _add_converted(self, columns: list[Any], n: int, terminal_mask: Any, terminal: dict[str, Any]) -> None:
        """Add what is not float32, not contiguous, not of the usual shape or more than fits at once, or has rows to replace."""
        arrays = {name: self._column(name, value, n) for name, value in zip(self._places, columns)}
        if terminal_mask is not None:
            mask = tensors.as_array(terminal_mask)
            if mask.shape not in ((n,), (n, 1)):
                raise SpecError(f"terminal_mask must be bool[{n}], but has the shape {list(mask.shape)}")
            mask = mask.reshape(n).astype(bool)
            for name, value in terminal.items():
                if value is not None and name in arrays and mask.any():
                    given = self._column(name, value, n, f"terminal_{name}")
                    arrays[name] = np.where(mask[:, None], given, arrays[name])
        for first in range(0, n, self.capacity):
            self.rows._add([array[first : first + self.capacity] for array in arrays.values()])

    def _column(self, name: str, value: Any, n: int, called: str | None = None) -> np.ndarray:
        if tensors.is_tensor(value) and value.dtype is not _float32_of_torch():
            value = value.detach().float()  # bfloat16 would give its bits
        array = tensors.as_array(value)
        place = self._places[name]
        shape = (n,) if isinstance(place, int) else (n, place.stop - place.start)
        if array.shape != shape and not (isinstance(place, int) and array.shape == (n, 1)):
            raise SpecError(f"{called or name} must have the shape {list(shape)}, but has {list(array.shape)}")
        if array.dtype.kind not in "biuf":
            raise SpecError(f"{called or name} must be numbers that float32 can hold, not {array.dtype.name}")
        return array.reshape(shape) if array.dtype == np.float32 else array.reshape(shape).astype(np.float32)

    # ---- sampling

    def sample(self, batch_size: int) -> dict[str, Any]:
        """`batch_size` transitions that are drawn uniformly, with replacement: float32 tensors on `device` (arrays if that is "numpy").

        Returns:
            "obs", "next_obs", "actions" [batch_size, width]; "rewards", "dones", "truncated" [batch_size]; "critic" and "next_critic" if there are any. They
            are parts of one tensor.

        Raises ValueError if nothing was added yet, and ClosedError after close().
        """
        started = time.perf_counter_ns() if self.trace_recorder is not None else 0
        self.last_incremental_h2d_time_s = 0.0
        packed = np.empty((batch_size, self.rows.row_bytes), np.uint8)
        self.rows.sample_packed(batch_size, generator=self._draws(), out=packed)
        chunk: Any = packed.view(np.float32)
        if self.device != "numpy":
            import torch

            chunk = torch.from_numpy(chunk).to(self.device)
        if self.trace_recorder is not None:
            self._trace("replay/sample", started, batch_size)
        return self._fields(chunk)

    def _fields(self, packed: Any) -> dict[str, Any]:
        """The columns of packed rows [n, width]."""
        return {name: packed[:, place] for name, place in self._places.items()}

    def _draws(self) -> np.random.Generator:
        if self._generator is None:
            seed = self._seed
            if seed is None and self.device != "numpy":
                import torch

                seed = int(torch.randint(0, 2**62, ()))
            self._generator = np.random.default_rng(seed)
        return self._generator

    def _trace(self, name: str, started: int, n: int) -> None:
        args = {"batch_size": n, "device": self.device}
        self.trace_recorder.add_slice(name, category="replay", start_ns=started, end_ns=time.perf_counter_ns(), args=args)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"trace_recorder": None, "_generator": None}


def _float32_of_torch() -> Any:
    import torch

    return torch.float32
