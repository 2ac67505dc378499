"""No test fails because a machine is slow: an assertion has no upper bound on a duration. Bounds on counts or order prove more.

A wait that may hang has a deadline (`until`, `returns`, a timeout); it is far above what any machine needs, and only tells a hang from an end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("tests", "adapters/tests", "samplers/tests", "plugins/*/tests", "systems/*/tests", "examples/*/tests", "echo_testing/src/echo_testing")
CLOCKS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}


def durations(node: ast.AST) -> bool:
    """Whether an expression has a difference with the present time in it: `time.monotonic() - began`."""
    differences = (one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub))
    return any(isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in CLOCKS for one in differences for call in ast.walk(one))


def bounds(source: str) -> Iterator[str]:
    """The assertions that say that a duration is smaller than something else."""
    for node in ast.walk(ast.parse(source)):
        for compare in ast.walk(node.test) if isinstance(node, ast.Assert) else ():
            if isinstance(compare, ast.Compare):
                sides = [compare.left, *compare.comparators]
                for small, operator, large in zip(sides, compare.ops, sides[1:]):
                    if isinstance(operator, ast.Gt | ast.GtE):
                        small, large = large, small
                    if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and durations(small) and not durations(large):
                        yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_assertion_has_an_upper_bound_on_a_duration() -> None:
    files = sorted(path for place in PLACES for folder in ROOT.glob(place) for path in folder.rglob("*.py"))
    assert len(files) > 300
    found = [f"{path.relative_to(ROOT)}, {bound}" for path in files for bound in bounds(path.read_text())]
    assert found == []


def test_such_an_assertion_is_found() -> None:
    assert len([*bounds("assert time.monotonic() - began < 2 and x")]) == 1
    assert len([*bounds("assert 5 > abs(perf_counter() - began)")]) == 1
    assert [*bounds("assert time.monotonic() - began >= 2; assert looks < 3 + (time.monotonic() - began) / 2; assert time.monotonic() < end")] == []
