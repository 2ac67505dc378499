"""Safe by default: the shared token, and the rule that no learner is open to the network without one.

The holder of the token may send samples to the learner and read its weights. The token never
travels: both ends prove that they hold it (see `echo_net.handshake`). On one machine it needs
no set-up, because the first process creates a token file that only its user can read.

A learner may accept several tokens, one per line, so that tokens can be rotated or limited to
roles. `write:9f2c...` is a token for rollout workers: its holder may send experience and receive
weights, but may neither read a replay table (`read`) nor change the learner (`admin`, which
includes the other roles). A token without roles in front of it has all of them. The learner's list
decides; the roles in front of a worker's own token are not even sent.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import stat
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from ..base.address import Address, is_loopback_host
from ..base.errors import FileWriteError, SecurityError
from ..base.plural import counted
from ..base.writing import write_whole, writing

__all__ = [
    "EVERYTHING",
    "ROLES",
    "Token",
    "TokenSource",
    "check_directory",
    "check_exposure",
    "check_genuine",
    "check_private",
    "default_token_path",
    "find_token",
    "find_token_for",
    "find_tokens",
    "how_to_copy",
    "is_here",
    "may",
    "needs",
]

ROLES: Final = ("write", "read", "admin")
EVERYTHING: Final = frozenset(ROLES)

Explicit = str | bytes | os.PathLike[str] | Sequence[str | bytes | os.PathLike[str]] | None
_Operation = TypeVar("_Operation", bound=Callable[..., Any])

_PREFIX = re.compile(r"((?:write|read|admin)(?:,(?:write|read|admin))*):(.*)", re.S)
_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]*")  # hex, base64 and base64url consist of these characters

_MAX_BYTES = 4096
_SHORT = 16  # bytes; a shorter token can be guessed offline from one recorded handshake

_log = logging.getLogger("echo")


class Token(bytes):
    """Secret bytes that never appear in repr, str, format, logs or tracebacks.

    Compare proofs made from it with `hmac.compare_digest`, never tokens themselves.

    Attributes:
        roles: the roles that its holder has.
        is_text: whether these bytes are lines of a configuration that have not been read yet; see `given`.
        where: the place that it comes from, for messages.
    """

    roles: frozenset[str] = EVERYTHING
    where = "the token given"
    is_text = False

    @classmethod
    def from_text(cls, text: str) -> Token:
        """Keep the text of a configuration hidden until `find_tokens` reads `given`."""
        token = cls(text.encode())
        token.is_text = True
        return token

    @property
    def given(self) -> str | Token:
        """The argument for `find_tokens`: text with its lines and roles, or the token itself."""
        return self.decode() if self.is_text else self

    def __repr__(self) -> str:
        return "Token(hidden)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def find_token(explicit: Explicit = None, env: Mapping[str, str] = os.environ) -> Token:
    """The token with which this process proves itself: the first of `find_tokens`."""
    return find_tokens(explicit, env)[0]


def find_token_for(
    address: Address, explicit: Explicit = None, *, required: bool = True, env: Mapping[str, str] = os.environ
) -> Token | None:
    """The token with which a client proves itself to the learner at `address`: as `find_token`, but no token file is created if the learner is
    on another machine, because it would not accept that token.

    Raises:
        SecurityError: as `find_token`; and if there is no token for a learner on another machine, unless it is not `required`.
            The message names the file, and the commands that copy it.
    """
    if explicit is None and "ECHO_TOKEN" not in env and "ECHO_TOKEN_FILE" not in env and not is_here(address):
        path = default_token_path(env)
        if not os.path.exists(path):
            if not required:
                return None
            host = f"[{address.host}]" if ":" in address.host else address.host
            raise SecurityError(
                f"there is no token for the learner at {host}:{address.port}, which is on another machine: neither ECHO_TOKEN nor ECHO_TOKEN_FILE "
                f"is set, and there is no file {path}; {how_to_copy(address.host, path)}"
            )
    return find_token(explicit, env)


def how_to_copy(host: str, path: Path) -> str:
    """The commands that give this machine the token of the learner's user on `host`; they end a message."""
    host = f"[{host}]" if ":" in host else host  # scp takes what follows the first colon for a path
    return f"copy the learner's, for example: mkdir -m 700 -p {path.parent} && scp -p {host}:.config/echo/token {path}"


