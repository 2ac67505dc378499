"""All keys and values of an engine, in blocks of a fixed number of tokens (as in vLLM's PagedAttention, arXiv 2309.06180)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from echo_core.base.memory.cgroup import available_memory
from echo_rl.engine.model import ModelConfig

Extent = tuple[int, int, int]
"""Tokens side by side: (place of the first in the pool, its position in the sequence, how many)."""


def token_bytes(config: ModelConfig) -> int:
    """Return the bytes of one token's keys and values, in float32."""
    return config.layers * config.kv_heads * config.head_dim * 2 * 4


class BlockPool:
    """Memory for keys and values that is allocated once; the operating system gives each page when it is first written.

    A sequence's position p lies at offset ``p % size`` of one of its blocks. Nodes of the tree *hold* blocks; running requests, and nodes that running
    requests need, *use* them. A block that nobody holds or uses is free. Several holders share a block where a sequence branches inside it:
    ``frontier`` says up to which offset it is taken, and only a sequence that goes on from exactly there may take the rest.

    Args:
        config: The shape of the model.
        kv_bytes: The most bytes of keys and values.
        size: Tokens of a block.

    Attributes:
        k: Keys, (layers, kv_heads, tokens, head_dim). Blocks with consecutive numbers lie side by side, so they are read as one view.
        v: Values, of the same shape.
        frontier: For each block, the offset up to which it is taken.
        free: How many blocks are free.
        held: How many blocks the tree holds.
        used: How many blocks requests need now. The others that are held can be evicted.

    Raises:
        ValueError: If not even one block fits into ``kv_bytes``.
        MemoryError: If the machine has less memory than ``kv_bytes``. Nothing is allocated then.
    """

    def __init__(self, config: ModelConfig, kv_bytes: int, device: torch.device, size: int = 16) -> None:
        self.size, self.block_bytes = size, size * token_bytes(config)
        self.count = int(kv_bytes // self.block_bytes)
        if not self.count:
            raise ValueError(f"kv_bytes={kv_bytes} is too small: one block of {size} tokens of this model takes {self.block_bytes} bytes")
        left = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
        if self.bytes > left:
            raise MemoryError(
                f"kv_bytes={kv_bytes} exceeds the {left} bytes of memory that are available on {device}; "
                f"they hold {left // self.block_bytes * size} tokens of this model ({token_bytes(config)} bytes each)"
            )
        shape = (config.layers, config.kv_heads, self.count * size, config.head_dim)
        # Zeros, as a masked value must still be a number. numpy asks for zeroed pages, which take memory only when they are written.
        self.k, self.v = ((torch.from_numpy(np.zeros(shape, np.float32)) if device.type == "cpu" else torch.zeros(shape, device=device)) for _ in range(2))
        self.free, self.held, self.used = self.count, 0, 0
        self.frontier = [0] * self.count
        self._holds, self._uses = [0] * self.count, [0] * self.count
        # Free runs of blocks by their first number and by the number after their last, and the first numbers by the length's number of bits.
        self._runs: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._sizes: list[dict[int, None]] = [{} for _ in range(self.count.bit_length() + 1)]
        self._add_run(0, self.count)

    @property
    def bytes(self) -> int:
        """The bytes of all blocks, which is at most the budget."""
        return self.count * self.block_bytes

    @property
    def evictable(self) -> int:
        """How many blocks become free if the tree lets everything go that no request needs."""
        return self.count - self.free - self.used

    def span(self, begin: int, end: int) -> int:
        """Return how many blocks the positions ``begin .. end`` of a sequence touch."""
        return (end - 1) // self.size - begin // self.size + 1 if end > begin else 0

    def may_extend(self, block: int, position: int) -> bool:
        """Return whether a sequence that goes on at ``position`` may take the rest of this block."""
        return position % self.size != 0 and self.frontier[block] == position % self.size

    def take(self, count: int, after: int = -1) -> list[int]:
        """Take ``count`` free blocks, in as few runs as possible; the first follows block ``after`` if that one is free. Nobody holds them yet.

        Raise MemoryError if fewer are free.
        """
        if count > self.free:
            raise MemoryError(f"{count} blocks were asked for and {self.free} of {self.count} are free")
        taken: list[int] = []
        while len(taken) < count:
            wanted = count - len(taken)
            first = after + 1 if not taken and after + 1 in self._runs else self._choose(wanted)
            length = self._remove_run(first)
            if length > wanted:
                self._add_run(first + wanted, length - wanted)
                length = wanted
            taken += range(first, first + length)
        self.free -= count
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Count one more node that holds each of the blocks."""
        for block in blocks:
            self._holds[block] += 1
            self.held += self._holds[block] == 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Undo ``hold``."""
        for block in blocks:
            self._holds[block] -= 1
            if not self._holds[block]:
                self.held -= 1
                if not self._uses[block]:
                    self._free(block)

    def use(self, blocks: Iterable[int]) -> None:
        """Count one more use of each of the blocks, so that they are not evicted."""
        for block in blocks:
            self._uses[block] += 1
            self.used += self._uses[block] == 1

    def unuse(self, blocks: Iterable[int]) -> None:
        """Undo ``use``."""
        for block in blocks:
            self._uses[block] -= 1
            if not self._uses[block]:
                self.used -= 1
                if not self._holds[block]:
                    self._free(block)

    def extents(self, blocks: Sequence[int], begin: int, end: int) -> list[Extent]:
        """Return where the positions ``begin .. end`` lie; ``blocks[0]`` has the position ``begin``."""
        found: list[Extent] = []
        first = begin // self.size
        while begin < end:
            stop = min(end, (begin // self.size + 1) * self.size)
            place = blocks[begin // self.size - first] * self.size + begin % self.size
            if found and found[-1][0] + found[-1][2] == place:
                found[-1] = (found[-1][0], found[-1][1], found[-1][2] + stop - begin)
            else:
                found.append((place, begin, stop - begin))
            begin = stop
        return found

    def places(self, blocks: Sequence[int], begin: int, end: int) -> list[int]:
        """Return the place in the pool of each of the positions ``begin .. end``; ``blocks[0]`` has the position ``begin``."""
        return [place for first, _, length in self.extents(blocks, begin, end) for place in range(first, first + length)]

    def rows(self, places: Sequence[int]) -> Tensor:
        """Return what ``write`` needs to know of n places: the row of each head and place in a layer's memory."""
        heads, tokens = self.k.shape[1:3]
        return (torch.arange(heads, device=self.k.device)[:, None] * tokens + torch.tensor(places, device=self.k.device)).view(-1)

    def write(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """Put keys and values (n, kv_heads, head_dim) at the ``rows`` of n places."""
        for memory, new in ((self.k, k), (self.v, v)):
            dim = new.shape[2]
            memory[layer].view(-1, dim).index_copy_(0, rows, new.transpose(0, 1).reshape(-1, dim))

    def gather(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """Copy the blocks of a table (rows, n) and return their keys and values (kv_heads, rows, n * size, head_dim)."""
        heads, _, dim = self.k[layer].shape
        shape = (heads, table.shape[0], table.shape[1] * self.size, dim)
        k, v = (x[layer].view(heads, self.count, self.size * dim).index_select(1, table.view(-1)).view(shape) for x in (self.k, self.v))
        return k, v

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the keys and values at some places to others."""
        a, b = (torch.tensor(x, device=self.k.device) for x in (sources, targets))
        self.k[:, :, b] = self.k[:, :, a]
        self.v[:, :, b] = self.v[:, :, a]

    def _free(self, block: int) -> None:
        self.free += 1
        first, length = block, 1
        if block + 1 in self._runs:
            length += self._remove_run(block + 1)
        if block in self._ends:
            first = self._ends[block]
            length += self._remove_run(first)
        self._add_run(first, length)

    def _choose(self, wanted: int) -> int:
        # A run of the same number of bits may be long enough; every one of more bits is. Else the longest ones go first.
        bits = wanted.bit_length()
        for first in islice(self._sizes[bits], 32) if bits < len(self._sizes) else ():
            if self._runs[first] >= wanted:
                return first
        larger, smaller = self._sizes[bits + 1 :], reversed(self._sizes[: bits + 1])
        return next(iter(next(sizes for sizes in (*larger, *smaller) if sizes)))

    def _add_run(self, first: int, length: int) -> None:
        self._runs[first] = length
        self._ends[first + length] = first
        self._sizes[length.bit_length()][first] = None

    def _remove_run(self, first: int) -> int:
        length = self._runs.pop(first)
        del self._ends[first + length]
        del self._sizes[length.bit_length()][first]
        return length
