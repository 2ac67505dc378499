"""The compiled part: shared structures in C++ (`*.hpp`), and for each of them a module that makes it usable from Python."""

from .cell import Cell
from .guard import Guard, is_alive, start_of
from .ring import MOST_SLOTS, Hold, Ring
from .rows import Rows
from .segment import CELL, DONE, FULL, HELD, LATER, NOTHING, PAGE, RING, ROWS, Layout, Mapping

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
    "Cell",
    "Guard",
    "Hold",
    "Layout",
    "Mapping",
    "Ring",
    "Rows",
    "is_alive",
    "start_of",
]
