"""grpcio, imported here and nowhere else in this package, because it is told first who reads its connections.

Since 1.80 a pool of the C core's threads does, and wakes whoever waits for the message; before, whoever waited read it. With one
connection to read, or two cores to read on, the pool is more threads for the same work: a sample of a megabyte took an eighth less CPU
time without it (docs/grpc.md).
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version

__all__ = ["experiments", "grpc"]

#: The first and the last release known to read in a pool and to be told otherwise by these names. gRPC's experiments come and go,
#: and one that it does not know is a line on stderr.
POOLING = (1, 80), (1, 85)

#: A learner with more cores than these keeps the pool, which reads the connections of several workers, and decrypts them, side by side.
FEW_CORES = 2

VARIABLE = "GRPC_EXPERIMENTS"


def experiments(release: str, cores: int) -> str:
    """What `GRPC_EXPERIMENTS` is to say to that release of grpcio in a process that may use so many cores; "" where nothing."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None or not POOLING[0] <= (int(numbers[1]), int(numbers[2])) <= POOLING[1]:
        return ""
    return "-event_engine_client" + (",-event_engine_listener" if cores <= FEW_CORES else "")


def _tell() -> bool:
    """Set the variable for the import that follows, unless it is set or comes too late; whether it was."""
    if VARIABLE in os.environ or "grpc._cython.cygrpc" in sys.modules:
        return False
    if chosen := experiments(version("grpcio"), len(os.sched_getaffinity(0))):
        os.environ[VARIABLE] = chosen
    return bool(chosen)


_told = _tell()
try:
    import grpc
finally:
    if _told:  # it has been read; a child's gRPC may be another release
        os.environ.pop(VARIABLE, None)
