"""How other processes get at the memory: as an argument of a process of any start method, through a queue, or by its name."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from actors import check_value, large_rows, look_at_large_rows, new_cell, new_ring, new_rows, use_all, value
from held_memory import held

from echo_core.base.errors import ClosedError, SecurityError, SpecError
from echo_ipc import Cell, Ring, Rows, SegmentGoneError, _native
from echo_ipc.segments.memory import Memory
from echo_testing.huge_pages import are_huge_pages_given, mapped_in_huge_pages

pytestmark = pytest.mark.every_python
METHODS = ["spawn", "forkserver", "fork"]


@pytest.mark.parametrize("how", METHODS)
def test_as_arguments_of_a_process(how: str) -> None:
    context = multiprocessing.get_context(how)
    with new_cell() as cell, new_ring(spin=1e-5) as ring, new_rows() as rows:
        cell.write(value(0))
        process = context.Process(target=use_all, args=(cell, ring, rows))
        process.start()
        process.join()
        assert process.exitcode == 0
        tree, version = cell.read()
        assert tree is not None and (check_value(tree), version) == (2, 2)
        with ring.take(timeout=0) as slot:
            assert slot.arrays["info"]["producer"] == process.pid
        assert rows.committed == 10


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_a_process_that_cannot_open_files_of_others_gets_the_descriptor(how: str) -> None:
    """The name alone would not do: it is made wrong after the object was made."""
    context = multiprocessing.get_context(how)
    with new_cell() as cell, new_ring() as ring, new_rows() as rows:
        for handle in (cell, ring, rows):
            pid, rest = handle.name.split(".", 1)
            handle._memory.name = f"{int(pid) + 10**8}.{rest}"
        process = context.Process(target=use_all, args=(cell, ring, rows))
        process.start()
        process.join()
        assert process.exitcode == 0 and cell.version == 1


@pytest.mark.parametrize("how", METHODS)
def test_through_a_queue(how: str) -> None:
    context = multiprocessing.get_context(how)
    answers = context.Queue()
    with new_cell() as cell, new_ring() as ring, new_rows() as rows:
        process = context.Process(target=_from_queue, args=(answers, back := context.Queue()))
        process.start()
        answers.put((cell, ring, rows))
        assert back.get(timeout=60) == (process.pid, cell.name)
        process.join()
        assert process.exitcode == 0 and cell.version == 1 and ring.available() == 1 and rows.committed == 10
        for some in (answers, back):
            some.close()
            some.join_thread()


def _from_queue(handles: Any, back: Any) -> None:
    use_all(*handles.get(timeout=60), back)


def test_by_its_name() -> None:
    with new_cell() as cell, new_ring(policy="block", slots=3) as ring, new_rows(50) as rows:
        cell.write(value(3))
        code = f"""
import numpy as np
from echo_ipc import Cell, Ring, Rows
cell, ring, rows = Cell(None, name={cell.name!r}), Ring(None, name={ring.name!r}), Rows(None, name={rows.name!r})
tree, version = cell.read()
cell.write({{"w": tree["w"] + 1, "policy": {{"n": tree["policy"]["n"] + 1}}}})
assert (ring.policy, ring.slots, rows.capacity) == ("block", 3, 50)
ring.put({{"x": np.full(1000, 5), "info": {{"producer": np.int64(1)}}}})
"""
        subprocess.run([sys.executable, "-c", code], check=True)
        tree, version = cell.read()
        assert tree is not None and (check_value(tree), version) == (4, 2)
        assert ring.available() == 1


def test_a_copy_in_the_same_process() -> None:
    with new_cell() as cell, pickle.loads(pickle.dumps(cell)) as copy:
        cell.write(value(7))
        tree, version = copy.read()
        assert check_value(tree) == 7 and version == 1 and copy.name == cell.name


def test_who_attaches_must_expect_what_is_there() -> None:
    with Cell({"w": ((3,), "float32"), "b": ((), "int64")}) as cell:
        Cell({"w": np.zeros(3, np.float32), "b": np.int64(0)}, name=cell.name).close()
        for schema, text in (
            ({"w": ((4,), "float32"), "b": ((), "int64")}, r"'w' of .* is float32\[3\], but float32\[4\] was expected"),
            ({"w": ((3,), "float64"), "b": ((), "int64")}, r"'w' of .* is float32\[3\], but float64\[3\] was expected"),
            ({"w": ((3,), "float32"), "bb": ((), "int64")}, r"has no entry 'bb'; did you mean 'b'\?"),
            ({"w": ((3,), "float32")}, r"also has an entry 'b'"),
            ({"b": ((), "int64"), "w": ((3,), "float32")}, "in another order"),
        ):
            with pytest.raises(SpecError, match=text):
                Cell(schema, name=cell.name)
        with pytest.raises(SpecError, match="cannot be used as ring: it is of another kind"):
            Ring(None, name=cell.name)
        with pytest.raises(SpecError, match="cannot be used as rows: it is of another kind"):
            Rows(None, name=cell.name)


def test_names_that_are_none() -> None:
    for name in ("", "psm_1234", "1.2.3", "1.2.3.xyz", "../../etc", "1.2.3.4.5"):
        with pytest.raises(SpecError, match="is no name of shared memory"):
            Cell(None, name=name)


def test_close_keeps_the_name_and_cleanup_ends_it() -> None:
    cell = new_cell()
    cell.write(value(2))
    cell.close()
    other = Cell(None, name=cell.name)
    cell.cleanup()
    with pytest.raises(SegmentGoneError, match="has closed it"):
        Cell(None, name=cell.name)
    tree, _ = other.read()
    assert tree is not None and check_value(tree) == 2, "who is attached keeps it"
    other.close()


def test_a_number_that_is_used_again() -> None:
    with open("/dev/null") as file:
        cell = new_cell()
        name, fd = cell.name, cell._memory.fileno()
        cell.cleanup()
        os.dup2(file.fileno(), fd)
    try:
        with pytest.raises(SegmentGoneError, match="uses its number for something else"):
            Cell(None, name=name)
    finally:
        os.close(fd)


def test_another_memory_with_the_same_number() -> None:
    with new_cell() as cell:
        pid, fd, inode, nonce = cell.name.split(".")
        with pytest.raises(SegmentGoneError, match="another memory has its number"):
            Cell(None, name=f"{pid}.{fd}.{inode}.{int(nonce, 16) ^ 1:x}")


def test_a_process_that_is_not_there() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(SegmentGoneError, match=rf"process {process.pid} does not run here.*share the pid namespace") as caught:
        Cell(None, name=f"{process.pid}.3.4.5")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_refused() -> None:
    with new_cell() as cell:
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            try:
                Cell(None, name=cell.name)
            except SecurityError as error:
                os._exit(7 if "another user" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_closed_object_cannot_be_handed_on() -> None:
    cell = new_cell()
    cell.cleanup()
    with pytest.raises(ClosedError):
        pickle.dumps(cell)


def test_nothing_is_left_of_processes_that_attached(tmp_path: Path) -> None:
    with new_cell() as cell:
        before = len(held())
        for _ in range(100):
            other = Cell(None, name=cell.name)
            assert other.version == 0
            other.close()
        assert len(held()) == before


# ---- memory


def test_its_size_can_never_change() -> None:
    with new_cell() as cell:
        for size in (0, 10, 1 << 24):
            with pytest.raises(PermissionError):
                os.ftruncate(cell._memory.fileno(), size)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(MemoryError, match=r"this cell, three times its value, needs 3,[\d,]+ bytes of shared memory, and [\d,]+ are available here"):
        Cell({"w": ((10**15,), "uint8")})
    with pytest.raises(MemoryError, match="this ring of 6 slots needs"):
        Ring({"w": ((10**15,), "uint8")}, 4)
    with pytest.raises(MemoryError, match="this table of 10 rows needs"):
        Rows({"w": ((10**15,), "uint8")}, 10)


def test_a_limit_of_file_sizes() -> None:
    code = """
