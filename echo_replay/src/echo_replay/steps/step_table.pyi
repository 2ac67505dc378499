from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from echo_core.spec.spec import Spec
from echo_core.store.sampler import Sampler

from ..tables.replay_table import ReplayTable
from .step_layout import Layout, StepSample
from .steps import StepStreams

SPAN: Spec

@disjoint_base
class StepTable(ReplayTable):
    layout: Layout
    step: Spec
    def __init__(
        self, described: Any, batch_size: int, sampler: Sampler, remover: Sampler | None, beta: float, descriptor: int
    ) -> None: ...
    def writer(self) -> StepStreams: ...
    restored_clients: set[int]
    def end_streams(self, client_id: str) -> int: ...
    def sample(self, n: int | None = None, timeout: float | None = None, beta: float | None = None) -> StepSample | None: ...  # type: ignore[override]
    def peek(self, keys: npt.ArrayLike) -> tuple[StepSample, npt.NDArray[np.bool_]]: ...
    def below(self, rows: npt.NDArray[np.uint32]) -> dict[str, npt.NDArray[Any]]: ...
    @property
    def rows_spec(self) -> Spec: ...
    def flush(self) -> None: ...
    def step_rows(self, leaf: int, number: int, n: int) -> tuple[npt.NDArray[Any], int]: ...
    def restore_steps(
        self,
        snapshot: dict[str, Any],
        stored: npt.NDArray[np.uint32],
        spans: npt.NDArray[np.uint64],
        leaves: list[npt.NDArray[Any]],
        first: int,
    ) -> None: ...
    @property
    def steps_held(self) -> int: ...
