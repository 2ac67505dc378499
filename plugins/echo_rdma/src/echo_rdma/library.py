"""Finds UCX and sets it up: the library, its settings, and the advice if UCX is missing."""

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

from echo_core.base.errors import ConfigError
from echo_core.base.forks import OneProcess
from echo_core.base.installing import how_to_install

from . import _ucx

__all__ = ["LIBRARY", "OLDEST", "cards", "context", "is_of_wheel", "memory_lock_advice", "settings_of_listeners", "settings_shown", "shares_memory", "ucx"]

log = logging.getLogger("echo")

LIBRARY = "ECHO_UCX_LIBRARY"  # environment variable: use only this libucp
OLDEST = (1, 13)
SETS_LISTENERS = (1, 17)  # older versions take the settings of listeners from the environment
ADVICE = (
    f"install UCX: echo-rdma[wheel] brings one with shared memory and TCP ({how_to_install('echo-rdma[wheel]')}); for InfiniBand and RoCE use that of your"
    f" system (apt install libucx0, dnf install ucx ucx-ib, or the vendor's), or name its libucp.so.0 in {LIBRARY}"
)
ENOUGH_LOCKED = 1 << 30

# The settings that the transport relies on, unless the user sets UCX_<name>.
RELIED_ON = {
    "MM_ERROR_HANDLING": "y",  # otherwise endpoints that report failures use TCP even within one machine
    "KEEPALIVE_INTERVAL": "1s",  # a peer that was killed is noticed
    "TCP_CM_REUSEADDR": "y",  # an address can be taken again at once
    # Use shared memory of System V. It disappears with the last process that maps it, no matter how that ends, and no two segments have the same name.
    # POSIX shared memory would outlive a process that is killed. With links to /proc it would be named by process and descriptor. Both numbers are used
    # again, so a peer that was stopped for a while would write messages of a closed connection into the queue of the next one.
    "TLS": "^posix",
    "POSIX_USE_PROC_LINK": "n",  # for users that ask for posix by UCX_TLS
    # In shared memory a message is one segment. With the default size of 8 KiB, a large sample would need three to four times as many.
    "POSIX_SEG_SIZE": "32768",
    "SYSV_SEG_SIZE": "32768",
    "POSIX_FIFO_SIZE": "256",
    "SYSV_FIFO_SIZE": "256",
    # Over TCP a message is one write and one read. By default UCX would split messages above 8 KiB into such pieces and join them again.
    "TCP_TX_SEG_SIZE": "65536",
    "RNDV_SCHEME": "get_zcopy",  # the receiver moves large messages: a sender cannot write after it was given up
}

# UCX reads these while it is loaded. They turn off its handlers for crash signals, which belong to Python, and its lines on standard output for
# errors that are reported as exceptions.
QUIET = {"ERROR_SIGNALS": "", "LOG_LEVEL": "fatal", "WARN_UNUSED_ENV_VARS": "n"}

_lock = threading.Lock()
_loaded: tuple[str, tuple[int, int, int]] | None = None
_contexts: dict[tuple[tuple[str, str], ...], _ucx.Context] = {}
_settings: dict[_ucx.Context, tuple[tuple[str, str], ...]] = {}  # of every context, also of those that were renewed
_ucx_process = OneProcess("UCX", "rdma://")


def _after_fork() -> None:
    """In the child: a thread that does not exist there may hold the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def ucx() -> tuple[str, tuple[int, int, int]]:
    """The libucp in use and its version. The first call finds and loads it.

    Raises ConfigError if there is no usable one; the message says what to install.
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
    raise ConfigError(f"rdma:// needs UCX, and no usable one was found ({tried}). {ADVICE}")


def _candidates() -> Iterator[str]:
    """The libucp that this process has loaded already; otherwise the system's, which knows the network cards, and the wheel's. Without a card the wheel's
    comes first, because a system's may be too old for shared memory. Only one can be loaded for good: a second one would find parts of the first."""
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
    return str(Path(spec.submodule_search_locations[0]) / "lib" / "libucp.so.0")  # it finds the other libraries beside it


