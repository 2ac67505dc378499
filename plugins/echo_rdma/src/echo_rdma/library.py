"""Finds UCX and sets it up: which library, which settings, and what to do when there is none."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from echo_core.base.errors import ConfigError, ForkError

from . import _ucx

__all__ = ["LIBRARY", "OLDEST", "cards", "context", "is_of_wheel", "memory_lock_advice", "settings_of_listeners", "settings_shown", "shares_memory", "ucx"]

log = logging.getLogger("echo")

LIBRARY = "ECHO_UCX_LIBRARY"  # environment: the libucp to use, and no other
OLDEST = (1, 13)
SETS_LISTENERS = (1, 17)  # before, settings of listeners are those of the environment
ADVICE = (
    'install UCX: pip install "echo-rdma[wheel]" brings one with shared memory and TCP; for InfiniBand and RoCE take that of your'
    f" system (apt install libucx0, dnf install ucx ucx-ib, or the vendor's), or name its libucp.so.0 in {LIBRARY}"
)
ENOUGH_LOCKED = 1 << 30

# What the transport relies on, unless the user says otherwise by UCX_<name>.
RELIED_ON = {
    "MM_ERROR_HANDLING": "y",  # otherwise endpoints that report failures use TCP even within one machine
    "KEEPALIVE_INTERVAL": "1s",  # a peer that was killed is noticed
    "TCP_CM_REUSEADDR": "y",  # an address can be taken again at once
    # Shared memory of System V: it is gone with the last process that maps it, however that ends, and no two segments have one name. POSIX's
    # would outlive a process that is killed; or, with links to /proc, be named by process and descriptor, and as both come again, a peer
    # that was stopped for a while would write what is for a closed connection into the queue of the next.
    "TLS": "^posix",
    "POSIX_USE_PROC_LINK": "n",  # for who asks for it by UCX_TLS
    # In shared memory a message is a segment, and the default ones of 8 KiB make three to four times as many of a large sample.
    "POSIX_SEG_SIZE": "32768",
    "SYSV_SEG_SIZE": "32768",
    "POSIX_FIFO_SIZE": "256",
    "SYSV_FIFO_SIZE": "256",
    # Over TCP a message is one write and one read; UCX would cut what is above 8 KiB into pieces of that, and put them together again.
    "TCP_TX_SEG_SIZE": "65536",
    "RNDV_SCHEME": "get_zcopy",  # the receiver moves large messages: a sender cannot write after it was given up
}

# Read as the library is loaded: no handlers for the signals of a crash, which are Python's, and no lines on standard output for what is
# reported as an exception.
QUIET = {"ERROR_SIGNALS": "", "LOG_LEVEL": "fatal", "WARN_UNUSED_ENV_VARS": "n"}

_lock = threading.Lock()
_loaded: tuple[str, tuple[int, int, int]] | None = None
_contexts: dict[tuple[tuple[str, str], ...], _ucx.Context] = {}
_process = 0  # where UCX was set up; 0: nowhere yet


def ucx() -> tuple[str, tuple[int, int, int]]:
    """The libucp in use and its version; found and loaded by the first call.

    Raises ConfigError: there is none that can be used, and what to install.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _find()
            log.debug("UCX %d.%d.%d from %s", *_loaded[1], _loaded[0])
        return _loaded


def _find() -> tuple[str, tuple[int, int, int]]:
    wrong = []
    named = os.environ.get(LIBRARY)
    for path in [named] if named else _candidates():
        try:
            with _set(QUIET):
                version = _ucx.load(path)
        except OSError as error:
            wrong.append(f"{path}: {error}")
            continue
        if version >= OLDEST:
            return path, version
        wrong.append(f"{path} is UCX {'.'.join(map(str, version))}, older than {'.'.join(map(str, OLDEST))}")
    tried = "; ".join(wrong) or "no libucp was found"
    raise ConfigError(f"rdma:// needs UCX, and there is none that can be used ({tried}). {ADVICE}")


