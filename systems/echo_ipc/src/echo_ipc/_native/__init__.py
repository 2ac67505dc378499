"""The compiled part: shared structures in C++ (`*.hpp`), and for each of them a module that makes it usable from Python."""

from .cell import NativeCell
from .guard import Guard, is_alive, start_of
from .ring import MOST_SLOTS, Hold, NativeRing
from .rows import Alone, NativeRows
from .segment import CELL, DONE, FULL, HELD, LATER, NOTHING, PAGE, RING, ROWS, FieldLayout, Mapping

__all__ = [
    "CELL",
    "DONE",
    "FULL",
    "HELD",
    "LATER",
    "MOST_SLOTS",
    "NOTHING",
    "PAGE",
    "RING",
    "ROWS",
    "Alone",
    "FieldLayout",
    "Guard",
    "Hold",
    "Mapping",
    "NativeCell",
    "NativeRing",
    "NativeRows",
    "is_alive",
    "start_of",
]
