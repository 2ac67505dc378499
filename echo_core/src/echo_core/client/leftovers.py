"""The samples of a client that were not delivered, such as those for a learner that is gone for good. Another client can send them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..wire.labels import read_labels
from ..wire.protocol import LABEL_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..spec.spec import Spec
    from ..wire.protocol import Buffer

__all__ = ["Leftover", "leftover_of"]


@dataclass(frozen=True)
class Leftover:
    """Samples that a client took for one table, and that the learner has not acknowledged. `Client.close(leftovers=True)` returns them.

    Attributes:
        table: the name of the table, as the client gave it to `send`; None is the client's own table.
        samples: the samples in the order in which they were sent, as one pytree with leaves of shape `(N, *leaf.shape)`.
        labels: the priorities and policy versions of all N samples as bytes, in the form of wire/labels.py; None if no sample has any.
    """

    table: str | None
    samples: Any
    labels: bytes | None
    count: int

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
    columns: list[list[npt.NDArray[np.uint8]]] = [[] for _ in spec.leaves]
    labels: list[bytes] = []
    total = 0
    for count, payload, labelled in parts:
        data, start = memoryview(payload), 0
        for column, leaf in zip(columns, spec.leaves):
            column.append(np.frombuffer(data[start : start + count * leaf.nbytes], np.uint8))
            start += count * leaf.nbytes
        labels.append(bytes(data[start : start + count * LABEL_BYTES]) if labelled else b"\xff" * (count * LABEL_BYTES))
        total += count
    if not total:
        return None
    leaves = [np.concatenate(column).view(leaf.dtype).reshape(total, *leaf.shape) for column, leaf in zip(columns, spec.leaves)]
    some = any(labelled for _, _, labelled in parts)
    return Leftover(table, spec.flattener.unflatten(leaves), b"".join(labels) if some else None, total)
