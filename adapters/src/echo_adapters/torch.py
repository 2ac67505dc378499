"""PyTorch: yields batches of a server as tensors.

loader = DataLoader(BatchDataset(server), batch_size=None)    # a sample of the dataset is a whole batch
for batch in loader:
    loss = model(batch["obs"].to("cuda", non_blocking=True))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import optree
import torch
from torch import Tensor, cuda, from_numpy
from torch.utils.data import IterableDataset, get_worker_info

from echo_core import Server, SpecError
from echo_core.spec.packed import PackedBatch
from echo_core.spec.ragged import ChunkSpec

__all__ = ["BatchDataset", "as_nested", "as_tensors"]


def as_tensors(tree: Any, *, namespace: str = "") -> Any:
    """Return a tree of numpy arrays, such as a batch or the `params` of received weights, with tensors instead of the arrays.

        model.load_state_dict(as_tensors(client.weights().params))

    A tensor has the shape and the dtype of its array, bfloat16 and float8 included, and shares its memory. Only read-only arrays, such as
    received weights, are copied, because torch has no read-only tensors. Leaves that are no arrays stay as they are.

    Args:
        namespace: the optree namespace in which the tree's classes are registered.

    Raises:
        TypeError: torch has no dtype for an array.
    """
    return optree.tree_map(_tensor_of, tree, namespace=namespace)


def _tensor_of(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    return _tensor(leaf if leaf.flags.writeable else leaf.copy())


def as_nested(sample: Any) -> Any:
    """Return a packed batch of samples of varying length as a tree of tensors; ragged leaves become `torch.nested` tensors of layout jagged.

        nested = as_nested(server.sample())
        nested["tokens"].unbind()                                        # one tensor of shape (T, *shape) for each sample

    No values are copied, and leaves of one axis share their offsets, so that torch knows that their lengths are the same. Leaves that are not
    Ragged become tensors of shape `(n, *shape)`. The memory is given back when the tensors and all their views are gone.

    Args:
        sample: what `sample()` of a table of samples of varying length returned, or its `packed`.

    Raises:
        TypeError: torch has no dtype for a leaf.
    """
    packed: PackedBatch = getattr(sample, "packed", sample)
    spec = packed.spec
    offsets = [from_numpy(packed.offsets[axis].astype(np.int64)) for axis in spec.axes]
    tensors = [_tensor_of(array) for array in optree.tree_leaves(packed.batch, namespace=spec.namespace)]
    leaves = [
        tensor if leaf.axis < 0 else torch.nested.nested_tensor_from_jagged(tensor, offsets[leaf.axis]) for leaf, tensor in zip(spec.leaves, tensors)
    ]
    return spec.flattener.unflatten(leaves)


class BatchDataset(IterableDataset[Any]):
    """Yields whole batches: the pytree of the server's example, with tensors of shape `(batch_size, *leaf.shape)` as leaves. The tensors have
    the leaves' own dtypes, bfloat16 and the float8 types of `ml_dtypes` included. Batches of samples of varying length are those of `as_nested`.

    Without pinning nothing is copied. A tensor then lies in the writable memory that the workers filled; the memory is given back when
    the tensor and all its views are gone. The iteration ends when the server is closed.

    Args:
        server: a started server.
        pin_memory: copy each batch into page-locked memory, from which `.to("cuda", non_blocking=True)` overlaps with computing.
        timeout: seconds to wait for each batch; None waits for ever. Raises the same errors as `Server.sample`.

    Raises:
        RuntimeError: `pin_memory` is set without a CUDA device or for samples of varying length, or the dataset is used in a DataLoader with
            worker processes, which cannot share the store.
        SpecError: PyTorch has no dtype for a leaf (strings, dates, records, int4); the message names the leaf.
    """

    def __init__(self, server: Server, *, pin_memory: bool = False, timeout: float | None = None) -> None:
        if pin_memory and isinstance(server.spec, ChunkSpec):
            raise RuntimeError("pin_memory copies batches of one size; pin what as_nested(server.sample()) returns yourself")
        if pin_memory and not cuda.is_available():
            raise RuntimeError("pin_memory needs a CUDA device, but PyTorch finds none; leave pin_memory out")
        self._varying = isinstance(server.spec, ChunkSpec)
        for leaf in server.spec.declared[0]:
            try:
                _tensor(np.zeros(0, leaf.dtype))
            except TypeError:
                raise SpecError(f"PyTorch has no dtype for the leaf {leaf.path!r} of {leaf.dtype}; read it with server.sample()") from None
        self._server, self._pin, self._timeout = server, pin_memory, timeout

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise RuntimeError("worker processes cannot share the server of the main process; use DataLoader(dataset, batch_size=None, num_workers=0)")
        while (sample := self._server.sample(self._timeout)) is not None:
            batch = as_nested(sample) if self._varying else optree.tree_map(self._tensor, sample.batch)
            del sample  # otherwise the last batch would stay leased during the wait for the next one
            yield batch
            del batch

    def _tensor(self, array: Any) -> Tensor:
        tensor = _tensor(array)
        return tensor.pin_memory() if self._pin else tensor


def _tensor(array: np.ndarray) -> Tensor:
    """Return a tensor over the array's memory; raises TypeError if PyTorch has no such dtype."""
    if array.dtype.isbuiltin != 2:
        return from_numpy(array)
    name = array.dtype.name  # a type of ml_dtypes; PyTorch has these floats by the same names, or not at all
    dtype = getattr(torch, name, None) if name.startswith(("bfloat16", "float8")) else None  # its int4 and the like cannot compute
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"PyTorch has no dtype {array.dtype}")
    return from_numpy(array.view(f"u{array.dtype.itemsize}")).view(dtype)