def is_here(address: Address) -> bool:
    """Whether the learner is on this machine: an address that a socket of this machine can be bound to."""
    if address.is_loopback:
        return True
    try:
        family, kind, protocol, _, (host, *_) = socket.getaddrinfo(address.host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError):  # no host has a name that cannot be encoded
        return False
    return True


def find_tokens(explicit: Explicit = None, env: Mapping[str, str] = os.environ) -> list[Token]:
    """The tokens of this process, from the first place that has any.

    1. `explicit`: a token as text or bytes, a path object that names a file, or several of these in a list;
    2. ECHO_TOKEN: the token;
    3. ECHO_TOKEN_FILE: the path of a token file;
    4. `default_token_path()`, which is created with a random token if it does not exist, so that
       all processes of one user on one machine agree without any set-up.

    Text holds one token per line, `secret` or `role,role:secret`; surrounding white space, empty
    lines and lines that begin with # are ignored. The secret consists of letters, digits and
    `- . _ ~ + / =`, and does not begin with the name of a role, so that a slip in the prefix is an
    error and never a token with every role. Bytes are taken unchanged as one token.

    Raises:
        SecurityError: a token is empty, a line is neither of the two forms (the message names the
            place and the line), or the file is missing, readable by other users, owned by
            another user, not a plain file, or cannot be created; the message ends in what to do.
    """
    if isinstance(explicit, os.PathLike):
        return _read(Path(explicit).expanduser(), "token_file")
    if isinstance(explicit, (str, bytes)):
        return _parse([explicit], "the token given")
    if explicit is not None:
        given: list[str | bytes] = []
        for item in explicit:
            given += _read(Path(item).expanduser(), "token_file") if isinstance(item, os.PathLike) else [item]
        return _parse(given, {0: "the list of tokens", 1: "the token given"}.get(len(given), "those given"))
    if "ECHO_TOKEN" in env:
        return _parse([env["ECHO_TOKEN"]], "ECHO_TOKEN")
    if "ECHO_TOKEN_FILE" in env:
        if not env["ECHO_TOKEN_FILE"].strip():
            raise SecurityError("ECHO_TOKEN_FILE is empty; unset it, or set it to a file's path")
        return _read(Path(env["ECHO_TOKEN_FILE"]).expanduser(), "ECHO_TOKEN_FILE")
    path = default_token_path(env)
    if not os.path.exists(path):
        _create(path)
    check_directory(path.parent)
    return _read(path, "the token file")


class TokenSource:
    """The tokens that a learner accepts. They are read again for every new client, so a changed token
    file counts at once, but only for new clients.

    While the file cannot be read, for example while it is being replaced, the previous tokens stay valid.
    """

    def __init__(self, explicit: Explicit = None, env: Mapping[str, str] = os.environ) -> None:
        """Raises the same errors as `find_tokens`."""
        self._explicit, self._env = explicit, env
        self._last = tuple(find_tokens(explicit, env))
        self._trouble = ""

    def __call__(self) -> tuple[Token, ...]:
        try:
            self._last = tuple(find_tokens(self._explicit, self._env))
            self._trouble = ""
        except SecurityError as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                _log.error("keeping the previous tokens, as the new ones cannot be read: %s", error)
        return self._last


def needs(*roles: str) -> Callable[[_Operation], _Operation]:
    """Declare that an operation requires one of these roles of the client (`admin` always suffices).

    An operation without this declaration requires `admin`.
    """
    unknown = set(roles) - EVERYTHING
    if unknown:
        raise ValueError(f"unknown roles {sorted(unknown)}; the roles are {', '.join(ROLES)}")

    def declare(operation: _Operation) -> _Operation:
        operation.needs = frozenset(roles)  # type: ignore[attr-defined]
        return operation

    return declare


def may(held: frozenset[str], operation: Callable[..., Any]) -> str | None:
    """None if a client that holds these roles may call `operation`; otherwise the roles that the operation requires."""
    wanted: frozenset[str] = getattr(operation, "needs", frozenset(("admin",)))
    if "admin" in held or held & wanted:
        return None
    return " or ".join(role for role in ROLES if role in wanted) or "admin"