def cards() -> list[str]:
    """The machine's RDMA devices, with the state of their ports."""
    found = []
    for device in sorted(Path("/sys/class/infiniband").glob("*")):
        states = [(port / "state").read_text().split(":")[-1].strip() for port in sorted(device.glob("ports/*"))]
        found.append(f"{device.name} ({', '.join(states)})")
    return found


@contextmanager
def _set(wanted: dict[str, str]) -> Iterator[None]:
    """Set UCX_* variables for settings that UCX reads only from the environment, unless the user has set them."""
    added = {f"UCX_{name}": value for name, value in wanted.items() if f"UCX_{name}" not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def shares_memory(version: tuple[int, ...]) -> bool:
    """Whether the shared memory of this UCX survives the death of peers.

    Before 1.16, endpoints that report failures cannot use it (and 1.15 sometimes ends the process). With 1.17, no peer can connect any more after a
    worker was killed.
    """
    return version >= (1, 16) and version[:2] != (1, 17)


def context(loopback: bool = False) -> _ucx.Context:
    """UCX with the current settings of the environment. There is one shared object for each set of settings, and it is kept for good.

    `loopback` is for a listener on this machine's own address, and for who connects to one. UCX otherwise opens a port on every network
    interface, whichever address it listens at.

    Raises ConfigError if there is no library, or UCX_* variables leave no transport; ForkError in a child of a process that has used UCX.
    """
    _ucx_process.check()
    _, version = ucx()
    _ucx_process.use()
    wanted = dict(RELIED_ON) | ({"NET_DEVICES": "lo"} if loopback else {})
    if not shares_memory(version):
        wanted["TLS"] = "^sm"
        log.info("UCX %d.%d.%d: shared memory is left out, since the loss of a peer breaks it; 1.16, and 1.18 and newer, use it", *version)
    chosen = {name: value for name, value in wanted.items() if f"UCX_{name}" not in os.environ}
    key = (*chosen.items(), *sorted((name, value) for name, value in os.environ.items() if name.startswith("UCX_")))
    with _lock:
        if key not in _contexts:
            _make(key)
            if refused := _contexts[key].refused:
                log.info("UCX %d.%d.%d does not know %s", *version, refused)
        return _contexts[key]


def _make(key: tuple[tuple[str, str], ...]) -> None:
    """Set UCX up with these settings, also if it was before; the lock is held."""
    try:
        made = _ucx.Context([(name.removeprefix("UCX_"), value) for name, value in key])
    except RuntimeError as error:
        raise ConfigError(f"rdma://: {error}; in the environment: {settings_shown() or 'no UCX_* variable'}") from None
    _contexts[key], _settings[made] = made, key


def renewed(context: _ucx.Context) -> _ucx.Context:
    """UCX with the settings of `context` and the network interfaces that exist now.

    A context opens the interfaces that existed when it was made. UCX makes no worker in it after one of them has gone, as those of containers do.

    Raises ConfigError as `context`.
    """
    with _lock:
        key = _settings[context]
        if _contexts[key] is context:
            _make(key)
        return _contexts[key]


@contextmanager
def settings_of_listeners() -> Iterator[None]:
    """A context in which the engine of a listener is made. UCX before 1.17 reads the setting that allows it to take the address of a killed learner
    only from the environment."""
    if ucx()[1] >= SETS_LISTENERS:
        yield
        return
    with _lock, _set({"TCP_CM_REUSEADDR": RELIED_ON["TCP_CM_REUSEADDR"]}):
        yield


def settings_shown() -> str:
    """The UCX_* variables that are set, for people."""
    return " ".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("UCX_"))


def memory_lock_advice() -> str:
    """The advice if this process may lock too little memory for a network card to read and write; "" if it may lock enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_LOCKED:
        return ""
    return (
        f"this process may lock {soft >> 10} KiB of memory, and RDMA needs locked memory for all that a network card reads and writes; raise it:"
        " `ulimit -l unlimited`, `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit,"
        " `--ulimit memlock=-1` for docker"
    )
