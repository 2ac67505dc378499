"""On machines that are full or forbid something, errors come at once and are clear, with numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Server
from echo_shm.transport import ShmTransport
from echo_testing.samples import example, stacked

PRELUDE = """
import ctypes, os, resource, struct
import numpy as np
from echo_core import Client, Server
from echo_testing.samples import example, sample, stacked
from echo_shm.transport import ShmTransport

def said(call):
    try:
        call()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"

def refuse(*numbers, error):
    "From now on these system calls fail with `error`: a seccomp filter, as containers have."
    code = [(0x20, 0, 0, 0)]  # load the number of the call
    for i, number in enumerate(numbers):
        code.append((0x15, len(numbers) - i, 0, number))  # equal: jump to the refusal
    code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | error)]  # allow; refuse
    program = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(program)
    filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(filter), 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP

def exchange(server, client, count=8):
    client.send_batch(stacked(1, 0, count))
    batch = server.sample(timeout=10).batch
    assert batch["number"].tolist() == list(range(len(batch["number"])))
"""
MEMFD_CREATE, PIDFD_OPEN = 319, 434  # on x86-64

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")


def child(code: str, *prefix: str, env: dict[str, str] | None = None) -> str:
    """The output of `code` in a process of its own."""
    script = PRELUDE + textwrap.dedent(code)
    done = subprocess.run(
        [*prefix, sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=os.environ | (env or {})
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# ---- memory ----------------------------------------------------------------------------------------------------


def test_a_limit_of_file_sizes_is_an_error_with_the_remedy() -> None:
    said = child("""
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        print(said(lambda: Server(example(1 << 16), 64, ShmTransport())))
    """)
    assert said.startswith("MemoryError") and "ulimit -f" in said and any(len(w.split(",")) > 2 for w in said.split()), said


def test_a_lane_that_is_not_to_be_had_leaves_the_socket() -> None:
    said = child("""
        with Server(example(), 8, ShmTransport(mode="private")) as server:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
            with Client(server.address, example()) as client:
                exchange(server, client)
                print(client.stats()["mode"])
    """)
    assert said.split() == ["socket"]


@pytest.mark.parametrize("mode", ["direct", "private"])
def test_locked_memory_is_not_needed(mode: str) -> None:
    said = child(f"""
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        with Server(example(), 8, ShmTransport(mode={mode!r})) as server, Client(server.address, example()) as client:
            exchange(server, client)
            print(client.stats()["mode"])
    """)
    assert said.split() == [mode]


def test_a_worker_without_descriptors_says_so() -> None:
    with Server(example(), 8, ShmTransport()) as server:
        server.publish({"w": np.zeros(10)})
        said = child(f"""
            import echo_shm.connection
            def connect():
                with Client({str(server.address)!r}, example(), timeout=1) as client:
                    client.weights(timeout=1)
            used = len(os.listdir("/proc/self/fd")) - 1
            for left in range(2, 12):
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, 4096))
                print(said(connect))
        """)
    # The number of free descriptors does not matter, because those of the memory come after those of the connection.
    assert "raise `ulimit -n`" in said and "install the same echo-shm" not in said and "nothing was raised" in said, said


def test_a_worker_without_address_space_says_so() -> None:
    with Server(example(1 << 20), 64, ShmTransport("echo-test-limits"), num_buffers=4):
        said = child("""
            used = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), used + (200 << 20)))
            print(said(lambda: Client("shm://echo-test-limits", example(1 << 20), timeout=20)))
        """)
    assert "ulimit -v" in said and 'mode="private"' in said and "bytes" in said, said


@pytest.fixture
def cage() -> Iterator[Path]:
    """A control group that allows 96 MiB."""
    groups = Path("/sys/fs/cgroup")
    first = (groups / "memory") if (groups / "memory" / "tasks").exists() else groups
    group = first / f"echo-test-{os.getpid()}"
    try:
        group.mkdir()
        name = "memory.limit_in_bytes" if first.name == "memory" else "memory.max"
        (group / name).write_text(str(96 << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group of memory can be made here: {error}")
    yield group
    group.rmdir()


def test_what_a_container_allows_is_known_before_it_is_used(cage: Path) -> None:
    said = child(
        """
        open(os.environ["CAGE"] + "/cgroup.procs", "w").write(str(os.getpid()))
        for transport in (ShmTransport(), None):
            print(said(lambda: Server(example(1 << 20), 64, transport, num_buffers=2)))
        """,
        env={"CAGE": str(cage)},
    )
    for line in said.splitlines():
        assert line.startswith("MemoryError") and "are available" in line, line
        free = int(line.split("; ")[1].split()[0].replace(",", ""))
        assert free <= 96 << 20


# ---- huge pages ------------------------------------------------------------------------------------------------


def free_huge_pages() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free")), 0)


def test_huge_pages_that_are_not_there_are_an_error_with_numbers() -> None:
    if free_huge_pages() >= 512:
        pytest.skip("this machine has more than a gigabyte of huge pages set aside")
    with pytest.raises(MemoryError, match=r"[\d,]+ bytes.*[\d,]+ huge pages, and \d+ are free; raise vm.nr_hugepages"):
        Server({"x": np.zeros(1 << 20, np.uint8)}, 256, ShmTransport(huge_pages=True))


def test_a_store_in_huge_pages() -> None:
    if free_huge_pages() < 8:
        pytest.skip("no huge pages are set aside here (sysctl vm.nr_hugepages=16)")
    before = free_huge_pages()
    with Server(example(), 8, ShmTransport(huge_pages=True)) as server:
        assert free_huge_pages() < before
        with Client(server.address, example()) as client:
            for first in range(0, 80, 8):
                client.send_batch(stacked(1, first, 8))
                assert server.sample(timeout=10).batch["number"].tolist() == list(range(first, first + 8))
            assert client.stats()["mode"] == "direct"


@pytest.mark.parametrize("mode", ["direct", "private"])
def test_the_kernel_gives_huge_pages_where_it_can(mode: str) -> None:
    """Both ends have them, and without them everything is as before."""
    for forbid in ("", "forbid_huge_pages()"):
        said = child(f"""
            from echo_testing.huge_pages import *
            {forbid}
            name = "memfd:echo-store" if {mode!r} == "direct" else "memfd:echo-lane"
            expected = are_huge_pages_given()
            with Server(example(1 << 16), 64, ShmTransport(mode={mode!r})) as server:
                with Client(server.address, example(1 << 16), timeout=20) as client:
                    client.send_batch(stacked(1, 0, 64, 1 << 16))
                    batch = server.sample(timeout=10).batch
                    assert batch["number"].tolist() == list(range(64))
                    print(expected, mapped_in_huge_pages(name))
        """)
        expected, mapped = said.split()
        assert int(mapped) >= 4 << 20 if expected == "True" else mapped == "0"
        assert expected == "False" or not forbid


# ---- what is forbidden -----------------------------------------------------------------------------------------


def test_seccomp_without_memfd_is_said_or_done_without() -> None:
    said = child(f"""
        refuse({MEMFD_CREATE}, error=1)
        print(said(lambda: Server(example(), 8, ShmTransport())))
        with Server(example(), 8, ShmTransport(mode="private")) as server, Client(server.address, example()) as client:
            exchange(server, client)
            server.publish({{"w": np.arange(4)}})
            assert client.weights(timeout=10).params["w"].tolist() == [0, 1, 2, 3]
            print(client.stats()["mode"])
    """)
    refused, mode = said.splitlines()
    assert refused.startswith("PermissionError") and "memfd_create" in refused and "seccomp" in refused
    assert mode == "socket"


@pytest.mark.parametrize("mode", ["direct", "private"])
def test_seccomp_without_pidfd(mode: str) -> None:
    said = child(f"""
        refuse({PIDFD_OPEN}, error=1)
        with Server(example(), 8, ShmTransport(mode={mode!r})) as server:
            with Client(server.address, example()) as client:
                exchange(server, client)
            with Client(server.address, example()) as client:
                exchange(server, client)
                print(client.stats()["mode"])
    """)
    assert said.split() == [mode]


@pytest.mark.parametrize("mode", ["direct", "private"])
def test_containers_that_share_nothing_but_the_sockets_folder(mode: str, tmp_path: Path) -> None:
    """Namespaces of their own for users, processes, mounts, network and System V memory."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--net", "--ipc", "--uts"]
    try:
        done = subprocess.run([*alone, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode:
        pytest.skip(f"this machine permits no namespaces: {done.stderr.strip()}")
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"echo-{os.getpid()}-{mode}"
    folder.mkdir(mode=0o700)
    path, token = folder / "a.sock", tmp_path / "token"
    token.write_bytes(os.urandom(32).hex().encode())
    token.chmod(0o600)
    learner = f"""
        with Server(example(), 8, ShmTransport({str(path)!r}, mode={mode!r}, claim_timeout=0.3), num_buffers=4) as server:
            server.publish({{"w": np.arange(4)}})
            numbers = []
            while len(numbers) < 400:
                batch = server.sample(timeout=60).batch
                numbers += batch["number"].tolist()
            print(numbers == list(range(400)), flush=True)
            while server.peers():
                pass
    """
    worker = f"""
        with Client("shm://{path}", example(), timeout=60) as client:
            for first in range(0, 400, 8):
                client.send(sample(1, first))
                client.send_batch(stacked(1, first + 1, 7))
            client.wait()
            print(client.stats()["mode"], client.weights(timeout=10).version, os.getpid() < 10)
    """
    try:
        env = os.environ | {"ECHO_TOKEN_FILE": str(token)}
        one, two = (
            subprocess.Popen([*alone, sys.executable, "-c", PRELUDE + textwrap.dedent(code)], stdout=-1, stderr=-1, text=True, env=env)
            for code in (learner, worker)
        )
        said, trouble = two.communicate(timeout=120)
        assert said.split() == [mode, "1", "True"], trouble[-2000:]
        said, trouble = one.communicate(timeout=60)
        assert said.split() == ["True"], trouble[-2000:]
        assert not path.exists()
    finally:
        for process in (one, two):
            process.kill()
            process.wait()
        path.unlink(missing_ok=True)
        folder.rmdir()
