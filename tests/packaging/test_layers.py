"""Imports run one way: systems, plugins, the protocol, core; and within core from the upper folders to the lower. Imports for types count as well."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "echo_core" / "src" / "echo_core"

#: The folders of core, from the top of the house to its foundation.
FLOORS = ["client", "server", "config", "plugins", "wire", "store", "spec", "security", "base", "include"]
#: Every package of this repository and where it lies. A package may import those that its distribution depends on.
PACKAGES = {path.parent.name: path.parent for path in sorted(ROOT.glob("*/src/*/__init__.py")) + sorted(ROOT.glob("*/*/src/*/__init__.py"))}
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".hpp", ".h"}


def sources(package: Path) -> list[Path]:
    return [path for path in sorted(package.rglob("*")) if path.suffix in SUFFIXES]


def module_of(path: Path) -> str:
    """The dotted name of a source file's module: a stub and its declarations are one with it. A header is named with its suffix."""
    package = next(folder for folder in PACKAGES.values() if path.is_relative_to(folder))
    header = path.suffix in (".hpp", ".h")
    parts = (path if header else path.with_suffix("")).relative_to(package.parent).parts
    return "/".join(parts) if header else ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exists(name: str) -> bool:
    first, *rest = name.split(".")
    if first not in PACKAGES:
        return False
    place = PACKAGES[first].joinpath(*rest)
    return place.is_dir() or any(place.with_name(place.name + suffix).exists() for suffix in SUFFIXES)


def python_imports(path: Path, text: str) -> Iterator[str]:
    package = module_of(path).split(".") if path.stem == "__init__" else module_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])]) if node.level else str(node.module)
            for alias in node.names:
                yield f"{base}.{alias.name}" if exists(f"{base}.{alias.name}") else base


def cython_imports(text: str) -> Iterator[str]:
    for match in re.finditer(r"^\s*from\s+([\w.]+)\s+c?import\s+\(?([^\n#(]+)", text, re.M):
        for name in match[2].split(","):
            whole = f"{match[1]}.{name.split()[0]}" if name.split() else match[1]
            yield whole if exists(whole) else match[1]
    yield from re.findall(r"^\s*c?import\s+([\w.]+)", text, re.M)


def included(path: Path, text: str) -> Iterator[str]:
    """What a header, or an `extern from`, includes of this repository."""
    package = next(folder for folder in PACKAGES.values() if path.is_relative_to(folder))
    for name in re.findall(r'(?:#include|extern from)\s+"([\w/.]+)"', text):
        for folder in (path.parent, package, CORE, CORE / "include"):
            if (folder / name).exists():
                yield module_of((folder / name).resolve())
                break


@cache
def imports() -> dict[str, set[str]]:
    """For each module of this repository those that it imports or includes, its own other parts left out."""
    graph: dict[str, set[str]] = {}
    for package in PACKAGES.values():
        for path in sources(package):
            text = path.read_text()
            found = set(included(path, text))
            if path.suffix in (".py", ".pyi"):
                found |= set(python_imports(path, text))
            elif path.suffix in (".pyx", ".pxd", ".pxi"):
                found |= set(cython_imports(text))
            ours = {name for name in found if package_of(name) in PACKAGES}
            graph.setdefault(module_of(path), set()).update(ours - {module_of(path)})
    return graph


def package_of(module: str) -> str:
    return module.replace("/", ".").split(".")[0]


def floor(module: str) -> str:
    """The folder of a module of core; "" of `echo_core` itself."""
    parts = module.replace("/", ".").split(".")
    return parts[1] if parts[0] == "echo_core" and len(parts) > 1 else ""


@pytest.mark.parametrize("upper", FLOORS)
def test_folders_of_core_import_only_what_lies_below(upper: str) -> None:
    up = [
        f"{module} imports {name}"
        for module, names in imports().items()
        if floor(module) == upper
        for name in sorted(names)
        if floor(name) and FLOORS.index(floor(name)) < FLOORS.index(upper)
    ]
    assert not up, "\n".join(up)


