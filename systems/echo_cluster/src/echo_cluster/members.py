"""The members of a cluster: its shards, found by a list, a folder of address files, DNS, or the variables of SLURM."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_core import Address, ConfigError, SecurityError

from .near import host_id

__all__ = ["Member", "Members", "announce", "find_members", "slurm_folder"]

MAX_FILE_BYTES = 4096
MAX_FILES = 65_536
HOST = "# host "
SLURM = "slurm://"  # no address, as it has nothing after the scheme
_NAME = re.compile(r"shard-(\d{1,5})")

Members = Callable[[], "list[Member]"]


@dataclass(frozen=True)
class Member:
    """One shard.

    Attributes:
        name: is the same after a restart, also at another address.
        addresses: where it listens now.
        host: the `near.host_id` of its host; "" if it is not known.
    """

    name: str
    addresses: tuple[Address, ...]
    host: str = ""


def find_members(given: Any, *, auth: bool = True) -> Members:
    """A function that says who is there now. It can be called at any time, from any thread.

    Args:
        given: a list with an address for each shard, or with several addresses of one shard in a list of its own; `file:///folder`, whose files
            `shard-0`, `shard-1` and so on `announce` has written; `dns://name:port?transport=tcp`, all addresses of the name; `slurm://`, the folder
            of this SLURM job; or a function without arguments that returns `Member`s.
        auth: whether the caller shows a token. Without one, files and DNS are refused, because their addresses are not checked by anything else.

    Raises:
        ConfigError: `given` is something else. SecurityError: `auth` is False and addresses would come from files or DNS.
            AddressError: text is not an address.
    """
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, (str, Address)):
        of_job = str(given) == SLURM
        address = Address("file", path=str(slurm_folder())) if of_job else Address.parse(given)
        if address.scheme not in ("file", "dns"):
            return _listed([[address]])
        if not auth:
            raise SecurityError(
                f"the members at {address} need tokens, because whoever can write their addresses could send workers elsewhere; leave out auth=False, "
                "or list the addresses"
            )
        if address.scheme == "dns":
            return _by_dns(address)
        folder = Path(address.path)
        return lambda: _in_folder(folder)
    if isinstance(given, Iterable):
        return _listed([[Address.parse(one)] if isinstance(one, (str, Address)) else [Address.parse(each) for each in one] for one in given])
    raise ConfigError(f'members must be a list of addresses, or "file://", "dns://" or "slurm://" text, not {given!r}')


def _listed(given: list[list[Address]]) -> Members:
    if not given or not all(given):
        raise ConfigError("members must name at least one shard, and at least one address for each")
    listed = [Member(str(addresses[0]), tuple(addresses)) for addresses in given]
    if len({member.name for member in listed}) < len(listed):
        raise ConfigError(f"members name a shard twice: {', '.join(member.name for member in listed)}")
    return lambda: list(listed)


def _by_dns(address: Address) -> Members:
    """All addresses (A and AAAA records) of a name. A transport with TLS is refused: certificates are for names, and this dials addresses."""
    options = dict(address.options)
    scheme = options.pop("transport", "")
    if not scheme or address.port is None:
        raise ConfigError(f'"{address}" needs a port and a transport, such as dns://echo-shard:5000?transport=tcp')
    if scheme.endswith("s"):
        raise ConfigError(f'"{address}": {scheme} checks a certificate for a name, and all members have the same name; list their names instead')
    host, port = address.host, address.port

    def find() -> list[Member]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, socket.EAI_AGAIN, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
                return []  # nobody is up yet
            raise
        hosts = sorted({str(entry[4][0]) for entry in found})
        return [Member(f"{one}:{port}", (Address(scheme, one, port, options=options),)) for one in hosts]

    return find


def slurm_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder in which the shards of this SLURM job write their addresses: `$ECHO_CLUSTER_DIR/$SLURM_JOB_ID`. Raises ConfigError."""
    missing = [name for name in ("ECHO_CLUSTER_DIR", "SLURM_JOB_ID") if not environ.get(name)]
    if missing:
        raise ConfigError(f"slurm:// needs the variables ECHO_CLUSTER_DIR (a folder on a shared disk) and SLURM_JOB_ID; {' and '.join(missing)} is not set")
    return Path(environ["ECHO_CLUSTER_DIR"], environ["SLURM_JOB_ID"])


def announce(folder: str | os.PathLike[str], number: int, addresses: Iterable[Address | str], host: str | None = None) -> Path:
    """Write the addresses of shard `number` into a folder, by rename, so that nobody reads a part of them. Returns the file.

    The folder is made if it is missing, for this user only. `host` is the `near.host_id` of the shard's host; None is that of this process.

    Raises:
        ConfigError: the number is not from 0 to 65 535. SecurityError: others could write into the folder. OSError: it cannot be written.
    """
    if not 0 <= number < MAX_FILES:
        raise ConfigError(f"the number of a shard must be from 0 to {MAX_FILES - 1}, not {number}")
    place = Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(place, place.stat(), "folder")
    text = "".join(f"{Address.parse(address)}\n" for address in addresses) + f"{HOST}{host_id() if host is None else host}\n"
    path = place / f"shard-{number}"
    unfinished = place / f".shard-{number}.{os.getpid()}"
    opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(opened, text.encode())
        os.fsync(opened)
    finally:
        os.close(opened)
    os.replace(unfinished, path)
    return path


def _in_folder(folder: Path) -> list[Member]:
    """The shards whose files lie in a folder. A folder that is missing has none yet.

    Raises:
        SecurityError: the folder or a file belongs to somebody else, or others may write it. ConfigError: a file does not contain addresses.
    """
    try:
        _check_owner(folder, folder.stat(), "folder")
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
    return [member for number in numbers if (member := _read(folder / f"shard-{number}")) is not None]


def _read(path: Path) -> Member | None:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None  # its shard has ended since the folder was listed
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a plain file; announce() writes the files of shards")
        _check_owner(path, status, "file")
        data = os.read(opened, MAX_FILE_BYTES + 1)
    finally:
        os.close(opened)
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError
        lines = data.decode().splitlines()
        addresses = tuple(Address.parse(line) for line in lines if line.strip() and not line.startswith("#"))
        if not addresses:
            raise ValueError
    except ValueError:  # nothing of the file is shown: the folder may be the wrong one
        raise ConfigError(f"{path} does not contain the addresses of a shard, one a line; announce() writes such files") from None
    host = next((line[len(HOST) :].strip() for line in lines if line.startswith(HOST)), "")
    return Member(path.name, addresses, host)


def _check_owner(path: Path, status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise SecurityError(f"the {what} {path} belongs to user {status.st_uid}, who could send workers elsewhere; use a {what} of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SecurityError(f"others may write the {what} {path}, and could send workers elsewhere; run chmod go-w {path}")
