"""Tokens that do not show, files that others cannot read, learners that are not exposed."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import logging
import os
import pickle
import secrets
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.address import Address
from echo_core.base.errors import SecurityError
from echo_core.client.observer import Observer
from echo_core.security.tokens import EVERYTHING, Token, TokenSource, check_exposure, default_token_path, find_token, find_token_for, find_tokens, may, needs

SECRET = "correct-horse-battery-staple"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def secret_file(path: Path, text: str = SECRET + "\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_never_shows() -> None:
    token = Token(SECRET.encode())
    shown = [repr(token), str(token), f"{token}", f"{token!r:>20}", format(token)]
    shown += [repr([token]), repr({"token": token}), str((token,))]
    assert not any("horse" in text for text in shown)
    try:
        raise ValueError(token)
    except ValueError:
        assert "horse" not in traceback.format_exc()


def test_a_token_is_bytes() -> None:
    token = Token(SECRET.encode())
    assert bytes(token) == SECRET.encode()
    assert hmac.new(token, b"x", "sha256").digest() == hmac.digest(SECRET.encode(), b"x", "sha256")
    for same in (pickle.loads(pickle.dumps(token)), copy.deepcopy(token)):
        assert type(same) is Token
        assert same == token


def test_order_of_places(home: dict[str, str], tmp_path: Path) -> None:
    path = secret_file(tmp_path / "mine", "token-of-the-file")
    env = home | {"ECHO_TOKEN": " token-of-the-environment\n", "ECHO_TOKEN_FILE": str(path)}
    assert find_token("token-of-the-call", env) == b"token-of-the-call"
    assert find_token(b"token-of-the-call", env) == b"token-of-the-call"
    assert find_token(path, env) == b"token-of-the-file"
    assert find_token(None, env) == b"token-of-the-environment"
    del env["ECHO_TOKEN"]
    assert find_token(None, env) == b"token-of-the-file"
    assert not default_token_path(env).exists()


def test_files_of_tokens_in_a_list(home: dict[str, str], tmp_path: Path) -> None:
    old, new = secret_file(tmp_path / "old", "the-old-token-of-a-file"), secret_file(tmp_path / "new", "write:the-new-token-of-a-file")
    found = find_tokens([old, new, "a-token-as-text-in-a-list"], home)
    assert [bytes(token) for token in found] == [b"the-old-token-of-a-file", b"the-new-token-of-a-file", b"a-token-as-text-in-a-list"]
    assert found[1].roles == {"write"}


def test_first_start_creates_a_private_file(home: dict[str, str], tmp_path: Path) -> None:
    token = find_token(None, home)
    path = tmp_path / ".config/echo/token"
    assert default_token_path(home) == path
    assert len(token) == 64
    assert path.read_bytes().strip() == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert find_token(None, home) == token
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]


def test_a_wide_umask_changes_nothing(home: dict[str, str], tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        find_token(None, home)
    finally:
        os.umask(before)
    path = tmp_path / ".config/echo/token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_xdg_config_home(home: dict[str, str], tmp_path: Path) -> None:
    elsewhere = home | {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert default_token_path(elsewhere) == tmp_path / "xdg/echo/token"
    assert default_token_path(home | {"XDG_CONFIG_HOME": "relative"}).is_relative_to(tmp_path)
    find_token(None, elsewhere)
    assert (tmp_path / "xdg/echo/token").is_file()


def test_first_starters_agree(home: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import hashlib, sys; from echo_core.security.tokens import find_token; "
        "print('ready', flush=True); sys.stdin.readline(); "
        "print(hashlib.sha256(find_token()).hexdigest())"
    )
    env = os.environ | home
    for name in ("ECHO_TOKEN", "ECHO_TOKEN_FILE", "XDG_CONFIG_HOME"):
        env.pop(name, None)
    command = [sys.executable, "-c", program]
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    pipe = subprocess.PIPE
    starters = [
        subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) for _ in range(4)
    ]
    for starter in starters:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    digests = {starter.communicate()[0].strip() for starter in starters}
    assert digests == {hashlib.sha256(find_token(None, home)).hexdigest()}
    assert os.listdir(tmp_path / ".config/echo") == ["token"]


@pytest.mark.parametrize("mode", [0o660, 0o604, 0o666, 0o644, 0o610])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "token", mode=mode)
    with pytest.raises(SecurityError) as error:
        find_token(path)
    assert f"mode {mode:04o}" in str(error.value)
    assert str(error.value).endswith(f"run: chmod 600 {path}")
    assert SECRET not in str(error.value)
    path.chmod(0o600)
    assert find_token(path) == SECRET.encode()


def test_a_group_of_this_process_may_read(tmp_path: Path) -> None:
    for mode in (0o440, 0o640):
        assert find_token(secret_file(tmp_path / f"{mode:o}", mode=mode)) == SECRET.encode()


@pytest.fixture
def volume() -> Iterator[Path]:
    """A folder that every user may enter, as the mounted folder of a secret."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_another_user(group: int, call: Callable[[], object]) -> str:
    """What `call` returns or raises in a process of user 65534 and of `group`, as text."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([group])
            os.setgid(65534)
            os.setuid(65534)
            text = str(call())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def test_secret_volumes_of_kubernetes(volume: Path) -> None:
    """Files of root that the group of the volume (fsGroup) may read."""
    if os.geteuid() != 0:
        return  # only root can give files away
    (volume / "data").mkdir(mode=0o755)
    path = secret_file(volume / "data/token", mode=0o440)
    (volume / "token").symlink_to("data/token")
    os.chown(path, 0, 4242)
    call = lambda: bytes(find_token(volume / "token")).decode()  # noqa: E731
    assert as_another_user(4242, call) == SECRET
    assert "Permission denied" in as_another_user(4343, call)
    for mode in (0o444, 0o460):
        path.chmod(mode)
        said = as_another_user(4242, call)
        assert f"mode {mode:04o}, group 4242" in said and "defaultMode: 0400" in said and "chmod 600" not in said
    os.chown(path, 0, 4343)
    path.chmod(0o440)
    with pytest.raises(SecurityError, match="mode 0440, group 4343"):  # root can read it, but so can whoever is in that group
        find_token(path)


def test_a_directory_that_others_can_write_is_refused(home: dict[str, str], tmp_path: Path) -> None:
    find_token(None, home)
    directory = tmp_path / ".config/echo"
    directory.chmod(0o770)
    with pytest.raises(SecurityError, match=f"run: chmod 700 {directory}"):
        find_token(None, home)


def test_empty_lines_and_comments_do_not_count(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "token", f"\n# of the lab\n  {SECRET} \r\n")
    assert find_tokens(path) == [SECRET.encode()]
    assert find_token(path) == SECRET.encode()


def test_a_symbolic_link_to_a_private_file_is_fine(tmp_path: Path) -> None:
    secret_file(tmp_path / "data")
    (tmp_path / "token").symlink_to("data")
    assert find_token(tmp_path / "token") == SECRET.encode()


def test_unusable_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(mode=0o700)
    for path, said in [
        (tmp_path / "nowhere", "No such file"),
        (tmp_path / "directory", "not a plain file"),
        (tmp_path / "pipe", "not a plain file"),
        (secret_file(tmp_path / "empty", " \n"), "is empty"),
        (secret_file(tmp_path / "huge", "x" * 5000), "5000 bytes; a token file has at most 4096"),
    ]:
        with pytest.raises(SecurityError) as error:
            find_token(None, {"ECHO_TOKEN_FILE": str(path)})
        assert said in str(error.value)
        assert str(path) in str(error.value)
        assert "ECHO_TOKEN_FILE" in str(error.value)


def test_empty_is_never_a_token(home: dict[str, str], tmp_path: Path) -> None:
    for env in ({"ECHO_TOKEN": " "}, {"ECHO_TOKEN_FILE": ""}):
        with pytest.raises(SecurityError, match="is empty"):
            find_token(None, home | env)
    with pytest.raises(SecurityError, match=r"secrets\.token_hex"):
        find_token("")
    assert os.listdir(tmp_path) == []


def test_no_place_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecurityError, match=r"cannot create a token file.*set ECHO_TOKEN"):
        find_token(None, {"HOME": str(tmp_path / "file")})


def test_a_short_token_is_used_with_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_core.security.tokens._warned", set())
    with caplog.at_level(logging.WARNING, logger="echo"):
        assert find_token("hunter2") == b"hunter2"
        assert find_token("hunter2") == b"hunter2"
    assert caplog.text.count("only 7 bytes") == 1
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "learner"])
def test_exposure_is_refused_with_three_remedies(host: str) -> None:
    with pytest.raises(SecurityError) as error:
        check_exposure(host, authenticated=False)
    text = str(error.value)
    assert (host or "every interface") in text
    assert text.count("\n  - ") == 3
    for remedy in ('host="127.0.0.1"', "ECHO_TOKEN", "allow_insecure=True"):
        assert remedy in text
    check_exposure(host, authenticated=True)
    check_exposure(host, authenticated=False, allow_insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_without_tokens_in_the_protocol_two_remedies_are_left(host: str) -> None:
    with pytest.raises(SecurityError, match="This protocol has no tokens") as error:
        check_exposure("0.0.0.0", authenticated=False, tokens=False)
    text = str(error.value)
    assert text.count("\n  - ") == 2 and "allow_insecure=True" in text and "ECHO_TOKEN" not in text
    check_exposure(host, authenticated=False, tokens=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    check_exposure(host, authenticated=False)


def test_exposure_of_whole_addresses() -> None:
    check_exposure(Address.parse("shm://name"), authenticated=False)
    check_exposure(Address.parse("tcp://[::1]:1"), authenticated=False)
    with pytest.raises(SecurityError, match="tcp://learner:1"):
        check_exposure(Address.parse("tcp://learner:1"), authenticated=False)


# ------------------------------------------------------------------------- several tokens, and their roles


def test_one_token_a_line_with_the_roles_in_front_of_it(tmp_path: Path) -> None:
    text = f"{SECRET}-new\nwrite:{SECRET}-workers\n# old\nread,write:{SECRET}-both\nadmin:{SECRET}-boss\n"
    for tokens in (find_tokens(text), find_tokens(secret_file(tmp_path / "t", text)), find_tokens(None, {"ECHO_TOKEN": text})):
        assert [token.decode() for token in tokens] == [
            f"{SECRET}-new", f"{SECRET}-workers", f"{SECRET}-both", f"{SECRET}-boss",
        ]  # fmt: skip
        assert [token.roles for token in tokens] == [EVERYTHING, {"write"}, {"read", "write"}, EVERYTHING]
    assert find_tokens([f"write:{SECRET}", b"write:raw bytes are as they are"])[1] == b"write:raw bytes are as they are"
    assert find_token(text) == f"{SECRET}-new".encode()


@pytest.mark.parametrize(
    "line, said",
    [
        (f"write, read:{SECRET}", "':'"),
        (f"Write:{SECRET}", "in small letters"),
        (f"write :{SECRET}", "without spaces"),
        (f"writer:{SECRET}", "the roles are write, read, admin"),
        (f"write;read:{SECRET}", "':'"),
        (f"write:read:{SECRET}", "':'"),
        (f"write:{SECRET}:rest", "':'"),
        (f"\ufeffwrite:{SECRET}", "byte order mark"),
        (f"write\uff1a{SECRET}", "FULLWIDTH COLON"),
        (f"write\u200b:{SECRET}", "ZERO WIDTH SPACE"),
        (f"write\x00{SECRET}", "a control character"),
        (f"write {SECRET}", "SPACE"),
        (f"write={SECRET}", "begins with the name of a role"),
        (f"READ{SECRET}", "begins with the name of a role"),
    ],
)
def test_a_slip_in_the_roles_is_never_a_token_of_every_role(tmp_path: Path, line: str, said: str) -> None:
    path = secret_file(tmp_path / "token", f"{'a' * 48}\n\n{line}\n")
    for given, env, where in [
        (path, {}, f"{path}, line 3"),
        (path.read_text(), {}, "the token given, line 3"),
        (line, {}, "the token given has"),
        ([line], {}, "the token given has"),
        (["a" * 48, line], {}, "token 2 of those given has"),
        (None, {"ECHO_TOKEN": line}, "ECHO_TOKEN has"),
    ]:
        with pytest.raises(SecurityError) as error:
            find_tokens(given, env)
        assert where in str(error.value) and said in str(error.value)
        assert "horse" not in str(error.value)
    with pytest.raises(SecurityError):
        TokenSource(path)


def test_tokens_as_tools_make_them() -> None:
    for secret in (secrets.token_hex(32), "-" + secrets.token_urlsafe(32), "+" + base64.b64encode(secrets.token_bytes(32)).decode()):
        assert find_tokens(secret) == find_tokens(f"write:{secret}") == [secret.encode()]


def test_roles_survive_copies() -> None:
    (token,) = find_tokens(f"write:{SECRET}")
    for same in (pickle.loads(pickle.dumps(token)), copy.deepcopy(token)):
        assert same.roles == {"write"}
        assert "horse" not in repr(vars(same))


@pytest.mark.parametrize("text", ["write:", "# only this", "\n", "read,write: "])
def test_a_list_without_a_token_is_an_error(text: str) -> None:
    with pytest.raises(SecurityError, match="is empty"):
        find_tokens(text)


def test_a_token_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = secret_file(tmp_path / "token", f"{SECRET}-old\n")
    source = TokenSource(path)
    assert source() == (f"{SECRET}-old".encode(),)
    secret_file(path, f"{SECRET}-new\n{SECRET}-old\n")
    assert source() == (f"{SECRET}-new".encode(), f"{SECRET}-old".encode())
    path.unlink()
    with caplog.at_level(logging.ERROR):
        assert len(source()) == len(source()) == 2
    assert len(caplog.records) == 1 and "keeping" in caplog.text and "horse" not in caplog.text
    secret_file(path, f"{SECRET}-new\n")
    assert source() == (f"{SECRET}-new".encode(),)


def test_operations_say_whom_they_are_for() -> None:
    @needs("read", "write")
    def either() -> None: ...

    def undeclared() -> None: ...

    assert may(frozenset(("write",)), either) is may(EVERYTHING, either) is may(EVERYTHING, undeclared) is None
    assert may(frozenset(("admin",)), either) is None
    assert may(frozenset(), either) == "write or read"
    assert may(frozenset(("write", "read")), undeclared) == "admin"
    with pytest.raises(ValueError, match="wrte"):
        needs("wrte")


def test_no_token_is_made_for_a_learner_on_another_machine(home: dict[str, str]) -> None:
    path = default_token_path(home)
    elsewhere, here = Address.parse("tcp://192.0.2.7:5555"), Address.parse("tcp://127.0.0.1:5555")
    with pytest.raises(SecurityError) as raised:
        find_token_for(elsewhere, env=home)
    said = str(raised.value)
    assert "192.0.2.7:5555" in said and "neither ECHO_TOKEN nor ECHO_TOKEN_FILE is set" in said and f"there is no file {path}" in said
    assert said.endswith(f"mkdir -m 700 -p {path.parent} && scp -p 192.0.2.7:.config/echo/token {path}")
    assert not path.exists()
    assert find_token_for(elsewhere, required=False, env=home) is None and not path.exists()
    assert find_token_for(elsewhere, "token-of-the-call", env=home) == b"token-of-the-call"
    assert find_token_for(elsewhere, env=home | {"ECHO_TOKEN": "token-of-the-environment"}) == b"token-of-the-environment"
    made = find_token_for(here, env=home)
    assert path.exists() and find_token_for(elsewhere, env=home) == made, "one that is there is used"


def test_the_command_that_copies_a_token_works_for_addresses_of_ipv6(home: dict[str, str]) -> None:
    with pytest.raises(SecurityError, match=r"learner at \[2001:db8::7\]:5555, .* && scp -p \[2001:db8::7\]:.config/echo/token /"):
        find_token_for(Address.parse("tcp://[2001:db8::7]:5555"), env=home)


def test_a_name_that_no_host_can_have_is_on_no_machine(home: dict[str, str]) -> None:
    with pytest.raises(SecurityError, match="there is no token for the learner at aaa"):
        find_token_for(Address.parse(f"tcp://{'a' * 70}:5555"), env=home)


@pytest.mark.parametrize("address", ["shm://name", "tcp://localhost:1", "tcp://[::1]:1", "tcp://0.0.0.0:1"])
def test_a_token_is_made_for_a_learner_on_this_machine(home: dict[str, str], address: str) -> None:
    assert find_token_for(Address.parse(address), env=home) == find_token(None, home)


def test_a_token_knows_where_it_comes_from(home: dict[str, str]) -> None:
    assert find_token(None, home).where == f"the token file {default_token_path(home)}"
    assert find_token(None, home | {"ECHO_TOKEN": "token-of-the-environment"}).where == "ECHO_TOKEN"
    assert find_token(find_token(None, home)).where == f"the token file {default_token_path(home)}"


@pytest.mark.needs("echo-tcp", "echo-samplers")
def test_no_client_makes_a_token_for_a_learner_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ECHO_TOKEN", "ECHO_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    example, learner = {"x": np.zeros(1, np.float32)}, "tcp://192.0.2.7:5555"
    for connect in (
        lambda: Client(learner, example, timeout=1),
        lambda: Client("tcp://x:1", example, timeout=1, resolve=lambda address: learner),
        lambda: Observer(learner, timeout=1),
        lambda: Server(example, 1, weights_from=learner),
    ):
        with pytest.raises(SecurityError, match="there is no token for the learner at 192.0.2.7:5555"):
            connect()
    assert list(tmp_path.iterdir()) == []
    server = Server(example, 1, "tcp://127.0.0.1:0", token="a-token-of-the-learner")
    with server, pytest.raises(SecurityError, match=f"This worker used the token file {tmp_path / 'echo/token'}"):
        Client(server.address, example, timeout=5)
