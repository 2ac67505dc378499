from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from echo_core.base.memory.client_memory import ClientMemory
from echo_core.spec.ragged import RaggedSpec
from echo_core.spec.spec import Spec
from echo_core.store.sampler import Sampler

from ..replay_table import ReplayTable
from .record_sample import RecordSample

ROW: Spec
GIVEN_UP_SECONDS: float
MOST_UNITS_ITEMS: int

@final
class PackedLease: ...

@disjoint_base
class RecordTable(ReplayTable):
    @property
    def records(self) -> RaggedSpec: ...
    def __init__(
        self, described: Any, batch_size: int, sampler: Sampler, remover: Sampler | None, beta: float, descriptor: int
    ) -> None: ...
    def sample(  # type: ignore[override]
        self, n: int | None = None, timeout: float | None = None, beta: float | None = None, units: Mapping[str, int] | None = None
    ) -> RecordSample | None: ...
    def draw_units(  # type: ignore[override]
        self, units: Mapping[str, int], timeout: float | None = None, beta: float | None = None, borrower: int = 0
    ) -> RecordSample | None: ...
    def peek(self, keys: npt.ArrayLike) -> tuple[RecordSample, npt.NDArray[np.bool_]]: ...
    def forget_lost_workers(self, seconds: float = 600.0) -> None: ...
    def forget(self, client: int) -> None: ...
    def check_records(self, lengths: npt.NDArray[Any], data: npt.NDArray[Any], waiting: npt.NDArray[Any]) -> None: ...
    def restore_records(
        self,
        rows: npt.NDArray[np.uint32],
        loaned: npt.NDArray[np.uint32],
        lengths: npt.NDArray[np.uint32],
        data: npt.NDArray[np.uint8],
        waiting: npt.NDArray[np.uint8],
    ) -> None: ...
    def use_memory(self, memory: ClientMemory) -> None: ...

def pool_bytes(records: RaggedSpec, items: int, most_bytes: int | None) -> int: ...