def default_token_path(env: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CONFIG_HOME/echo/token`, or `~/.config/echo/token`.

    Raises:
        SecurityError: this user has no home directory.
    """
    base = Path(env.get("XDG_CONFIG_HOME") or ".")
    if not base.is_absolute():  # the XDG specification says that relative paths are ignored
        try:
            base = Path(env["HOME"] if env.get("HOME") else Path.home(), ".config")
        except RuntimeError:
            raise SecurityError(
                "this user has no home directory for a token file; "
                "set ECHO_TOKEN, or ECHO_TOKEN_FILE"
            ) from None
    return base / "echo" / "token"


def check_private(path: Path, status: os.stat_result) -> None:
    """Refuse a secret file that other users can read or change.

    A group may read it if this process is in that group, because that is how a secret is given to a process that does not own
    it (a Kubernetes volume with fsGroup: root's files of mode 0440).

    Raises:
        SecurityError: the message names the mode, and what to run or to set.
    """
    mode, me = stat.S_IMODE(status.st_mode), os.geteuid()
    groups = {os.getegid(), *os.getgroups()}
    if mode & (0o037 if status.st_gid in groups else 0o077):
        mine = me in (0, status.st_uid) and not os.statvfs(path).f_flag & os.ST_RDONLY
        raise SecurityError(
            f"{path} holds a secret and is open to other users (mode {mode:04o}, group {status.st_gid}); "
            + (
                f"run: chmod 600 {path}"
                if mine
                else "have its owner give it mode 0400, or 0440 with a group of this process; of a secret volume of Kubernetes, set "
                "defaultMode: 0400, and fsGroup if the process is not root"
            )
        )
    if me != 0 and status.st_uid not in (me, 0):
        raise SecurityError(
            f"{path} holds a secret and belongs to another user (uid {status.st_uid}); "
            f"copy it to a file of your own, or run: chown {me} {path}"
        )


def check_directory(directory: Path) -> None:
    """Refuse a folder into which other users could put their own token or authority.

    Raises:
        SecurityError: the message names the mode and the chmod to run.
    """
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o022:
        raise SecurityError(
            f"{directory} can be written by other users (mode {mode:04o}); "
            f"run: chmod 700 {directory}"
        )


def check_genuine(path: Path) -> None:
    """Refuse a file that other users can change, such as an authority that this user is to trust. They may read it.

    Raises:
        SecurityError: the message names the mode and the chmod or chown to run. OSError: the file does not exist.
    """
    status = path.stat()
    mode, me = stat.S_IMODE(status.st_mode), os.geteuid()
    if mode & 0o022:
        raise SecurityError(f"{path} can be changed by other users (mode {mode:04o}); run: chmod 644 {path}")
    if me != 0 and status.st_uid not in (me, 0):
        raise SecurityError(f"{path} belongs to another user (uid {status.st_uid}); remove it, or run: chown {me} {path}")


def check_exposure(
    host: str | Address, authenticated: bool, allow_insecure: bool = False, *, tokens: bool = True
) -> None:
    """Refuse to listen where other machines can connect if clients need no authentication.

    Args:
        host: the host about to be bound (`""` binds every interface), or a whole address.
        authenticated: whether clients have to prove that they hold the token.
        allow_insecure: the user's explicit permission to be exposed anyway.
        tokens: whether the protocol has authentication at all.

    Raises:
        SecurityError: the learner would be exposed without authentication; the message lists the remedies.
    """
    loopback = host.is_loopback if isinstance(host, Address) else is_loopback_host(host)
    if loopback or authenticated or allow_insecure:
        return
    shown = str(host) or "every interface"
    with_token = (
        "  - give a token, the same to learner and workers: set ECHO_TOKEN or ECHO_TOKEN_FILE and "
        "leave authentication on\n"
    )
    raise SecurityError(
        f"refusing to listen on {shown} without authentication: everyone who can reach it could "
        "feed this learner and read its weights. "
        f"{'Do one of these' if tokens else 'This protocol has no tokens, so do one of these'}:\n"
        '  - bind to loopback, for workers on this machine: host="127.0.0.1"\n'
        f"{with_token if tokens else ''}"
        "  - accept the risk, on a network you trust: allow_insecure=True"
    )


def _parse(given: Sequence[str | bytes], where: str) -> list[Token]:
    tokens: dict[bytes, Token] = {}
    for index, item in enumerate(given, 1):
        place = where if len(given) == 1 else f"token {index} of {where}"
        if isinstance(item, bytes):
            token = _checked(item, place)
            token.roles = getattr(item, "roles", EVERYTHING)  # a token that was read before keeps its roles
            token.where = getattr(item, "where", place)
            tokens.setdefault(bytes(token), token)
            continue
        lines = item.splitlines()
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            token = _of_line(line, place if len(lines) == 1 else f"{place}, line {number}")
            tokens.setdefault(bytes(token), token)
    if not tokens:
        _checked(b"", where)
    return list(tokens.values())


def _of_line(line: str, where: str) -> Token:
    """The token of one line of text: `secret`, or `role,role:secret`. The errors do not show the secret."""
    prefix = _PREFIX.fullmatch(line)
    secret = prefix[2].strip() if prefix else line
    odd = next((at for at, letter in enumerate(secret) if not _SECRET.fullmatch(letter)), None)
    unseen = next((at for at, letter in enumerate(secret) if not " " <= letter <= "~"), None)
    if unseen is None and ":" in secret:
        raise SecurityError(
            f"{where} has a ':' that does not end the names of roles; write the roles as in 'write:' or 'read,write:' "
            f"(the roles are {', '.join(ROLES)}), in small letters, without spaces, directly in front of the secret"
        )
    if odd is not None:
        at = odd if unseen is None else unseen
        name = unicodedata.name(secret[at], "a control character") if secret[at] != "\ufeff" else "a byte order mark"
        raise SecurityError(
            f"{where} has the character U+{ord(secret[at]):04X} ({name}) at place {at + 1} of the secret; remove it. A secret in text "
            "consists of letters, digits and - . _ ~ + / =; make one with: echoctl token create --print"
        )
    if secret.lower().startswith(ROLES):
        raise SecurityError(
            f"{where} has a secret that begins with the name of a role, as if a ':' were missing; write the roles as in 'write:' or "
            "'read,write:' in front of the secret, or make another one with: echoctl token create --print"
        )
    token = _checked(secret.encode(), where)
    if prefix:
        token.roles = frozenset(prefix[1].split(","))
        if "admin" in token.roles:
            token.roles = EVERYTHING
    return token


_warned: set[str] = set()  # places about whose short token a warning was logged


def _checked(token: bytes, where: str) -> Token:
    if not token:
        raise SecurityError(
            f"{where} is empty; make a token with: "
            'python -c "import secrets; print(secrets.token_hex(32))"'
        )
    if len(token) < _SHORT and where not in _warned:
        _warned.add(where)
        _log.warning(
            "%s has only %s and can be guessed; use 32 random bytes",
            where,
            counted(len(token), "byte"),
        )
    checked = Token(token)
    checked.where = where
    return checked


def _read(path: Path, where: str) -> list[Token]:
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for somebody to write.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecurityError(
            f"{where}: cannot read {path}: {error.strerror}; "
            "check the path, or give the token itself in ECHO_TOKEN"
        ) from error
    try:
        status = os.fstat(file)  # of the opened file, whatever the path names by now
        if not stat.S_ISREG(status.st_mode):
            raise SecurityError(f"{where}: {path} is not a plain file; point to one with a token")
        check_private(path, status)
        if status.st_size > _MAX_BYTES:
            raise SecurityError(
                f"{where}: {path} has {status.st_size} bytes; a token file has at most {_MAX_BYTES}"
            )
        data = os.read(file, _MAX_BYTES)
    finally:
        os.close(file)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SecurityError(f"{where}: {path} is not text; put one token per line into it") from None
    return _parse([text], f"{where} {path}")


def _create(path: Path) -> None:
    """Create the token file as a whole or not at all. If several processes start at once, one of them wins, and the others use its token."""
    try:
        with writing(path.parent):
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, secrets.token_hex(32).encode() + b"\n", mode=0o600, replace=False)
    except FileWriteError as error:
        raise SecurityError(f"cannot create a token file at {path}: {error.strerror}; or set ECHO_TOKEN, or ECHO_TOKEN_FILE") from error
