import numpy.typing as npt
from typing_extensions import disjoint_base

from .sampler import Priorities

@disjoint_base
class Inlet: ...

def new_priorities(priorities: npt.ArrayLike, count: int) -> Priorities: ...
