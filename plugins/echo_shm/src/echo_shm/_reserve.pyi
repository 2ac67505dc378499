from typing_extensions import disjoint_base

from echo_core.wire.reservation import Reservation

from ._direct import Direct

def reserve(owner: Direct) -> Reserved | None: ...
def idle(owner: Direct) -> int: ...

@disjoint_base
class Reserved(Reservation): ...
