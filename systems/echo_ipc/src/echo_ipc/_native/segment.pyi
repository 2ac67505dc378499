from collections.abc import Sequence
from typing import Final

from numpy.typing import DTypeLike
from typing_extensions import disjoint_base

CELL: Final = 1
RING: Final = 2
ROWS: Final = 3
PAGE: Final = 4096
DONE: Final = 0
LATER: Final = 1
NOTHING: Final = 2
FULL: Final = 3
HELD: Final = 4

@disjoint_base
class Mapping:
    def __new__(cls, fd: int, size: int, writable: bool) -> Mapping: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def size(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    def make(self, kind: int, nonce: int, schema: bytes, words: Sequence[int]) -> None: ...
    def wrong(self, kind: int) -> str | None: ...
    @property
    def nonce(self) -> int: ...
    @property
    def words(self) -> tuple[int, ...]: ...
    @property
    def schema(self) -> bytes: ...

@disjoint_base
class Layout:
    def __init__(self, dtypes: Sequence[DTypeLike], shapes: Sequence[Sequence[int]], offsets: Sequence[int], rows: bool = False) -> None: ...
    @property
    def count(self) -> int: ...

@disjoint_base
class _Closing:
    @property
    def mapping(self) -> Mapping: ...
    def close(self) -> None: ...
