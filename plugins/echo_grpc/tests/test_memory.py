"""The page faults of messages of megabytes, and when memory is freed."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest

from echo_core import Client, Server
from echo_testing.processes import until

TOKEN = "the-token-of-these-tests-long-enough"
MESSAGES, MESSAGE_BYTES, PAGE_BYTES = 100, 2 << 20, 4096

PROGRAM = f"""
import resource
from echo_grpc.memory import keep_freed_memory
keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF)
for _ in range({MESSAGES}):
    bytearray({MESSAGE_BYTES})
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_minflt - before.ru_minflt, after.ru_maxrss - before.ru_maxrss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a matter of glibc's malloc")
def test_freed_messages_are_used_again() -> None:
    """Pages are fetched once and not for each message, and the block that makes malloc do so is never touched."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60).stdout
    faults, kib = map(int, said.split())
    assert faults < MESSAGES * MESSAGE_BYTES // PAGE_BYTES // 10
    assert kib < 4 * MESSAGE_BYTES // 1024


def test_nothing_of_grpc_is_left_to_the_garbage_collector() -> None:
    """It may run in a forked child, where destroying gRPC's objects aborts the process."""
    example = {"x": np.zeros(4, np.float32)}

    def use() -> None:
        with Server(example, 2, "grpc://127.0.0.1:0", token=TOKEN) as server, Client(server.address, example, token=TOKEN) as client:
            client.send_batch({"x": np.zeros((2, 4), np.float32)})
            assert server.sample(20) is not None

    use()  # all objects that are made only once exist now
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        use()
        until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("echo")], "its threads end")
        gc.collect()
        left = sorted({f"{type(thing).__module__}.{type(thing).__name__}" for thing in gc.garbage})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()
    assert [name for name in left if name.startswith("grpc.")] == []
