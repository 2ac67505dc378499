"""A hostile worker: it is admitted like any other, and then damages the memory that it got in every possible way."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import time
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from echo_core import Client
from echo_core.base.errors import EchoError
from echo_testing.samples import example, sample

HEAD, WORDS = 4096, (0, 64, 128, 192, 200)  # words of a lane: written, copied, bell, wake_at, turns


def mapped(name: str) -> list[tuple[int, int]]:
    """Addresses and lengths of this process's mappings of memfds with that name."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"memfd:{name}" in line:
            first, last = (int(number, 16) for number in line.split()[0].split("-"))
            found.append((first, last - first))
    return found


def lane() -> memoryview:
    while len(found := mapped("echo-lane")) != 1:  # the mapping of the last visit is about to disappear
        time.sleep(0.01)
    ((address, length),) = found
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")


def count(address: str, written: int, said: Pipe) -> None:
    """Claim that so many samples are whole, which is false; then report whether the connection ended."""
    client = Client(address, example(), reconnect=False)
    struct.pack_into("<Q", lane(), 0, written)
    struct.pack_into("<I", lane(), 128, 0)
    try:
        client.wait(timeout=10)
        said.send("nothing happened")
    except EchoError as error:
        said.send(str(error))


def scribble(address: str, seed: int, seconds: float, said: Pipe) -> None:
    """Write invalid bytes all over the lane for a while, in several ways, and connect again after every disconnection."""
    dice, end, visits = random.Random(seed), time.monotonic() + seconds, 0
    said.send("begins")
    while time.monotonic() < end:
        client = Client(address, example(), reconnect=False, timeout=10)
        visits += 1
        view = lane()
        turn = min(end, time.monotonic() + dice.random() * 0.5)
        way = dice.randrange(5)
        with suppress(EchoError):
            while time.monotonic() < turn:
                if way == 0:  # everywhere
                    at = dice.randrange(len(view) - 4096)
                    view[at : at + 4096] = dice.randbytes(4096)
                elif way == 1:  # the words, again and again
                    for word in WORDS:
                        struct.pack_into("<Q", view, word, dice.choice((0, 1, 2, 1 << 31, 1 << 63, (1 << 64) - 1, dice.getrandbits(64))))
                elif way == 2:  # rows while they are copied; their number stays correct
                    client.send(sample(seed, 0))
                    view[HEAD : HEAD + 65536] = dice.randbytes(65536)
                elif way == 3:  # small steps of the count, up and down, with a wake-up each time
                    struct.pack_into("<Q", view, 0, dice.randrange(64))
                    struct.pack_into("<I", view, 128, dice.randrange(4))
                    struct.pack_into("<Q", view, 192, 0)
                else:  # the pages themselves
                    ctypes.CDLL(None).madvise(ctypes.c_void_p(mapped("echo-lane")[0][0]), ctypes.c_size_t(len(view)), 9)  # MADV_REMOVE
                    client.send(sample(seed, 0))
        with suppress(EchoError):
            client.close(timeout=0)
    said.send(visits)


def look(address: str, said: Pipe) -> None:
    """Report which memory of the learner a worker in the private mode has, and whether it can change its size or the weights."""
    client = Client(address, example())
    client.send(sample(1, 0))
    client.wait()
    weights = client.weights(timeout=10)
    refused = []
    for name, fd in descriptors_of("echo-"):
        for what in (lambda fd=fd: os.ftruncate(fd, 0), lambda fd=fd: os.ftruncate(fd, 1 << 30), lambda fd=fd: mmap.mmap(fd, 4096)):
            with suppress(OSError, ValueError):
                what()
                refused.append(f"{name} not refused")
    seen = sorted({line.split("memfd:")[1].split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line})
    writable = [
        line.split("memfd:")[1].split()[0]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:" in line and line.split()[1].startswith("rw")
    ]
    client.close()
    said.send((seen, writable, refused, weights.version))


def descriptors_of(name: str) -> list[tuple[str, int]]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if f"memfd:{name}" in (link := os.readlink(f"/proc/self/fd/{number}")):
                found.append((link, int(number)))
    return found
