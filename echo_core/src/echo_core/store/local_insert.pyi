import numpy.typing as npt
from typing_extensions import disjoint_base

from .sampler import Priorities
from .storage import Storage

@disjoint_base
class LocalInsert(Storage):
    @property
    def refuses_zero(self) -> bool: ...

def new_priorities(priorities: npt.ArrayLike, count: int, refuses_zero: bool = False) -> Priorities: ...
