"""If the system refuses shared memory, the error names the remedy."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from echo_core.base.memory import memfd
from echo_ipc import Cell
from echo_ipc.collector_error import create_error_pipe


@pytest.fixture
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_open_files(no_descriptors: None) -> None:
    for make in (lambda: Cell({"x": ((), "int64")}), create_error_pipe, lambda: memfd.make(4096, False)):
        with pytest.raises(OSError, match="ulimit -n") as caught:
            make()
        assert caught.value.errno == errno.EMFILE and "seccomp" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENFILE, "fs.file-max"), (errno.EPERM, "seccomp"), (errno.ENOSYS, "seccomp"), (errno.ENOMEM, "memory left"), (errno.EIO, "")]
)
@pytest.mark.parametrize("call", ["memfd_create", "ftruncate"])
def test_each_error_has_its_own_remedy(number: int, remedy: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises((OSError, MemoryError)) as caught:
        memfd.reserve(4096, "echo-test", "this test", "make it smaller")
    text = str(caught.value)
    assert os.strerror(number) in text and ("seccomp" in text) == (remedy == "seccomp")
    assert (remedy if call == "memfd_create" or number != errno.ENOMEM else "make it smaller") in text


def test_huge_pages_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OSError, match="leave out huge_pages"):
        memfd.make(4096, True)
