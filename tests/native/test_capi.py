"""The native door, used as outsiders use it: our public header and .pxd are compiled against, from
a folder of their own, in C and in Cython."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core import Server, SpecError
from echo_core.base.errors import PluginVersionError
from echo_core.server.sink import ServerSink
from echo_testing.samples import Tally, assert_same, example, random_like, rich_example, sample

HERE = Path(__file__).resolve().parent
CC = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
FLAGS = ["-O2", "-shared", "-fPIC", "-pthread", "-I", sysconfig.get_path("include")]

pytestmark = [
    pytest.mark.skipif(CC is None or CXX is None, reason="no compiler (set CC and CXX)"),
    pytest.mark.needs("echo-samplers"),
]


def load(name: str, folder: Path) -> ModuleType:
    path = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """outsider.c, as strictly as its author may want it."""
    folder = tmp_path_factory.mktemp("outsider_c")
    target = folder / f"outsider_c{sysconfig.get_config_var('EXT_SUFFIX')}"
    strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    include = ["-I", echo_core.get_include()]
    command = [CC, *strict, *FLAGS, *include, str(HERE / "outsider.c"), "-o", str(target)]
    subprocess.run(command, check=True)  # type: ignore[arg-type]
    return load("outsider_c", folder)


@pytest.fixture(scope="session")
def in_cython(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """outsider.pyx: Cython finds echo_core's .pxd files where Python finds echo_core."""
    folder = tmp_path_factory.mktemp("outsider_pyx")
    shutil.copy(HERE / "outsider.pyx", folder)
    subprocess.run([sys.executable, "-m", "cython", "--cplus", "outsider.pyx"], cwd=folder, check=True)
    target = folder / f"outsider{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = ["-I", echo_core.get_include()]
    command = [CXX, "-std=c++17", *FLAGS, *include, "outsider.cpp", "-o", str(target)]
    subprocess.run(command, cwd=folder, check=True)  # type: ignore[arg-type]
    return load("outsider", folder)


@pytest.mark.parametrize("dialect", [["-x", "c", "-std=c99"], ["-x", "c++", "-std=c++11"]])
def test_the_header_is_plain_c_and_cpp(dialect: list[str], tmp_path: Path) -> None:
    source = tmp_path / "only.txt"
    source.write_text("#include <echo_capi.h>\nint version(void) { return ECHO_CAPI_VERSION; }\n")
    flags = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    command = [CXX, *dialect, *flags, "-I", echo_core.get_include(), str(source)]
    subprocess.run(command, check=True)  # type: ignore[arg-type]


def test_figures_of_a_store(in_c: ModuleType) -> None:
    server = Server(rich_example(), batch_size=5)
    sizes, sample_bytes, batch_size = in_c.figures(ServerSink(server).native)
    assert sizes == [leaf.nbytes for leaf in server.spec.leaves]
    assert (sample_bytes, batch_size) == (server.spec.sample_bytes, 5)


@pytest.mark.parametrize("eventfd", [False, True])
@pytest.mark.parametrize(("wanted", "batch_size", "num_buffers"), [(1, 1, 2), (7, 4, 3), (64, 16, 5)])
def test_threads_without_the_gil_insert_every_sample_once(
    in_c: ModuleType, wanted: int, batch_size: int, num_buffers: int, eventfd: bool
) -> None:
    each, makers = 4000, 3
    server = Server(example(), batch_size, num_buffers=num_buffers)
    native = ServerSink(server).native
    jobs = [in_c.start(native, maker, each, wanted, eventfd) for maker in range(makers)]
    tally = Tally()
    while tally.count < each * makers:
        tally.add(server.sample(timeout=30).batch)
    assert [in_c.join(job) for job in jobs] == [0] * makers
    # An aborted slot is filled by the next writer, so order within a batch is nobody's promise.
    tally.check(dict.fromkeys(range(makers), each), in_order=False)
    info_stats = server.stats()
    assert info_stats["store/samples_inserted_total"] == each * makers
    assert wanted == 1 or info_stats["store/samples_aborted_total"] > 0


