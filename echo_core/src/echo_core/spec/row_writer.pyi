from collections.abc import Iterable
from typing import Any, final

import numpy as np

from .pytree.flattener import Flattener

@final
class RowWriter:
    def __new__(cls, flattener: Flattener, arrays: Iterable[np.ndarray[Any, Any]]) -> RowWriter: ...
    @property
    def flattener(self) -> Flattener: ...
    @property
    def rows(self) -> int: ...
    def write(self, row: int, sample: Any) -> None: ...
