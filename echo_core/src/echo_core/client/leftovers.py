"""The samples of a client that were not delivered, such as those for a learner that is gone for good. Another client can send them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import EchoError
from ..spec.ragged import CHUNK_BYTES, CHUNK_HEAD_BYTES, RECORD_HEADER_BYTES, ChunkSpec, RaggedSpec
from ..wire.labels import read_labels
from ..wire.protocol import LABEL_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..spec.spec import Spec
    from ..wire.protocol import Buffer

__all__ = ["Leftover", "leftover_of"]

BEGINS, ENDS = 1, 2  # the flags of a chunk, in spec/record_format.hpp
UNLABELLED = b"\xff" * LABEL_BYTES


@dataclass(frozen=True)
class Leftover:
    """Samples that a client took for one table, and that the learner has not acknowledged. `Client.close(leftovers=True)` returns them.

    Attributes:
        table: the name of the table, as the client gave it to `send`; None is the client's own table.
        samples: the samples in the order in which they were sent, as one pytree with leaves of shape `(N, *leaf.shape)`; or a list of N samples
            if they vary in length.
        labels: the priorities and policy versions of all N samples as bytes, in the form of wire/labels.py; None if no sample has any.
        cut: 1 if there was one more sample, the oldest, of which the learner had acknowledged the beginning. The client does not have that any
            more, and the learner stores no part of a sample, so it is lost. Only samples of varying length can be cut, and only one of a table.
    """

    table: str | None
    samples: Any
    labels: bytes | None
    count: int
    cut: int = 0

    def __len__(self) -> int:
        """N, the number of samples."""
        return self.count

    @property
    def priorities(self) -> npt.NDArray[np.float64] | None:
        """Shape (N,): the samples' priorities; NaN where the sampler chooses. None if no sample has labels."""
        return None if self.labels is None else read_labels(self.labels)[0]

    @property
    def policy_versions(self) -> npt.NDArray[np.int64] | None:
        """Shape (N,): the policy versions that made the samples; -1 is the version published last. None if no sample has labels."""
        return None if self.labels is None else read_labels(self.labels)[1]


def leftover_of(table: str | None, spec: Spec, parts: Sequence[tuple[int, Buffer, bool]]) -> Leftover | None:
    """The samples of one connection, from what `Connection.leftovers` returns; None if there are none."""
    if isinstance(spec, ChunkSpec):
        return _of_records(table, spec.records, parts)
    columns: list[list[npt.NDArray[np.uint8]]] = [[] for _ in spec.leaves]
    labels: list[bytes] = []
    total = 0
    for count, payload, labelled in parts:
        data, start = memoryview(payload), 0
        for column, leaf in zip(columns, spec.leaves):
            column.append(np.frombuffer(data[start : start + count * leaf.nbytes], np.uint8))
            start += count * leaf.nbytes
        labels.append(bytes(data[start : start + count * LABEL_BYTES]) if labelled else UNLABELLED * count)
        total += count
    if not total:
        return None
    leaves = [np.concatenate(column).view(leaf.dtype).reshape(total, *leaf.shape) for column, leaf in zip(columns, spec.leaves)]
    some = any(labelled for _, _, labelled in parts)
    return Leftover(table, spec.flattener.unflatten(leaves), b"".join(labels) if some else None, total)


def _of_records(table: str | None, spec: RaggedSpec, parts: Sequence[tuple[int, Buffer, bool]]) -> Leftover | None:
    """Puts the records together again whose chunks are left. The first chunks may be the end of a record whose beginning was acknowledged."""
    data = b"".join(bytes(memoryview(payload)[: count * CHUNK_BYTES]) for count, payload, _ in parts)
    chunks = np.frombuffer(data, np.uint8).reshape(-1, CHUNK_BYTES)
    if not len(chunks):
        return None
    heads = np.ascontiguousarray(chunks[:, :8]).view(np.uint32)  # `used` and `flags` of spec/record_format.hpp
    begins, ends = np.flatnonzero(heads[:, 1] & BEGINS), np.flatnonzero(heads[:, 1] & ENDS)
    cut = int(not heads[0, 1] & BEGINS)
    if len(ends) != len(begins) + cut or ends[-1] != len(chunks) - 1:
        raise EchoError("the chunks that were not acknowledged are not those of whole samples; please report this")
    samples, labels = [], []
    for begin, end in zip(begins, ends[cut:]):
        record = chunks[begin : end + 1, CHUNK_HEAD_BYTES:].tobytes()
        lengths = np.frombuffer(record, np.uint32, 4)
        labels.append(record[16:RECORD_HEADER_BYTES])
        leaves, at = [], RECORD_HEADER_BYTES
        for leaf in spec.leaves:
            shape = leaf.shape if leaf.axis < 0 else (int(lengths[leaf.axis]), *leaf.shape)
            array = np.frombuffer(record, np.uint8, int(np.prod(shape, dtype=np.int64)) * leaf.dtype.itemsize, at)
            leaves.append(array.copy().view(leaf.dtype).reshape(shape))  # a copy is aligned
            at += array.size
        samples.append(spec.flattener.unflatten(leaves))
    some = any(label != UNLABELLED for label in labels)
    return Leftover(table, samples, b"".join(labels) if some else None, len(samples), cut)
