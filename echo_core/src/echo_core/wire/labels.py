"""The labels of a sample that is sent into a replay table: its priority, and the policy version that made it.

A sample's labels are 16 bytes, two u64: the bits of the priority (a double; all ones: the sampler chooses), and the policy version (all ones:
the version published last). A frame with the flag LABELS (protocol.py) has them behind the leaves of its samples, like one more leaf. A frame
without it has none, which means the same as all ones. Streams and tables of steps take no labels; the learner says so in the handshake. The
learner's view of the labels is echo_replay/tables/labelled/label_leaf.hpp.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from ..store.local_insert import new_priorities

__all__ = ["label_of", "labels_of", "read_labels"]

NOTHING = 0xFFFFFFFFFFFFFFFF

_PAIR = struct.Struct("=dQ")


def label_of(priority: float | None, version: int | None) -> bytes | None:
    """The labels of one sample; None if it has none.

    Args:
        priority: None lets the sampler choose.
        version: None is the policy version published last.

    Raises:
        ValueError: the priority or the version is invalid.
    """
    if type(priority) is float and 0 <= priority < math.inf:  # nearly every one: no array is made of it
        return _PAIR.pack(priority, NOTHING if version is None else _checked(version))
    return labels_of(1, None if priority is None else [priority], version)


def labels_of(n: int, priorities: npt.ArrayLike | None, version: int | None) -> bytes | None:
    """The labels of `n` samples, one after another; None if they have none. `priorities` has the shape (n,); the version is that of all.

    Raises:
        ValueError: a priority or the version is invalid.
    """
    if priorities is None and version is None:
        return None
    labels = np.empty((n, 2), np.uint64)
    labels[:, 0] = NOTHING if priorities is None else new_priorities(priorities, n).view(np.uint64)
    labels[:, 1] = NOTHING if version is None else _checked(version)
    return labels.tobytes()


def read_labels(labels: bytes) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Priorities (NaN: the sampler chooses) and policy versions (-1: the version published last) of n samples, each of shape (n,)."""
    pairs = np.frombuffer(labels, np.uint64).reshape(-1, 2)
    return pairs[:, 0].copy().view(np.float64), pairs[:, 1].copy().view(np.int64)


def _checked(version: int) -> int:
    if isinstance(version, bool) or not hasattr(type(version), "__index__") or not 0 <= version < NOTHING:
        raise ValueError(f"policy_version must be a whole number from 0 to {NOTHING - 1}, not {version!r}")
    return int(version)
