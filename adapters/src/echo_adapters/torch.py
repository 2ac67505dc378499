"""PyTorch: batches of a server as tensors.

loader = DataLoader(BatchDataset(server), batch_size=None)    # batches come whole
for batch in loader:
    loss = model(batch["obs"].to("cuda", non_blocking=True))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import optree
from torch import Tensor, cuda, from_numpy
from torch.utils.data import IterableDataset, get_worker_info

from echo_core import Server

__all__ = ["BatchDataset"]


class BatchDataset(IterableDataset[Any]):
    """Yields whole batches: the pytree of the server's example, its leaves tensors of shape `(batch_size, *leaf.shape)`.

    Without pinning nothing is copied: a tensor is the memory that the workers filled, writable, and given back when it and all its views
    are gone. Ends when the server is closed.

    Args:
        server: a started server.
        pin_memory: copy each batch into page-locked memory, from which `.to("cuda", non_blocking=True)` overlaps with computing.
        timeout: seconds to wait for each batch; None waits for ever. Raises as `Server.sample`.

    Raises:
        RuntimeError: pinning without a CUDA device, or use in a DataLoader with worker processes, which cannot share the store.
    """

    def __init__(self, server: Server, *, pin_memory: bool = False, timeout: float | None = None) -> None:
        if pin_memory and not cuda.is_available():
            raise RuntimeError("pin_memory needs a CUDA device, and PyTorch sees none; leave pin_memory out")
        self._server, self._pin, self._timeout = server, pin_memory, timeout

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise RuntimeError("the server lives in the main process; use DataLoader(dataset, batch_size=None, num_workers=0)")
        while (sample := self._server.sample(self._timeout)) is not None:
            batch = optree.tree_map(self._tensor, sample.batch)
            del sample  # or the last batch would be leased while the next one is waited for
            yield batch
            del batch

    def _tensor(self, array: Any) -> Tensor:
        tensor = from_numpy(array)
        return tensor.pin_memory() if self._pin else tensor
