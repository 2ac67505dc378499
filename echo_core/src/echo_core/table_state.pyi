from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .keyed_table import KeyedTable

def snapshot(table: KeyedTable, most: int = 67108864) -> dict[str, Any]: ...
def restore(
    table: KeyedTable, snapshot: Mapping[str, Any], leaves: Sequence[npt.NDArray[Any]], gone: npt.NDArray[np.integer[Any]]
) -> None: ...
