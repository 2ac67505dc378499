"""`echoctl doctor`: finds problems of this machine or of the way to a server."""

from __future__ import annotations

import os
import resource
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

import click
import numpy as np
import optree

import echo_core
from echo_core import __version__
from echo_core.base.address import Address
from echo_core.base.errors import EchoError, SecurityError
from echo_core.base.installing import how_to_install
from echo_core.base.plural import counted
from echo_core.client.observer import Observer
from echo_core.plugins import discovery
from echo_core.security.tokens import default_token_path, find_token, how_to_copy, is_here
from echo_core.wire.transport import Finding

from ..output import console, json_option, print_json

__all__ = ["command"]

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"

GIB = 1 << 30


@click.command(name="doctor", short_help="check this machine, and a server if its address is given")
@click.argument("address", required=False)
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to reach the server.")
@json_option
def command(address: str | None, timeout: float, as_json: bool) -> int:
    """Find problems of this machine. Each check prints one line: ok, warning or failure, with the fix.

    With ADDRESS it also checks the way to a running server: name, port, token, version, a round trip and the clocks. The exit code is 1
    if a check fails; with ADDRESS, plugins that it does not need only give warnings.
    """
    server = None if address is None else Address.parse(address)
    needed = None if server is None else server.scheme
    findings = [*_safely(_versions), *_safely(_plugins, needed), *_safely(_transports, needed)]
    findings += [finding for check in _MACHINE_CHECKS for finding in _safely(check)]
    findings += _safely(_token, server)
    if server is not None:
        findings += _server(server, timeout)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        from rich.markup import escape

        screen, marks = console(), {OK: "[green]ok      [/]", WARNING: "[yellow]warning [/]", FAILURE: "[red]failure [/]"}
        for status, what, found, fix in findings:
            screen.print(f"{marks[status]} {what}: {escape(found)}" + (f"\n          [bold]{escape(fix)}[/]" if fix else ""))
    return int(any(status == FAILURE for status, *_ in findings))


def _safely(check: Callable[..., Iterator[Finding]], *arguments: object) -> list[Finding]:
    """Run one check. If it raises, the others still run."""
    try:
        return list(check(*arguments))
    except Exception as error:
        return [Finding(WARNING, check.__name__.strip("_"), f"cannot be checked: {type(error).__name__}: {error}")]


def _versions() -> Iterator[Finding]:
    yield Finding(
        OK,
        "versions",
        f"echo-core {__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}, optree {optree.__version__}",
    )
    try:
        installed = version("echo-core")
    except PackageNotFoundError:
        return
    if installed != __version__:
        yield Finding(
            FAILURE,
            "versions",
            f"echo-core {__version__} is imported but {installed} is installed",
            f"Python finds {Path(echo_core.__file__).parent} first: take its folder out of PYTHONPATH, or uninstall echo-core, then "
            + how_to_install("echo-core"),
        )


def _plugins(needed: str | None) -> Iterator[Finding]:
    """Only the plugin named `needed` can fail; None means that any can."""
    for group in (discovery.TRANSPORTS, discovery.SAMPLERS, discovery.OBSERVERS, discovery.COMMANDS, discovery.RESOLVERS, discovery.LAUNCHERS):
        noun = group.rpartition(".")[2]
        records = discovery.default.examine(group)
        for record in records:
            if record.error:
                yield Finding(FAILURE if needed in (None, record.name) else WARNING, noun, record.error)
        usable = [f"{record.name} ({record})" for record in records if not record.error and not record.disabled]
        if usable:
            yield Finding(OK, noun, ", ".join(usable))
        elif group in (discovery.TRANSPORTS, discovery.SAMPLERS):
            first, *others = dict.fromkeys(requirement for kind, _, requirement in discovery.known() if kind == group)
            also = f" (there are also {', '.join(others)})" if others else ""
            yield Finding(WARNING, noun, "none is installed", how_to_install(first) + also)


def _transports(needed: str | None) -> Iterator[Finding]:
    """The findings of the transports about their libraries and devices. This imports them; listing them did not. For `needed` see `_plugins`."""
    seen = set()
    for record in discovery.default.examine(discovery.TRANSPORTS):
        if record.error or record.disabled:
            continue
        worst: Literal["warning", "failure"] = FAILURE if needed in (None, record.name) else WARNING
        try:
            cls = discovery.transport_class(record.name)
            for finding in cls.findings():
                if finding not in seen:  # one class may have several names
                    seen.add(finding)
                    yield finding if finding.status != FAILURE else Finding(worst, finding.what, finding.found, finding.fix)
        except Exception as error:
            yield Finding(worst, record.name, str(error) or type(error).__name__)


def _memory() -> Iterator[Finding]:
    free = _meminfo("MemAvailable")
    limit = _cgroup_limit()
    text = f"{free / GIB:.1f} GiB free" + (f", this container may use {limit / GIB:.1f} GiB" if limit else "")
    yield Finding(OK, "memory", text) if free > GIB else Finding(WARNING, "memory", text, "use a smaller capacity or num_buffers")


