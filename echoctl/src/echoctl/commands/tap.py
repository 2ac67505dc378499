"""`echoctl tap`: shows a few samples of a running server without removing them from its store."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from echo_core.base.foreign_text import escaped
from echo_core.client.observer import Look, Observer

from ..output import console, json_option, print_json

__all__ = ["command"]

FEW = 8  # a leaf with up to this many numbers is shown in full; otherwise the first few and their range are shown


@click.command(name="tap", short_help="look at a few samples of a running server")
@click.argument("address")
@click.option("-n", "--count", "n", type=click.IntRange(1, 1024), default=4, show_default=True, help="The most samples to show.")
@click.option("--table", help="The replay table (default: the first).")
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to reach the server, and to wait for a sample.")
@click.option("--no-auth", is_flag=True, help="Connect without a token to a server that asks for none.")
@json_option
def command(address: str, n: int, table: str | None, timeout: float, no_auth: bool, as_json: bool) -> int:
    """Look at the newest samples of the server at ADDRESS without taking them.

    For a replay table, it shows the newest items. For a stream, it shows samples that are committed and not yet taken; if the learner
    takes everything at once, it shows samples of its next batch. --json prints one JSON object for each sample, with all its numbers.
    """
    with Observer(address, timeout=timeout, auth=not no_auth, name="echoctl tap") as observer:
        look = observer.tap(n, table=table)
    if as_json:
        for i, sample in enumerate(look.samples):
            made: dict[str, Any] = {"sample": plain(sample)}
            print_json(made if look.keys is None else {"key": look.keys[i], **made})
    else:
        console().print(render(look))
    return 0


def plain(tree: Any) -> Any:
    """A sample as JSON values. Values without a JSON number become text ("nan", "inf", dates); complex numbers become `[real, imaginary]`."""
    if isinstance(tree, np.ndarray):
        return plain((tree if tree.dtype.kind in "biufcSU" or tree.dtype.fields else tree.astype(_nearest(tree.dtype))).tolist())
    if isinstance(tree, dict):
        return {str(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    if isinstance(tree, float) and not np.isfinite(tree):
        return str(tree)
    if isinstance(tree, complex):
        return [plain(tree.real), plain(tree.imag)]
    return tree.decode("utf-8", "backslashreplace") if isinstance(tree, bytes) else tree


def _nearest(dtype: np.dtype[Any]) -> Any:
    return np.str_ if dtype.kind in "mM" else np.float64  # also for bfloat16 and similar dtypes


def render(look: Look) -> object:
    """The samples as tables: for each sample, a title and one line for each leaf."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = []
    for i in range(len(look.samples)):
        title = f"sample {i + 1} of {len(look.samples)}" if look.keys is None else f"item {look.keys[i]}"
        lines = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
        for name in ("leaf", "dtype", "shape", "values"):
            lines.add_column(name, overflow="fold")
        for leaf, array in zip(look.spec.leaves, look.rows[i]):
            shape = "x".join(map(str, array.shape)) or "-"
            lines.add_row(escape(escaped(leaf.path or ".")), str(leaf.dtype), shape, escape(values(array)))
        parts += [Text(title + (", the newest" if i + 1 == len(look.samples) else ""), style="bold"), lines, Text()]
    return Group(*parts)


def values(array: Any) -> str:
    """All numbers of a leaf if they are few; otherwise the first of them and their range."""
    flat = np.asarray(array).reshape(-1)
    if flat.size <= FEW:
        shown = " ".join(_short(value) for value in flat)
        return shown or "(empty)"
    first = " ".join(_short(value) for value in flat[:4])
    if flat.dtype.kind not in "biuf":
        return f"{first} ..."
    numbers = flat.astype(np.float64)
    wrong = int((~np.isfinite(numbers)).sum())
    numbers = numbers[np.isfinite(numbers)]
    span = f"from {numbers.min():.6g} to {numbers.max():.6g}, mean {numbers.mean():.6g}" if numbers.size else "no finite number"
    return f"{first} ...  {span}{f', {wrong} not finite' if wrong else ''}"


def _short(value: Any) -> str:
    return f"{float(value):.6g}" if np.asarray(value).dtype.kind == "f" else escaped(str(value))
