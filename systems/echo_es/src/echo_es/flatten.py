"""Parameters as one vector: a strategy searches in vectors, and a policy has trees of arrays or is a module of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from echo_core import SpecError

if TYPE_CHECKING:
    import torch

__all__ = ["flatten", "flatten_module", "load_module", "unflatten"]


def flatten(tree: Any, dtype: DTypeLike = np.float32) -> NDArray[np.floating]:
    """All arrays of a tree of dicts, lists and tuples in one vector: dicts in their own order, each array in C order.

    Raises SpecError, with the path of the leaf, if a leaf is not floating point.
    """
    parts: list[NDArray[Any]] = []
    _walk(tree, "", lambda leaf: parts.append(leaf.ravel()))
    return np.concatenate([*parts, np.empty(0)]).astype(dtype)


def unflatten(theta: NDArray[Any], like: Any) -> Any:
    """A tree of the structure, shapes and dtypes of `like` with the numbers of `theta`, shape (dims,).

    The leaves are copies. Raises ValueError if `theta` has another number of elements.
    """
    sizes: list[int] = []
    _walk(like, "", lambda leaf: sizes.append(leaf.size))
    _check(theta, sum(sizes))
    parts = iter(np.split(theta, np.cumsum(sizes)))
    return _walk(like, "", lambda leaf: next(parts).reshape(leaf.shape).astype(leaf.dtype))


def flatten_module(module: torch.nn.Module, dtype: DTypeLike = np.float32) -> NDArray[np.floating]:
    """The parameters of a torch module in one vector, in the order of `module.parameters()`. Buffers are no part of it."""
    parts = [parameter.detach().cpu().double().numpy().ravel() for parameter in module.parameters()]
    return np.concatenate([*parts, np.empty(0)]).astype(dtype)


def load_module(module: torch.nn.Module, theta: NDArray[Any]) -> None:
    """Write `theta`, shape (dims,), into the parameters of a torch module, on the device and in the dtype that they have.

    Raises ValueError, and changes nothing, if `theta` has another number of elements.
    """
    import torch

    parameters = list(module.parameters())
    _check(theta, sum(parameter.numel() for parameter in parameters))
    place = 0
    with torch.no_grad():
        for parameter in parameters:
            part = np.array(theta[place : place + parameter.numel()])  # of its own: torch takes no array that cannot be written
            parameter.copy_(torch.from_numpy(part).view(parameter.shape))
            place += parameter.numel()


def _walk(tree: Any, path: str, visit: Callable[[NDArray[Any]], Any]) -> Any:
    """The tree with `visit(leaf)` in place of each leaf."""
    if isinstance(tree, dict):
        return {key: _walk(value, f"{path}/{key}", visit) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [_walk(value, f"{path}/{index}", visit) for index, value in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    leaf = np.asarray(tree)
    if leaf.dtype.kind != "f":
        raise SpecError(f"{path or '/'}: only floating point can be searched, and this leaf is {leaf.dtype}")
    return visit(leaf)


def _check(theta: NDArray[Any], size: int) -> None:
    if theta.shape != (size,):
        raise ValueError(f"theta: its shape must be ({size},), not {theta.shape}")