import resource
from echo_ipc import Cell
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
try:
    Cell({"w": ((10**6,), "uint8")})
except MemoryError as error:
    assert "ulimit -f" in str(error), error
    print("refused")
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "refused\n"


def test_memory_that_claims_other_sizes_is_refused() -> None:
    """A process of another version, or one that is broken, must not make this one read beyond its memory."""
    for made, kind, where in ((new_cell(), _native.CELL, Cell), (new_ring(), _native.RING, Ring), (new_rows(), _native.ROWS, Rows)):
        with made:
            header = np.frombuffer(made._memory.mapping, np.uint64, 13)  # magic, layout and kind, nonce, size, schema bytes, eight sizes
            for index in (0, 1, 3, 4, 5, 6):
                if where is Cell and index == 6:
                    continue  # a cell has one size only
                before = int(header[index])
                for lie in (before + 5000, before * 1000 + 7, 2**63 + before, 2**64 - 1):
                    header[index] = np.uint64(lie % 2**64)
                    with pytest.raises((SpecError, ValueError)):
                        where(None, name=made.name)
                header[index] = before
            del header
            assert Memory.attach(made.name, kind).mapping.size > 0


def test_importing_it_imports_neither_torch_nor_compiled_code() -> None:
    code = """
import sys
sys.modules["torch"] = None  # importing it now raises
import echo_ipc
assert not {"numpy", "echo_ipc._native"} & set(sys.modules), sorted(sys.modules)
from echo_ipc import Cell, Ring, Rows
cell = Cell({"w": ((3,), "float32")})
cell.write({"w": cell.schema.fields[0].dtype.type([1, 2, 3])})
print(cell.read()[0]["w"].tolist(), [name for name in dir(echo_ipc) if name in echo_ipc.__all__] == echo_ipc.__all__)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "[1.0, 2.0, 3.0] True\n", done.stderr


def test_large_memory_lies_in_huge_pages_where_the_kernel_gives_them() -> None:
    """In each process that has it. Without them, everything is as before."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    least = 4 << 20 if are_huge_pages_given() else 0
    with large_rows() as rows:
        assert mapped_in_huge_pages("memfd:echo-ipc") >= least
        process = context.Process(target=look_at_large_rows, args=(rows, answers))
        process.start()
        assert answers.get(timeout=60) >= least
        process.join()
    process = context.Process(target=look_at_large_rows, args=(None, answers))  # it makes its own, and has no huge pages
    process.start()
    assert answers.get(timeout=60) == 0
    process.join()


def test_without_room_to_align_it_memory_is_mapped_all_the_same() -> None:
    """To begin at the border of a huge page takes more of the address space for a moment."""
    size = 4 << 20
    code = f"""
import os, resource
from echo_ipc import _native
fd = os.memfd_create("echo-test")
os.ftruncate(fd, {size})
used = int(open("/proc/self/statm").read().split()[0]) * 4096
for room in ({size} + (1 << 20), {size} - (1 << 20)):
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
    try:
        mapping = _native.Mapping(fd, {size}, True)
    except OSError as error:
        print(error)
    else:
        memoryview(mapping)[-1] = 7
        print(os.pread(fd, 1, {size} - 1)[0])
        del mapping
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "7" and "cannot map 4,194,304 bytes" in done.stdout, done.stdout
