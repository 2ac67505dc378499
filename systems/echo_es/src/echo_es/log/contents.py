"""What an epoch log says."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from echo_core import CheckpointError, ConfigError

from ..arguments import path_of
from ..search.epoch import Individuals
from ..search.progress import Part
from ..search.tasks import Rewards
from .records import later, records

__all__ = ["FORMAT", "MAGIC", "Contents", "contents_of", "read_log"]

FORMAT = 1
MAGIC = b"echo-es\n" + struct.pack("<I", FORMAT)


@dataclass
class Contents:
    """The contents of a log.

    Attributes:
        search: the description of the search. It is empty if the log has just been created.
        epochs: the complete epochs, from 1 on, and their rewards, float64 of shape (population,).
        times: when each of them was written, in seconds since 1970.
        parts: the rewards of epochs that are not complete. For a steady search they are all rewards, in the order in which they came.
        tests: the epoch and the rewards of each test.
        seen: the newest merged statistics of observations, as `echo_es.state.pack` gives them, and the epoch after which they were made.
        whole: how many bytes of the file are whole records; size: how many there are. A difference is a record that was not written to its end.
    """

    search: dict[str, Any] = field(default_factory=dict)
    epochs: list[tuple[int, Rewards]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    parts: list[tuple[int, tuple[slice, ...], Rewards]] = field(default_factory=list)
    tests: list[tuple[int, Rewards]] = field(default_factory=list)
    seen: tuple[int, bytes] | None = None
    whole: int = 0
    size: int = 0

    def partial(self) -> list[Part]:
        """The rewards of the epoch after the last complete one."""
        after = self.epochs[-1][0] + 1 if self.epochs else 1
        return [(slices, rewards) for epoch, slices, rewards in self.parts if epoch == after]

    def steady(self) -> tuple[Individuals, Rewards]:
        """The individuals of a steady search, in the order in which their rewards came, and these rewards."""
        individuals = [np.arange(part.start, part.stop) for _, slices, _ in self.parts for part in slices]
        rewards = [values for _, _, values in self.parts]
        return np.concatenate([np.empty(0, np.int64), *individuals]), np.concatenate([np.empty(0), *rewards])


def read_log(path: str | os.PathLike[str]) -> Contents:
    """What a log says, also while a server writes it.

    Raises ConfigError if the file is no log, CheckpointError if it is damaged before its end, and OSError if it cannot be read.
    """
    path = path_of("path", path)
    with path.open("rb") as file:
        return contents_of(path, file)


def contents_of(path: Path, file: BinaryIO) -> Contents:
    """What an open file says; see `read_log`."""
    content = file.read()
    found = Contents(size=len(content))
    if not content.startswith(MAGIC):
        if MAGIC.startswith(content):  # it was created, and its server was killed before it had written more
            return found
        if content.startswith(MAGIC[:-4]):
            number = int.from_bytes(content[len(MAGIC) - 4 : len(MAGIC)], "little")
            raise ConfigError(f"log: {path} has the format {number}, and this echo-es reads {FORMAT}; use the echo-es that wrote it")
        raise ConfigError(f"log: {path} is no epoch log; choose another file")
    found.whole = len(MAGIC)
    for head, data, end in records(content, len(MAGIC)):
        _add(found, head, data)
        found.whole = end
    if later(content, found.whole):
        raise CheckpointError(
            f"{path} is damaged at byte {found.whole}, and whole records follow; restore it from a backup, or cut the file off there, "
            "which loses the rewards after it"
        )
    return found


def _add(found: Contents, head: dict[str, Any], data: bytes) -> None:
    kind = head["kind"]
    if kind == "search":
        found.search = head["search"]
    elif kind == "part":
        found.parts.append((head["epoch"], tuple(slice(*part) for part in head["slices"]), _floats(data)))
    elif kind == "epoch":
        found.epochs.append((head["epoch"], _floats(data)))
        found.times.append(head["time"])
        found.parts.clear()
    elif kind == "seen":
        found.seen = head["epoch"], data
    elif kind == "test":
        found.tests.append((head["epoch"], _floats(data)))


def _floats(data: bytes) -> NDArray[np.float64]:
    return np.frombuffer(data, "<f8").astype(np.float64)
