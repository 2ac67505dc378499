from typing import Any

from typing_extensions import disjoint_base

from ...spec.spec import Spec
from ..local_insert import LocalInsert
from ..store_memory import StoreMemory

NO_TABLES: str
SLOW: str

@disjoint_base
class Stream(LocalInsert):
    def __init__(self, spec: Spec, batch_size: int, num_buffers: int, lease_timeout: float = 10.0, memory: StoreMemory | None = None) -> None: ...
    @property
    def _tap_wish(self) -> Any: ...
