"""The members of a cluster: its shards, found by a list, a folder of address files, DNS, or the variables of SLURM."""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from echo_core import Address, ConfigError, EchoError, SecurityError

from .near import host_id

__all__ = ["Member", "Members", "announce", "find_members", "slurm_folder"]

_log = logging.getLogger("echo")

MAX_FILE_BYTES = 4096
MAX_FILES = 65_536
HOST = "# host "
SLURM = "slurm://"  # no address, as it has nothing after the scheme
_NAME = re.compile(r"shard-(\d{1,5})", re.ASCII)
RESOLVED = ("file", "dns")  # schemes whose addresses come from elsewhere

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
        if address.scheme not in RESOLVED:
            return _listed([[address]], auth)
        _check_auth(address, auth)
        if address.scheme == "dns":
            return _by_dns(address)
        return partial(_in_folder, Path(address.path), set())
    if isinstance(given, Iterable) and not isinstance(given, (bytes, bytearray)):
        return _listed([_addresses("members", one) for one in given], auth)
    raise ConfigError(f'members must be a list of addresses, or "file://", "dns://" or "slurm://" text, not {given!r}')


def _addresses(argument: str, one: Any) -> list[Address]:
    """The addresses of one shard."""
    if isinstance(one, (str, Address)):
        return [Address.parse(one)]
    if isinstance(one, Iterable) and not isinstance(one, (bytes, bytearray)):
        each = list(one)
        if all(isinstance(address, (str, Address)) for address in each):
            return [Address.parse(address) for address in each]
    raise ConfigError(f"{argument}: a shard must have an address as text, such as tcp://10.0.0.1:5000, or a list of several, not {one!r:.100}")


def _check_auth(address: Address, auth: bool) -> None:
    if not auth and address.scheme in RESOLVED:
        raise SecurityError(
            f"the members at {address} need tokens, because whoever can write their addresses could send workers elsewhere; leave out auth=False, "
            "or list the addresses"
        )


def _listed(given: list[list[Address]], auth: bool) -> Members:
    if not given or not all(given):
        raise ConfigError("members must name at least one shard, and at least one address for each")
    for address in (one for addresses in given for one in addresses):
        _check_auth(address, auth)  # the client of the shard would resolve it
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
        unset = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        raise ConfigError(f"slurm:// needs the variables ECHO_CLUSTER_DIR (a folder on a shared disk) and SLURM_JOB_ID; {unset}")
    return Path(environ["ECHO_CLUSTER_DIR"], environ["SLURM_JOB_ID"])


def announce(folder: str | os.PathLike[str], number: int, addresses: Iterable[Address | str], host: str | None = None) -> Path:
    """Write the addresses of shard `number` into a folder, by rename, so that nobody reads a part of them. Returns the file.

    The folder is made if it is missing, for this user only. `host` is the `near.host_id` of the shard's host; None is that of this process.

    Raises:
        ConfigError: the number is not a whole number from 0 to 65 535, there are no addresses, or the folder is a file. SecurityError: others could
            write into the folder. OSError: it cannot be written.
    """
    if isinstance(number, bool) or not hasattr(type(number), "__index__") or not 0 <= number < MAX_FILES:
        raise ConfigError(f"number, which is that of a shard, must be a whole number from 0 to {MAX_FILES - 1}, not {number!r}")
    listed = _addresses("addresses", addresses)
    if not listed:
        raise ConfigError("addresses must have at least one address of the shard, such as Server.addresses has them once the server is started")
    place = Path(folder)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"folder: {place} is a file, or lies below one; name a folder") from None
    _check_owner(place, place.stat(), "folder")
    text = "".join(f"{address}\n" for address in listed) + f"{HOST}{host_id() if host is None else host}\n"
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


def _in_folder(folder: Path, warned: set[str]) -> list[Member]:
    """The shards whose files lie in a folder. A folder that is missing has none yet. A file that cannot be taken is left out if others can, and the
    log says so once: `warned` has what it has said.

    Raises:
        SecurityError: the folder or every file belongs to somebody else, or others may write it. ConfigError: the folder is a file, or no file
            contains addresses. OSError: the folder or every file cannot be read.
    """
    try:
        _check_owner(folder, folder.stat(), "folder")
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise ConfigError(
            f"members: {folder} is a file, or lies below one, and file:// names the folder of the shards' files here; for one shard, write its address"
        ) from None
    members: list[Member] = []
    errors: list[Exception] = []
    for name in sorted((name for name in names if _NAME.fullmatch(name)), key=lambda name: int(name[len("shard-") :])):
        try:
            if (member := _read(folder / name)) is not None:
                members.append(member)
        except (EchoError, OSError) as error:
            errors.append(error)
    if errors and not members:
        raise errors[0]
    for text in (said := [str(error) for error in errors]):
        if text not in warned:
            _log.warning("a file of a shard is left out: %s", text)
    warned.intersection_update(said)
    warned.update(said)
    return members


def _read(path: Path) -> Member | None:
    if str(int(path.name[len("shard-") :])) != path.name[len("shard-") :]:
        raise ConfigError(f"{path} has a number with zeros before it, and would name a shard twice; rename it as announce() does: shard-0, shard-1, shard-10")
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None  # its shard has ended since the folder was listed
    except OSError as error:  # a symbolic link, or a disk that fails
        raise ConfigError(f"{path} cannot be read ({error.strerror}); announce() writes the files of shards") from error
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
