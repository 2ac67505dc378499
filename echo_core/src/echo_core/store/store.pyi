from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
from typing_extensions import disjoint_base

from ..spec.spec import Spec
from .replay.replay_table import ReplayTable
from .sample import Sample
from .store_memory import StoreMemory
from .stream.stream import Stream

# The type does not distinguish a stream from a server of replay tables, whose `submit` and `submit_batch` return other types.
@disjoint_base
class Store(Stream):
    @property
    def tables(self) -> dict[str, ReplayTable]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def num_buffers(self) -> int: ...
    def table(self, name: str | None = None) -> ReplayTable: ...
    def submit(
        self,
        sample: Any,
        timeout: float | None = 30.0,
        table: str | None = None,
        priority: float | None = None,
        policy_version: int | None = None,
    ) -> int | Any: ...  # the item's key; None for a stream
    def submit_batch(
        self,
        samples: Any,
        timeout: float | None = 30.0,
        table: str | None = None,
        priorities: npt.ArrayLike | None = None,
        policy_version: int | None = None,
    ) -> Any: ...  # Keys; for a stream an int: how many samples
    def sample(
        self, timeout: float | None = None, *, table: str | None = None, n: int | None = None, beta: float | None = None
    ) -> Sample | None: ...
    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike, table: str | None = None) -> int: ...
    def ack(self, keys: npt.ArrayLike, table: str | None = None) -> int: ...
    def _open(
        self, spec: Spec, batch_size: int, num_buffers: int, lease_timeout: float, memory: StoreMemory | None = None
    ) -> None: ...
    def _open_tables(self, tables: dict[str, ReplayTable], batch_size: int) -> None: ...
    def _check_process(self) -> None: ...
    def _lock_pages(self) -> None: ...
    def _same_process(self) -> bool: ...
    def _close_store(self) -> None: ...
    def _count_workers(self, workers: int) -> None: ...

def _forked() -> None: ...
def _sum_of_tables(tables: Iterable[ReplayTable]) -> dict[str, int]: ...