def test_closing_ends_native_writers(in_c: ModuleType) -> None:
    for eventfd in (False, True):
        server = Server(example(), 2, num_buffers=2)
        job = in_c.start(ServerSink(server).native, 1, 1000, 3, eventfd)
        assert server.sample(timeout=30) is not None
        closing = threading.Timer(0.05, server.close)
        closing.start()
        assert in_c.join(job) == 2  # ECHO_CLOSED
        closing.join()


def test_a_retained_store_outlives_its_server(in_c: ModuleType) -> None:
    server = Server(example(), 2, num_buffers=2)
    native = ServerSink(server).native
    job = in_c.start(native, 1, 1000, 3, False)
    batch = server.sample(timeout=30).batch
    del native, server
    gc.collect()
    assert in_c.join(job) == 2
    tally = Tally()
    tally.add(batch)


def test_totals_never_run_backwards_nor_ahead(in_c: ModuleType) -> None:
    each = 150_000
    server = Server(example(8), batch_size=16, num_buffers=4)
    native = ServerSink(server).native
    jobs = [in_c.start(native, maker, each, 3, False) for maker in range(2)]
    stop, seen = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            seen.append(server._counters()["inserted"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    taken = 0
    while taken < 2 * each:
        taken += len(server.sample(timeout=30).batch["number"])
    stop.set()
    watcher.join()
    assert [in_c.join(job) for job in jobs] == [0, 0]
    assert seen == sorted(seen), "a total ran backwards"
    assert max(seen) <= 2 * each, "a total ran ahead"
    assert server._counters()["inserted"] == 2 * each


def test_what_a_transport_reports_is_seen(in_c: ModuleType) -> None:
    server = Server(example(), 2)
    native = ServerSink(server).native
    in_c.count(native, 5, 3, 1000)
    in_c.count(native, -1, 2, 3000)
    stats = server.stats()
    assert (stats["store/queue_depth_sum"], stats["store/queue_depth_max"]) == (4, 3)
    assert stats["latency/ingest_round_count"] == 2
    assert stats["latency/ingest_round_max_ns"] == 3000


@pytest.mark.parametrize("module", ["in_c", "in_cython"])
def test_only_stores_are_stores(module: str, request: pytest.FixtureRequest) -> None:
    outsider = request.getfixturevalue(module)
    look = outsider.figures if module == "in_c" else outsider.store_of
    from echo_core import capi

    for other in (None, 3, object(), capi._table):
        with pytest.raises((ValueError, TypeError)):
            look(other)


def test_a_plugin_built_for_another_version_is_told(in_cython: ModuleType) -> None:
    with pytest.raises(PluginVersionError, match="C API 99.*rebuild or upgrade"):
        in_cython.other_version(99)


def test_checked_samples_through_the_native_door(in_cython: ModuleType) -> None:
    tree = rich_example()
    server = Server(tree, batch_size=4)
    native, spec = ServerSink(server).native, server.spec
    batch: Any = random_like(tree, seed=4, lead=(8,))
    import optree

    for row in range(3):
        one = optree.tree_map(lambda leaf, row=row: leaf[row], batch)
        assert in_cython.send(native, spec, one) == 1
    assert in_cython.send(native, spec, optree.tree_map(lambda leaf: leaf[3:], batch), True) == 5
    for start in (0, 4):
        wanted = optree.tree_map(lambda leaf, at=start: leaf[at : at + 4], batch)
        assert_same(server.sample(timeout=5).batch, wanted)


def test_samples_that_do_not_match_stop_at_the_door(in_cython: ModuleType) -> None:
    server = Server(example(), batch_size=2, num_buffers=2)
    native, spec = ServerSink(server).native, server.spec
    for bad in ({**sample(0, 0), "number": np.float32(0)}, {"maker": np.int64(0)}):
        with pytest.raises(SpecError, match="number"):
            in_cython.send(native, spec, bad)
    assert server.stats()["store/samples_inserted_total"] == 0
    assert in_cython.status(native) == "ok"
    for number in range(4):
        assert in_cython.send(native, spec, sample(0, number)) == 1
    assert in_cython.status(native) == "full"
    assert in_cython.send(native, spec, sample(0, 4)) == 0
    server.close()
    assert in_cython.status(native) == "closed"
