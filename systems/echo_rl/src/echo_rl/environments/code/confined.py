"""The program that calls functions of unknown origin. ``sandbox.py`` starts it; it imports nothing of Echo.

It reads one JSON object from its standard input and writes a line of JSON for each call. Before it runs the code it gives up what it can: see ``confine``.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

# What functions of benchmarks import. It is loaded here because the code later sees no files.
PRELOADED = (
    *("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools"),
    *("math", "operator", "random", "re", "statistics", "string", "typing"),
)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
NOBODY = 65534
MOST_TEXT = 20_000

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_nobody() -> None:
    """As root, limits of processes would not hold. Where no such user exists, as in some containers, it stays as it is."""
    if os.geteuid() != 0:
        return
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise /proc/self belongs to root, and the new namespace cannot be described


def confine() -> None:
    """Enter new namespaces: no network, no other process, and an empty root of 1 MiB instead of every file. Raise OSError if the kernel refuses."""
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    checked(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    checked(libc.mount(b"none", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, b"size=1m,nr_inodes=64"))
    os.chdir("/tmp")
    os.mkdir("old")
    checked(libc.syscall(PIVOT_ROOT[os.uname().machine], b".", b"old"))
    os.chdir("/")
    checked(libc.umount2(b"/old", MNT_DETACH))
    os.rmdir("/old")


def give_up_capabilities() -> None:
    """Within its namespace a process could otherwise mount again."""
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    checked(libc.capset(header, nothing))


def limit(seconds: int, memory: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_NOFILE, 16),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(what, (most, most))


def main() -> None:
    job = json.loads(sys.stdin.read())
    for name in PRELOADED:
        __import__(name)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    become_nobody()
    die_with_parent()
    confined = job["namespaces"]
    if confined:
        try:
            confine()
        except (OSError, KeyError, AttributeError) as error:
            out.write(json.dumps({"confined": False, "reason": str(error)}) + "\n")
            return
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # so that the code cannot trace the first process below, which has its user
        if (first := os.fork()) != 0:  # only a child is in the new namespace of processes, as its first
            os.waitpid(first, 0)
            return
        die_with_parent()
        # The code could undo this for itself, and leave its session. But the kernel ends all processes of the namespace with the first, so it is not the first.
        if (child := os.fork()) != 0:
            os.waitpid(child, 0)
            return
    limit(job["seconds"], job["memory"])
    if confined:
        give_up_capabilities()
    out.write(json.dumps({"confined": confined}) + "\n")
    run(job, out)


def run(job: dict[str, Any], out: Any) -> None:
    space: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(job["code"], "<solution>", "exec"), space)
        function = space[job["function"]]
    except BaseException as error:
        for _ in job["calls"]:
            out.write(json.dumps({"error": shown(error)}) + "\n")
        return
    for call in job["calls"]:
        try:
            value = repr(eval(f"__function({call}\n)", {"__function": function}))
            answer = {"value": value} if len(value) <= MOST_TEXT else {"error": "the result is too long"}
        except BaseException as error:
            answer = {"error": shown(error)}
        out.write(json.dumps(answer) + "\n")


def shown(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return type(error).__name__


if __name__ == "__main__":
    main()
