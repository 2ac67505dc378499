"""Draws curves with characters: braille lines and sparklines."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column][row] of one character


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as bars between 0 and their maximum; padded on the left."""
    shown = [0.0 if value != value else max(0.0, value) for value in values[-width:]]
    top = max(shown, default=0.0) or 1.0
    bars = "".join(_BARS[min(7, int(8 * value / top))] for value in shown)
    return bars.rjust(width)


def curve(
    xs: Sequence[float],
    ys: Sequence[float],
    width: int,
    height: int,
    x_max: float,
    y_max: float,
) -> list[str]:
    """A line through (xs, ys) over [0, x_max] x [0, y_max] as ``height`` rows of ``width``.

    ``xs`` must rise. Every character holds 2 x 4 dots. If several points fall on one column of dots,
    all heights between them are filled, so that no peak is lost.
    """
    columns, rows = 2 * width, 4 * height
    grid = [[0] * width for _ in range(height)]
    spans: dict[int, tuple[int, int]] = {}
    previous: tuple[int, int] | None = None
    for x, y in zip(xs, ys, strict=True):
        if y != y:
            continue
        column = min(columns - 1, max(0, int(columns * x / x_max)))
        row = min(rows - 1, max(0, int(rows * y / y_max)))
        if previous is not None:
            steps = max(1, column - previous[0])
            for step in range(1, steps + 1):
                at = previous[0] + step if column > previous[0] else column
                level = round(previous[1] + (row - previous[1]) * step / steps)
                before = round(previous[1] + (row - previous[1]) * (step - 1) / steps)
                _widen(spans, at, level)
                # Half of the rise belongs to the previous column, so that steep lines stay connected.
                _widen(spans, at, (level + before) // 2)
                _widen(spans, max(previous[0], at - 1), (level + before) // 2)
        _widen(spans, column, row)
        previous = (column, row)
    for column, (low, high) in spans.items():
        for row in range(low, high + 1):
            line = height - 1 - row // 4
            grid[line][column // 2] |= _DOTS[column % 2][3 - row % 4]
    return ["".join(chr(0x2800 + cell) for cell in line) for line in grid]


def _widen(spans: dict[int, tuple[int, int]], column: int, row: int) -> None:
    low, high = spans.get(column, (row, row))
    spans[column] = (min(low, row), max(high, row))
