"""What a user installs: the contents of the wheels and source distributions, in empty environments."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTED = json.loads(subprocess.run([sys.executable, str(ROOT / "tools" / "wheels.py"), "--list"], capture_output=True, check=True).stdout)
PROJECTS = {
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["name"]: ROOT / folder
    for folder in [*LISTED["compiled"], *LISTED["pure"]]
}

pytestmark = [
    pytest.mark.skipif(shutil.which("uv") is None, reason="wheels are built with uv"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="session")
def wheels() -> Path:
    """The folder of our wheels, built once per state of the sources."""
    command = [sys.executable, str(ROOT / "tools" / "wheels.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.split("\n")[-2])


def wheel(wheels: Path, name: str) -> zipfile.ZipFile:
    (path,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.every_python
@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_holds_its_package_and_nothing_else(wheels: Path, name: str) -> None:
    package = name.replace("-", "_")
    with wheel(wheels, name) as archive:
        files = archive.namelist()
        tops = {file.partition("/")[0] for file in files}
        (info,) = tops - {package}
        assert info.startswith(package) and info.endswith(".dist-info")
        assert f"{package}/py.typed" in files
        assert any(file.startswith(f"{info}/licenses/") for file in files)
        assert not [file for file in files if re.search(r"(^|/)(tests?|build)/", file)]
        headers = () if name == "echo-core" else (".hpp",)  # the next test lists those that core brings
        assert not [file for file in files if file.endswith((".pyx", ".pxi", ".cpp", ".c", ".pyc", *headers))]
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Requires-Python"] == ">=3.11"
        assert metadata.get_payload(), "no description for people who find it on an index"
        sources = PROJECTS[name] / "src" / package
        for path in sources.rglob("*.py"):
            assert f"{package}/{path.relative_to(sources)}" in files
        modules = {Path(file).name.partition(".")[0] for file in files if file.endswith(".so")}
        texts = {path.name: path.read_text() for path in sources.rglob("*.pyx")}
        parts = {part for text in texts.values() for part in re.findall(r'^include "(.+)"', text, re.M)}  # of modules, and none themselves
        shared = {"_cyutility"} if name in ("echo-core", "echo-replay") else set()  # Cython makes it; it has no source of ours
        assert modules == {Path(file).stem for file in texts.keys() - parts} | shared


@pytest.mark.every_python
def test_the_release_finds_nothing_wrong_with_the_wheels(wheels: Path) -> None:
    """The command that `./dev wheels` and the release run on them."""
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "contents.py"), str(wheels)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.partition(", ")[2]) == (0, "nothing wrong\n"), done.stdout


@pytest.mark.every_python
def test_core_brings_what_native_plugins_compile_against(wheels: Path) -> None:
    with wheel(wheels, "echo-core") as archive:
        files = set(archive.namelist())
    shipped = {file for file in files if file.endswith((".pxd", ".h", ".hpp"))}
    assert shipped == {
        "echo_core/__init__.pxd",
        "echo_core/spec/pytree/flattener.pxd",
        "echo_core/spec/pytree/ragged_flattener.pxd",
        "echo_core/spec/record_format.hpp",
        "echo_core/spec/sample_labels.hpp",
        "echo_core/spec/sample_labels.pxd",
        "echo_core/store/door/capi.pxd",
        "echo_core/store/door/door.hpp",
        "echo_core/store/door/door.pxd",
        "echo_core/store/door/echo_run.pxd",
        "echo_core/store/histogram.hpp",
        "echo_core/store/histogram.pxd",
        "echo_core/store/local_insert.hpp",
        "echo_core/store/local_insert.pxd",
        "echo_core/store/racing_copy.hpp",
        "echo_core/store/sample.pxd",
        "echo_core/store/storage.pxd",
        "echo_core/store/stream/area.hpp",
        "echo_core/store/stream/gil_handoff.hpp",
        "echo_core/store/stream/ring.hpp",
        "echo_core/store/stream/ring.pxd",
        "echo_core/store/wait/clock.pxd",
        "echo_core/store/wait/event_count.hpp",
        "echo_core/store/wait/patience.pxd",
        "echo_core/store/wait/space_eventfds.hpp",
        "echo_core/wire/reservation.pxd",
        "echo_core/base/memory/fork_count.hpp",
        "echo_core/base/memory/page_lock.hpp",
        "echo_core/base/memory/page_lock.pxd",
        "echo_core/include/echo_capi.h",
        "echo_core/include/echo_copy.h",
        "echo_core/include/echo_huge_pages.h",
        "echo_core/include/echo_pages.h",
        "echo_core/include/echo_sampler.h",
    }


@pytest.mark.every_python
@pytest.mark.parametrize("name", PROJECTS)
def test_plugins_announce_themselves(wheels: Path, name: str) -> None:
    with wheel(wheels, name) as archive:
        announced = [file for file in archive.namelist() if file.endswith("entry_points.txt")]
        text = archive.read(announced[0]).decode() if announced else ""
    assert ("[echo." in text) == (name not in ("echo-core", "echo-net", "echo-replay", "echo-testing", "echo-adapters", "echoctl", "echo-rl"))


@pytest.mark.parametrize("name", PROJECTS)
def test_a_source_distribution_is_complete(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so", ".*cache")
    shutil.copytree(PROJECTS[name], source, ignore=ignored)
    command = ["uv", "build", "--quiet", "--sdist", "--no-build-isolation", "--python", sys.executable]
    command += ["--out-dir", str(tmp_path / "out"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "No module named" in done.stderr:
        pytest.skip("the build group is not installed")
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (tmp_path / "out").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        files = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    for path in (source / "src").rglob("*"):
        if path.suffix in {".py", ".pyx", ".pxi", ".pxd", ".hpp", ".h"} or path.name == "py.typed":
            assert str(path.relative_to(source)) in files
    assert {"pyproject.toml", "README.md", "LICENSE"} <= files
    assert not [file for file in files if file.endswith((".so", ".cpp"))]


def run(python: Path, code: str, cwd: Path) -> str:
    done = subprocess.run(
        [str(python), "-I", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The Python of an environment in which nothing is installed."""
    subprocess.run(
        ["uv", "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")], check=True
    )
    return tmp_path / "venv" / "bin" / "python"