def _shared_memory() -> Iterator[Finding]:
    try:
        status = os.statvfs("/dev/shm")
    except OSError as error:
        yield Finding(WARNING, "/dev/shm", f"{error.strerror}", "transports through shared memory need it: mount -t tmpfs tmpfs /dev/shm")
        return
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    text = f"{free / GIB:.2f} of {total / GIB:.2f} GiB free"
    if not os.access("/dev/shm", os.W_OK):
        yield Finding(FAILURE, "/dev/shm", "this user cannot write there", "chmod 1777 /dev/shm")
    elif free < 256 << 20:
        yield Finding(WARNING, "/dev/shm", text, "a container gets 64 MiB by default: docker run --shm-size=8g")
    else:
        yield Finding(OK, "/dev/shm", text)


def _files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        yield Finding(WARNING, "file descriptors", f"{soft}, and a learner needs one or two for each worker", f"ulimit -n {min(65536, hard)}")
    else:
        yield Finding(OK, "file descriptors", f"{soft} (at most {hard})")


def _processors() -> Iterator[Finding]:
    usable, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    text = f"{usable} for this process, load {load:.1f}"
    yield Finding(OK, "processors", text) if load < 2 * usable else Finding(WARNING, "processors", text, "the machine is busy, so measurements are unreliable")


def _ports() -> Iterator[Finding]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    text = f"loopback works, {high - low + 1} outgoing ports ({low} to {high})"
    yield Finding(OK, "ports", text) if high - low > 5000 else Finding(WARNING, "ports", text, 'sysctl -w net.ipv4.ip_local_port_range="32768 60999"')


def _token(server: Address | None) -> Iterator[Finding]:
    """A token is made at first use, but not for a server on another machine, which would refuse it."""
    for name in ("ECHO_TOKEN", "ECHO_TOKEN_FILE"):
        if name in os.environ:
            break
    else:
        path = default_token_path()
        if not path.exists():
            if server is None or is_here(server):
                yield Finding(OK, "token", f"there is no token yet; {path} is made at first use")
            else:
                yield Finding(WARNING, "token", f"this machine has no token for a server on another machine ({path} is missing)", _how_to_copy(server))
            return
        name = str(path)
    try:
        token = find_token()
    except EchoError as error:
        yield Finding(FAILURE, "token", str(error))
        return
    if len(token) < 16:
        yield Finding(WARNING, "token", f"{name} has only {counted(len(token), 'byte')} and can be guessed", "echoctl token create --force")
    else:
        mode = f", mode {stat.S_IMODE(os.stat(name).st_mode):04o}" if os.path.exists(name) else ""
        yield Finding(OK, "token", f"{name}{mode}")


_MACHINE_CHECKS = (_memory, _shared_memory, _files, _processors, _ports)


def _server(address: Address, timeout: float) -> Iterator[Finding]:
    if address.port is not None:
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            yield Finding(FAILURE, "name", f"{address.host}: {error.strerror or error}", "check the spelling, or use an IP address")
            return
        yield Finding(OK, "name", f"{address.host} is {', '.join(dict.fromkeys(str(entry[4][0]) for entry in found))}")
    way = discovery.transport_class(address.scheme)
    before = set(way.findings())
    start = time.monotonic()
    try:
        observer = Observer(address, timeout=timeout, name="echoctl doctor")
    except (EchoError, OSError) as error:
        yield Finding(FAILURE, "connection", str(error), _remedy(error, address))
        return
    with observer:
        yield Finding(OK, "connection", f"handshake and token in {1e3 * (time.monotonic() - start):.0f} ms")
        trips = sorted(observer.ping() for _ in range(9))
        seconds, ahead = trips[len(trips) // 2][0], trips[0][1]
        yield Finding(OK if seconds < 0.05 else WARNING, "round trip", f"{1e3 * seconds:.2f} ms (median of 9)")
        if abs(ahead) > 1:
            yield Finding(WARNING, "clocks", f"the server's clock is {ahead:+.1f} s from this one", "run an NTP client on both machines")
        else:
            yield Finding(OK, "clocks", f"{1e3 * ahead:+.1f} ms apart, to within {1e3 * trips[0][0] / 2:.1f} ms")
        theirs = str(observer.request("ping").get("version", "of another version"))
        if theirs != __version__:
            yield Finding(WARNING, "its version", f"the server has echo-core {theirs}, this machine has {__version__}", "install the same version at both ends")
        else:
            yield Finding(OK, "its version", f"echo-core {theirs}, the same as here")
        stats: dict[str, Any] = observer.stats()
        workers = sum(key.endswith("/state") for key in stats)
        held = f"{stats['store/samples']}/{stats['store/capacity']} stored"
        yield from (finding for finding in way.findings() if finding not in before)  # findings about this connection
        yield Finding(OK, "server", f"{counted(workers, 'worker')}, {counted(stats['store/samples_inserted_total'], 'sample')}, {held}")


def _remedy(error: Exception, address: Address) -> str:
    if isinstance(error, SecurityError) and "is not the learner's" in str(error) and not {"ECHO_TOKEN", "ECHO_TOKEN_FILE"}.intersection(os.environ):
        return _how_to_copy(address)
    if isinstance(error, (TimeoutError, ConnectionRefusedError)):
        return f"is the server running there? try: nc -vz {address.host} {address.port}"
    return ""


def _how_to_copy(address: Address) -> str:
    return how_to_copy(address.host or "LEARNER", default_token_path())


def _meminfo(name: str) -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


def _cgroup_limit() -> int:
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            text = file.read().strip()
        return 0 if text == "max" else int(text)
    except (OSError, ValueError):
        return 0
