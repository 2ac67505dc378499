"""A plugin of another author may use what our own plugins use: no private name of core, of the protocol in echo_net, or of
the tables in echo_replay.

Private is a name that begins with one underscore and that a class or a module of these defines. Three uses count: to import such a name
from them, to use or define a private name that a class inherits from them, and to use one of any object, unless the plugin itself
defines that name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "echo_core" / "src" / "echo_core"
#: Every other package of this repository and where it lies.
PACKAGES = {path.parent.name: path.parent for level in ("*", "*/*") for path in sorted(ROOT.glob(f"{level}/src/*/__init__.py")) if path.parent != CORE}
#: The kit looks into the core that it tests, and requires its very version.
PLUGINS = [name for name in PACKAGES if name != "echo_testing"]
#: The packages whose names others use. The protocol and the tables are plugins of core, too.
OURS = ("echo_core", "echo_net", "echo_replay")
Class = tuple[str, str]  # module, name


def is_private(name: str) -> bool:
    return len(name) > 1 and name[0] == "_" != name[1]


def defined_names(node: ast.ClassDef) -> set[str]:
    """The private names that a class defines: in its body, and on `self` in its methods."""
    names: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(part.name)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and isinstance(part.value, ast.Name) and part.value.id == "self":
            names.add(part.attr)
    return {name for name in names if is_private(name)}


def modules(package: Path) -> Iterator[tuple[str, Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path, ast.parse(path.read_text())


def absolute(module: str, node: ast.ImportFrom, is_package: bool) -> str:
    if not node.level:
        return str(node.module)
    parts = module.split(".")[: None if is_package else -1]
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


@cache
def classes() -> dict[Class, tuple[set[str], list[Class]]]:
    """Of core and of all plugins: what each class defines, and its bases."""
    found: dict[Class, tuple[set[str], list[Class]]] = {}
    for package in [CORE, *(PACKAGES[name] for name in PLUGINS)]:
        for module, path, tree in modules(package):
            here = {node.name: (module, node.name) for node in tree.body if isinstance(node, ast.ClassDef)}
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    here |= {alias.asname or alias.name: (absolute(module, node, path.stem == "__init__"), alias.name) for alias in node.names}
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    bases = [here[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in here]
                    found[module, node.name] = defined_names(node), bases
    return found


def top(module: str) -> str:
    return module.partition(".")[0]


def inherited(name: Class) -> set[str]:
    """The private names that a class inherits from core or the protocol, where that is another package than its own."""
    names: set[str] = set()
    for base in classes().get(name, (set(), []))[1]:
        if top(base[0]) in OURS and top(base[0]) != top(name[0]):
            names |= classes().get(base, (set(), []))[0]
        names |= inherited(base)
    return names


@cache
def of_core() -> frozenset[str]:
    names = {name for (module, _), (own, _) in classes().items() if top(module) in OURS for name in own}
    for path in (path for package in (CORE, PACKAGES["echo_net"], PACKAGES["echo_replay"]) for path in package.rglob("*.pyx")):
        names |= set(re.findall(r"^\s+(?:def|cdef|cpdef)\s[^\n=(]*?(_[a-z]\w*)\s*[(:=\n]", path.read_text(), re.M))
    return frozenset(names)


def uses(plugin: str) -> list[str]:
    found = []
    own = {name for (module, _), (names, _) in classes().items() if top(module) == plugin for name in names}
    for path in PACKAGES[plugin].rglob("*.p*"):
        if path.suffix in (".pyx", ".pxi", ".pxd"):
            text = path.read_text()
            own |= set(re.findall(r"\b(?:def|cdef|cpdef)\b[^\n]*?\b(_[a-z]\w*)", text)) | set(re.findall(r"\bself\.(_[a-z]\w*)\s*=[^=]", text))
            found += [
                f"{path.relative_to(PACKAGES[plugin])}: {name}" for name in re.findall(r"\b(?!self\b)\w+\.(_[a-z]\w*)", text) if name in of_core() - own
            ]
    for module, path, tree in modules(PACKAGES[plugin]):
        where = path.relative_to(PACKAGES[plugin])
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and top(absolute(module, node, path.stem == "__init__")) in {*OURS} - {plugin}:
                found += [f"{where}:{node.lineno}: import {alias.name}" for alias in node.names if is_private(alias.name)]
                found += [f"{where}:{node.lineno}: import {node.module}" for part in str(node.module).split(".") if is_private(part)]
            elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr in of_core() - own:
                found.append(f"{where}:{node.lineno}: .{node.attr}")
            elif isinstance(node, ast.ClassDef) and (theirs := inherited((module, node.name))):
                found += [f"{where}:{node.lineno}: {node.name} defines {name}" for name in sorted(defined_names(node) & theirs)]
                found += [
                    f"{where}:{part.lineno}: {node.name} uses self.{part.attr}"
                    for part in ast.walk(node)
                    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self" and part.attr in theirs & own
                ]
    return found


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugins_use_no_private_name_of_core(plugin: str) -> None:
    assert not (found := uses(plugin)), f"{len(found)}\n" + "\n".join(found)


def test_it_finds_them() -> None:
    """The classes of core that plugins extend have private names, and are found as their bases."""
    assert "_run" in inherited(("echo_shm.uplink", "ShmUplink"))
    assert "_lock" in inherited(("echo_rdma.listener", "RdmaListener"))


def test_the_modules_that_versions_md_calls_public_exist() -> None:
    text = (ROOT / "docs" / "plugins" / "versions.md").read_text()
    _, _, rest = text.partition("| for | modules of `echo_core` |\n")
    core, _, rest = rest.partition("Of `echo_net`")
    net, _, rest = rest.partition("of `echo_replay`")
    replay, _, _ = rest.partition("Also public")
    parts = {CORE: core, PACKAGES["echo_net"]: net, PACKAGES["echo_replay"]: replay}
    named = {package: re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", part) for package, part in parts.items()}
    assert len(named[CORE]) > 20 and len(named[PACKAGES["echo_net"]]) > 4 and len(named[PACKAGES["echo_replay"]]) > 1
    places = [package.joinpath(*name.split(".")) for package, names in named.items() for name in names]
    assert not [place.name for place in places if not (place.is_dir() or place.with_suffix(".py").exists() or place.with_suffix(".pyx").exists())]