def install(python: Path, wheels: Path, *wanted: str) -> None:
    command = ["uv", "pip", "install", "--quiet", "--python", str(python)]
    # Ours come from the folder; the cache may hold wheels of the same version and other contents.
    for name in PROJECTS:
        command += ["--refresh-package", name]
    done = subprocess.run(
        [*command, "--find-links", str(wheels), *wanted], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.every_python
def test_core_alone_works_and_says_what_is_missing(
    wheels: Path, empty: Path, tmp_path: Path
) -> None:
    install(empty, wheels, "echo-core")
    run(
        empty,
        """
        import numpy as np
        from echo_core import PluginError, Sampler, Server, Spec
        from echo_core.base.installing import how_to_install
        from echo_core.store.store import Store

        example = {"x": np.zeros(3, np.float32)}
        assert Spec.from_example(example).sample_bytes == 12
        with Server(example, 2) as server:  # a stream needs no plugin
            server.submit(example)
            server.submit(example)
            assert server.sample(timeout=10).batch["x"].shape == (2, 3)
        for make, extra in ((lambda: Server(example, 2, "tcp://127.0.0.1:0"), "tcp"),
                            (lambda: Server(example, 2, sampler="prioritized", capacity=8), "replay"),
                            (lambda: Server(example, 2, sampler="prioritized"), "samplers")):
            try:
                make()
            except PluginError as error:
                assert how_to_install(f"echo-core[{extra}]") in str(error), error
            else:
                raise AssertionError(f"{extra}: a plugin that is not installed was found")
        try:
            from echo_core import testing
            testing.TransportContract
        except ModuleNotFoundError as error:
            assert "echo-core[testing]" in str(error), error
        else:
            raise AssertionError("the conformance kit is there, which only an extra brings")
        """,
        tmp_path,
    )


@pytest.mark.every_python
def test_the_tcp_extra_brings_everything_for_learner_and_worker(
    wheels: Path, empty: Path, tmp_path: Path
) -> None:
    install(empty, wheels, "echo-core[tcp]")
    run(
        empty,
        """
        import os, pathlib
        os.environ["ECHO_TOKEN"] = "a-token-for-this-one-test-only"
        import numpy as np
        from echo_core import Client, Server, TcpClient, TcpTransport, get_include

        assert pathlib.Path(get_include(), "echo_capi.h").exists()
        example = {"x": np.zeros(3, np.float32)}
        with Server(example, 2, TcpTransport(port=0)) as server:
            with Client(server.address, example) as client:
                client.send({"x": np.ones(3, np.float32)})
                with TcpClient("127.0.0.1", server.port, example) as other:
                    other.send({"x": np.ones(3, np.float32)})
                assert server.sample(timeout=30).batch["x"].sum() == 6
        """,
        tmp_path,
    )