def test_every_folder_of_core_has_its_floor() -> None:
    folders = {path.name for path in CORE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(FLOORS)


def test_no_circles() -> None:
    """Each file can be read after those it imports, types counted. A package and what lies in it are no circle: its `__init__` collects names."""
    graph = {module: {name for name in names if not module.startswith((f"{name}.", f"{name}/"))} for module, names in imports().items()}
    for module in TYPES_ONLY:  # they find every name lazily
        graph[module] = set()
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


#: They name types of echo_replay for type checkers, and import nothing of it when a program runs.
TYPES_ONLY = {"echo_core": CORE / "__init__.py", "echo_core.plugins.replay_package": CORE / "plugins" / "replay_package.py"}


def test_core_imports_no_other_package() -> None:
    core = {module: names for module, names in imports().items() if package_of(module) == "echo_core" and module not in TYPES_ONLY}
    assert not [f"{module} imports {name}" for module, names in core.items() for name in names if package_of(name) != "echo_core"]


@pytest.mark.parametrize("path", TYPES_ONLY.values(), ids=list(TYPES_ONLY))
def test_core_names_types_of_replay_tables_for_type_checkers_only(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            assert not [name for name in python_imports(path, ast.unparse(node)) if package_of(name) in PACKAGES and package_of(name) != "echo_core"]


#: The folders of echo_replay, from the top to the foundation, as its docstring lists them.
REPLAY_FLOORS = ["config", "remote", "requests", "mixture", "checkpoint", "steps", "tables"]


def test_folders_of_replay_import_only_what_lies_below() -> None:
    def replay_floor(module: str) -> int:
        return REPLAY_FLOORS.index(module.replace("/", ".").split(".")[1])

    ours = {module: names for module, names in imports().items() if module.startswith(("echo_replay.", "echo_replay/"))}
    up = [
        f"{module} imports {name}"
        for module, names in ours.items()
        for name in sorted(names)
        if name.startswith(("echo_replay.", "echo_replay/")) and replay_floor(name) < replay_floor(module)
    ]
    assert not up, "\n".join(up)


#: Modules that a command imports only if they are there; otherwise it says how to install them.
IF_THERE = {"echoctl": {"echo_testing"}}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_its_distribution_requires(package: str) -> None:
    project = tomllib.loads((PACKAGES[package].parents[1] / "pyproject.toml").read_text())["project"]
    required = [*project.get("dependencies", []), *itertools.chain(*project.get("optional-dependencies", {}).values())]
    names = {re.split(r"[\[<>=!~; ]", one)[0].replace("-", "_") for one in required} | {package} | IF_THERE.get(package, set())
    found = {(module, package_of(name)) for module, others in imports().items() if package_of(module) == package for name in others}
    assert not [f"{module} imports {other}" for module, other in sorted(found) if other not in names]


def test_the_map_names_every_folder_and_no_file_that_is_not_there() -> None:
    page = (ROOT / "docs" / "design" / "map.md").read_text()
    paths = re.findall(r"`([\w./]+/[\w.]*)`", page)
    folders = {str(path.parent.relative_to(CORE)) for path in sources(CORE)} - {"."}
    assert not {folder for folder in folders if not any(path.startswith(f"{folder}/") for path in paths)}
    assert not [path for path in paths if not (CORE / path).exists() and not (ROOT / path).exists()]


#: A reader takes in about so many names at a glance.
MOST_CONCEPTS = 16
FOLDERS = sorted({path.parent for package in PACKAGES.values() for path in sources(package)})


def concepts(folder: Path) -> set[str]:
    """The concepts of a folder: its subfolders, and its files by their stems.

    `_worker.pyx` belongs to `worker`, and a file such as `loop_serving.hpp` to the file `loop.hpp` beside it.
    """
    names = {path.name.partition(".")[0].lstrip("_") for path in folder.iterdir() if path.is_dir() or path.suffix in SUFFIXES}
    names -= {"pycache__", "init__", "main__"}
    return {name for name in names if not any(name.startswith(f"{other}_") or name == f"{other}s" for other in names)}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_has_few_concepts(folder: Path) -> None:
    assert len(found := concepts(folder)) <= MOST_CONCEPTS, sorted(found)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=list(PACKAGES))
def test_no_public_name_is_that_of_a_module_beside_it(package: Path) -> None:
    """Importing such a module would replace the public name of its package by the module."""
    initial = (package / "__init__.py").read_text()
    names = set(re.findall(r"\bimport (\w+) as \1$", initial, re.M))
    modules = {path.name.partition(".")[0] for path in package.iterdir() if path.is_dir() or path.suffix in SUFFIXES}
    assert not names & modules