def _candidates() -> Iterator[str]:
    """The one this process has already; else the system's, which knows its network cards, and the wheel's: first the wheel's where there is no
    card, because a system's may be too old for shared memory. Only one can be tried for good: a second finds the first one's parts."""
    maps = Path("/proc/self/maps").read_text()
    yield from dict.fromkeys(re.findall(r"/\S*libucp\.so\S*", maps))
    system, wheel = "libucp.so.0", _of_wheel()
    yield from filter(None, (system, wheel) if cards() else (wheel, system))


def is_of_wheel() -> bool:
    """Whether the libucp in use is the wheel's, which has shared memory and TCP only."""
    return (of_wheel := _of_wheel()) != "" and Path(ucx()[0]).resolve() == Path(of_wheel).resolve()


def _of_wheel() -> str:
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return ""
    return str(Path(spec.submodule_search_locations[0]) / "lib" / "libucp.so.0")  # finds the others beside it


def cards() -> list[str]:
    """The machine's RDMA devices, with the state of their ports."""
    found = []
    for device in sorted(Path("/sys/class/infiniband").glob("*")):
        states = [(port / "state").read_text().split(":")[-1].strip() for port in sorted(device.glob("ports/*"))]
        found.append(f"{device.name} ({', '.join(states)})")
    return found


@contextmanager
def _set(wanted: dict[str, str]) -> Iterator[None]:
    """UCX_* variables for what is read from nowhere else, as far as the user has not set them."""
    added = {f"UCX_{name}": value for name, value in wanted.items() if f"UCX_{name}" not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def shares_memory(version: tuple[int, ...]) -> bool:
    """Whether peers may die over the shared memory of this UCX.

    Before 1.16 endpoints that report failures cannot use it (and 1.15 ends the process now and then); with 1.17 nobody can connect any more
    after a worker was killed.
    """
    return version >= (1, 16) and version[:2] != (1, 17)


def context() -> _ucx.Context:
    """UCX with the settings of the environment as it is now. One for each set of settings, shared, kept for good.

    Raises ConfigError: no library, or no transport is left by UCX_*. ForkError: in a child of a process that has used UCX.
    """
    global _process
    if _process not in (0, os.getpid()):
        raise ForkError(
            "UCX was set up before this process was forked, and works in the parent only; start the process with multiprocessing's"
            " 'spawn' or 'forkserver', or fork before the first rdma:// connection"
        )
    _, version = ucx()
    _process = os.getpid()
    wanted = dict(RELIED_ON)
    if not shares_memory(version):
        wanted["TLS"] = "^sm"
        log.info("UCX %d.%d.%d: shared memory is left out, since the loss of a peer breaks it; 1.16, and 1.18 and newer, use it", *version)
    chosen = {name: value for name, value in wanted.items() if f"UCX_{name}" not in os.environ}
    key = (*chosen.items(), *sorted((name, value) for name, value in os.environ.items() if name.startswith("UCX_")))
    with _lock:
        if key not in _contexts:
            try:
                _contexts[key] = _ucx.Context(list(chosen.items()))
            except RuntimeError as error:
                raise ConfigError(f"rdma://: {error}; in the environment: {settings_shown() or 'no UCX_* variable'}") from None
            if refused := _contexts[key].refused:
                log.info("UCX %d.%d.%d does not know %s", *version, refused)
        return _contexts[key]


@contextmanager
def settings_of_listeners() -> Iterator[None]:
    """Around making the engine of a listener: before 1.17 UCX looks for what takes an address again, whose last learner was killed,
    in the environment and nowhere else."""
    if ucx()[1] >= SETS_LISTENERS:
        yield
        return
    with _lock, _set({"TCP_CM_REUSEADDR": RELIED_ON["TCP_CM_REUSEADDR"]}):
        yield


def settings_shown() -> str:
    """The UCX_* variables that are set, for people."""
    return " ".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("UCX_"))


def memory_lock_advice() -> str:
    """What to do if this process may lock too little memory for a network card to read and write it; "" if it may lock enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_LOCKED:
        return ""
    return (
        f"this process may lock {soft >> 10} KiB of memory, which RDMA needs for what a network card reads and writes; raise it:"
        " `ulimit -l unlimited`, `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit,"
        " `--ulimit memlock=-1` for docker"
    )
