"""Records on their way to the learner: a result is one record, and a batch is several of them, packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_core import Ragged, SpecError

__all__ = ["PROTOCOL", "PackedRecords", "pack", "result", "result_example", "rows"]

#: The version of what learner and actors exchange. It changes where the meaning of a record, of a ticket or of the weights does. A learner and an actor of
#: different versions refuse each other, since the leaf with its name is a part of the example that both compare when they connect.
PROTOCOL = 1


@dataclass(frozen=True)
class PackedRecords:
    """Several records as one batch.

    Attributes:
        batch: by leaf: the rows of all records one after another for a leaf of varying length, and otherwise an array with the records as first axis.
        offsets: by axis, int32 (records + 1,): where the rows of each record begin, and their number.
    """

    batch: dict[str, npt.NDArray[Any]]
    offsets: dict[str, npt.NDArray[np.int32]]


def result_example(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The example of the table of results: a record of rollouts, the number of its ticket, the policy version that has made them, and ``PROTOCOL``.

    Raises SpecError if the record has a leaf with one of these names.
    """
    if taken := [name for name in result({}, 0, 0) if name in leaves]:
        raise SpecError(f"a record of rollouts has the leaf {taken[0]!r}, which every result has; give it another name")
    return result(leaves, 0, 0)


def result(record: Mapping[str, Any], ticket: int, version: int) -> dict[str, Any]:
    """What is sent for a ticket: the record of its rollouts, and the policy version that has made them."""
    return {"ticket": np.int64(ticket), "version": np.int64(version), f"echo_rl_protocol_{PROTOCOL}": np.uint8(0), **record}


def rows(sample: Any, example: Mapping[str, Any]) -> list[dict[str, npt.NDArray[Any]]]:
    """The records of a drawn batch, as copies: the memory of the batch can go back to the table."""
    if any(isinstance(leaf, Ragged) for leaf in example.values()):
        packed = sample.packed
        return [{name: np.array(leaf) for name, leaf in packed.row(i).items()} for i in range(len(packed))]
    batch = sample.batch
    return [{name: np.array(column[i]) for name, column in batch.items()} for i in range(len(batch["ticket"]))]


def pack(records: Sequence[Mapping[str, npt.NDArray[Any]]], example: Mapping[str, Any]) -> PackedRecords:
    """Join records, in their order. Leaves that the example does not have are left out."""
    batch: dict[str, npt.NDArray[Any]] = {}
    offsets: dict[str, npt.NDArray[np.int32]] = {}
    for name, leaf in example.items():
        parts = [np.asarray(record[name]) for record in records]
        if isinstance(leaf, Ragged):
            batch[name] = np.concatenate(parts)
            offsets[leaf.axis] = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int32)
        else:
            batch[name] = np.stack(parts)
    return PackedRecords(batch, offsets)
