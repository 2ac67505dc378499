"""The error of memory that cannot be made names the remedy of its own cause."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from echo_core.base.memory import memfd
from echo_testing.processes import forked


def test_out_of_descriptors_the_remedy_is_the_limit_of_open_files() -> None:
    def check() -> None:
        least = os.dup(0)
        os.close(least)
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with pytest.raises(OSError, match="raise the limit of open files .ulimit -n.") as caught:
            memfd.make(4096, False)
        assert caught.value.errno == errno.EMFILE and "seccomp" not in str(caught.value)

    forked(check)
