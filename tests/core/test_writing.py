"""Files that cannot be written: the error is ours and names the file and what is unharmed, and nothing is left by half."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from echo_core import EchoError, SecurityError, Server
from echo_core.base.errors import FileWriteError
from echo_core.base.writing import write_whole, writing
from echo_core.security.tls import Authority
from echo_core.security.tokens import find_tokens


@contextmanager
def no_file_may_grow(beyond: int = 0) -> Iterator[None]:
    """Writing to a file beyond that many bytes fails, in this process and in those that it starts."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (beyond, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- checkpoints ----------------------------------------------------------------------------------------------------------------

CHECKPOINTS = """
import errno, os, pathlib, resource, sys
import numpy as np
from echo_core import EchoError, Server
from echo_core.base.errors import FileWriteError

root, full = pathlib.Path(sys.argv[1]), sys.argv[2]
make = lambda: Server({"number": np.int64(0), "half": np.zeros(65536, np.int64)}, 1, sampler="uniform", capacity=8, seed=1)
server = make()
server.submit({"number": np.int64(7), "half": np.full(65536, 7)})
if sys.argv[3] == "second":
    assert server.checkpoint(root) == str(root / "00000001")
if full == "disk":
    with open(root.parent / "others", "wb", buffering=0) as others:  # what else takes room there
        while others.write(bytes(min(4096, os.statvfs(root.parent).f_bavail * os.statvfs(root.parent).f_frsize - 65536)) or b""):
            pass
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
server.submit({"number": np.int64(8), "half": np.full(65536, 8)})
try:
    server.checkpoint(root)
except EchoError as error:
    assert isinstance(error, FileWriteError) and isinstance(error, OSError)
    print(errno.errorcode[error.errno], error.filename, sep="\\n")
    print(error)
if sys.argv[3] == "second":
    batch, here = make().restore(root).table().peek(server.table().keys()[:1])
    assert here.all() and batch["number"].tolist() == [7]
print(*sorted(path.name for path in root.iterdir()))
(root.parent / "others").unlink(missing_ok=True)
if full == "disk":
    print(server.checkpoint(root))
"""


@pytest.mark.needs("echo-samplers")
@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize("full", ["disk", "limit"])
def test_a_checkpoint_that_does_not_fit_is_an_error_with_the_files_name_and_what_stays(full: str, which: str, tmp_path: Path) -> None:
    root = tmp_path / "disk" / "checkpoints"
    root.parent.mkdir()
    command = [sys.executable, "-c", CHECKPOINTS, str(root), full, which]
    if full == "disk":  # a small one that is only this process's
        mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'mount -t tmpfs -o size=2m none {root.parent} && exec "$@"', "sh"]
        if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no unshare here")
        command = mount + command
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    code, name, text, left, *after = ended.stdout.splitlines()
    assert code == ("ENOSPC" if full == "disk" else "EFBIG")
    assert Path(name).name == "0.leaf.0" and Path(name).is_relative_to(root)
    number = getattr(errno, code)
    assert text.startswith(f"[Errno {number}] cannot write {name}: {os.strerror(number)}")
    if full == "disk":
        assert " bytes are free); free space there" in text
    else:
        assert "ulimit -f" in text
    assert text.endswith(f"the checkpoint {root / '00000001'} is still whole" if which == "second" else f"there is no older checkpoint in {root}")
    assert left == ("00000001 LATEST" if which == "second" else "")
    assert after == ([] if full == "limit" else [str(root / ("00000002" if which == "second" else "00000001"))])


@pytest.mark.needs("echo-samplers")
def test_a_checkpoint_where_there_can_be_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    server = Server({"number": np.int64(0)}, 1, sampler="uniform", capacity=4)
    with pytest.raises(FileWriteError, match=f"cannot write {tmp_path / 'file' / 'checkpoints'}: Not a directory; there is no older checkpoint"):
        server.checkpoint(tmp_path / "file" / "checkpoints")


# ---- tokens and certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 400], ids=["neither fits", "only the key fits"])
def test_a_certificate_that_does_not_fit_leaves_the_old_one_and_its_key(limit: int, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    authority.issue("worker-3")
    before = {path: path.read_bytes() for path in (tmp_path / "authority").iterdir()}
    with no_file_may_grow(beyond=limit), pytest.raises(EchoError) as caught:
        authority.issue("worker-3")
    wrong = tmp_path / "authority" / ("worker-3.pem" if limit else "worker-3.key")
    assert isinstance(caught.value, FileWriteError) and caught.value.filename == str(wrong)
    assert str(caught.value).startswith(f"[Errno {errno.EFBIG}] cannot write {wrong}: File too large; raise this process's limit")
    assert {path: path.read_bytes() for path in (tmp_path / "authority").iterdir()} == before


def test_a_token_file_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    with no_file_may_grow(), pytest.raises(SecurityError, match="cannot create a token file at .*/echo/token: File too large.*set ECHO_TOKEN"):
        find_tokens(env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert names(tmp_path / "echo") == []


# ---- the functions --------------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with no_file_may_grow(), pytest.raises(FileWriteError):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]
    write_whole(path, b"another", replace=False)
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new" and names(tmp_path) == ["file"]


def test_a_file_in_no_folder_is_named_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(FileWriteError) as caught:
        write_whole(tmp_path / "nowhere" / "file", b"")
    assert str(caught.value) == f"[Errno 2] cannot write {tmp_path}/nowhere/file: No such file or directory; make the folder, or choose another"


def test_the_error_is_the_same_in_another_process() -> None:
    with pytest.raises(FileWriteError) as caught, writing("/disk/file", "the rest stays"):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.errno, again.filename) == (str(caught.value), errno.EDQUOT, "/disk/file")
    assert str(again).endswith("cannot write /disk/file: Disk quota exceeded; remove files of this user, or have the quota raised; the rest stays")


def test_other_errors_pass() -> None:
    with pytest.raises(SecurityError), writing("/disk/file"):
        raise SecurityError("other users can read it")
    with pytest.raises(EchoError), writing("/disk/file"), writing("/disk"):
        raise OSError(errno.EIO, "Input/output error")
