from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, final

from typing_extensions import disjoint_base

from ..spec.spec import Spec

@disjoint_base
class Leaf:
    def __new__(cls, slot: Reservation) -> Self: ...

@disjoint_base
class Reservation:
    @property
    def sample(self) -> Any: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

@final
class CopiedReservation(Reservation):
    def __new__(cls, spec: Spec, send: Callable[[Any, float | None], None], timeout: float | None) -> Self: ...
