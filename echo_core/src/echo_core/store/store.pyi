from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from typing_extensions import disjoint_base

from .. import ReplayTable
from ..spec.spec import Spec
from .sample import HistSnapshot, Sample
from .storage import Storage

# The type does not distinguish a stream from a server of replay tables, whose `submit` and `submit_batch` return other types.
@disjoint_base
class Store:
    @property
    def spec(self) -> Spec: ...
    @property
    def storages(self) -> dict[str, Storage]: ...
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
        self,
        timeout: float | None = None,
        *,
        table: str | None = None,
        n: int | None = None,
        beta: float | None = None,
        units: Mapping[str, int] | None = None,
    ) -> Sample | None: ...  # a `RecordSample` of a table of samples of varying length
    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike, table: str | None = None) -> int: ...
    def ack(self, keys: npt.ArrayLike, table: str | None = None) -> int: ...
    def reset_histograms(self) -> None: ...
    def _open(self, storages: Mapping[str, Storage]) -> None: ...
    def _check_process(self) -> None: ...
    def _lock_pages(self) -> None: ...
    def _same_process(self) -> bool: ...
    def _close_store(self) -> None: ...
    def _storage(self, name: str | None = None) -> Storage: ...
    def _counters(self) -> dict[str, int]: ...
    def _histograms(self) -> dict[str, HistSnapshot]: ...

def _forked() -> None: ...
