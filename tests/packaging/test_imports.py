"""Imports run one way: plugins know echo_core, the protocol and the kit, and these know no plugin."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.every_python

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "echo_core" / "src" / "echo_core"
NET = ROOT / "echo_net" / "src" / "echo_net"
REPLAY = ROOT / "echo_replay" / "src" / "echo_replay"
KIT = ROOT / "echo_testing" / "src" / "echo_testing"
# What a person types to select one, and the packages they live in; also of those to come.
NAMES = {"tcp", "shm", "grpc", "rdma", "fifo", "uniform", "prioritized", "lifo"}
PACKAGES = {
    "echo_net",
    "echo_replay",
    "echo_testing",
    "echo_tcp",
    "echo_shm",
    "echo_grpc",
    "echo_rdma",
    "echo_ipc",
    "echo_es",
    "echo_rl",
    "echo_cluster",
    "echo_ray",
    "echo_samplers",
}

# What may be said outside the table of discovery.py: the default sampler, which Server's signature
# promises, and examples in error messages.
ALLOWED = {
    "recovery.py": ("prioritized", "fifo"),  # a clause about the keys of replay tables
    "workers.py": {"fifo"},  # a queue, at which draws wait
    "waiting_at_tables.py": {"fifo"},  # the same
    "lost_links.py": {"fifo"},  # the same
    "processes.py": {"fifo"},  # tables of a forked server
    "job_end.py": {"fifo"},  # the same
    "one_peer.py": {"fifo"},  # a clause about two tables
    "leftovers.py": {"fifo"},  # a table of steps
    "records.py": {"fifo", "prioritized"},  # tables of samples of varying length
    "samples.py": {"fifo"},  # the same
    "server.py": {"fifo"},
    "arguments.py": {"fifo"},
    "table.py": {"fifo", "uniform"},  # the remover of the same name, which is core's own; the only sampler that slices of steps leave as it is
    "section.py": {"fifo"},  # the same
    "config.py": {"fifo", "tcp"},
    "address.py": {"tcp://"},
}

#: They name types of echo_replay, for type checkers only.
TYPES_ONLY = {CORE / "__init__.py", CORE / "plugins" / "replay_package.py"}
SOURCES = sorted(path for package in (CORE, NET, REPLAY, KIT) for path in package.rglob("*.p*") if path.suffix in (".py", ".pyx", ".pxi", ".pxd"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_imports_no_plugin(path: Path) -> None:
    words = re.findall(r"^\s*(?:from|import|cimport)\s+(.+)$", path.read_text(), re.M)
    imported = {name for line in words for name in re.findall(r"echo_\w+", line)} - {path.relative_to(ROOT).parts[0]}
    assert not imported & (PACKAGES - {"echo_replay"} if path in TYPES_ONLY else PACKAGES)
    assert not re.search(r"^\s*(from|import)\s+(grpc|ucxx|torch|jax)\b", path.read_text(), re.M)


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if path.suffix == ".py" and path.name != "discovery.py"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_core_names_no_plugin_in_its_code(path: Path) -> None:
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body and isinstance(node.body[0], ast.Expr)
    }
    named = [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and (node.value in NAMES or re.match(rf"({'|'.join(NAMES)})://", node.value))
    ]
    assert not [(line, name) for line, name in named if name not in ALLOWED.get(path.name, ())]


def test_importing_core_imports_little_and_no_plugin(python) -> None:
    python(
        """
        import sys
        before = set(sys.modules)
        import echo_core
        heavy = {"numpy", "optree", "pluggy", "pytest", "asyncio", "multiprocessing"}
        assert not heavy & (set(sys.modules) - before), "import echo_core should cost nothing"
        from echo_core import Client, Server, Spec, TrajectoryAccumulator, Transport, Weights
        import echo_core.config.config
        from echo_core import testing
        assert dir(echo_core)
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        outside = {name for name in new if name.startswith("echo_")} - {"echo_core"}
        assert not outside, outside
        assert not {"grpc", "torch", "jax", "pytest", "hypothesis", "gymnasium"} & new, new
        """
    )


def test_listing_plugins_imports_none(python) -> None:
    python(
        """
        import sys
        from echo_core.plugins import discovery
        for group in (discovery.TRANSPORTS, discovery.SAMPLERS, discovery.OBSERVERS):
            discovery.installed(group)
        assert not {name for name in sys.modules if name.startswith("echo_")
                    and not name.startswith("echo_core")}
        """
    )


@pytest.mark.needs("echo-tcp", "echo-samplers")
def test_selecting_one_plugin_imports_no_other(python) -> None:
    python(
        """
        import sys
        from echo_core.plugins import discovery
        discovery.transport("tcp")
        assert "echo_tcp" in sys.modules and "echo_tcp.transport" not in sys.modules
        assert not any(name.startswith("echo_samplers") for name in sys.modules)
        """
    )


def test_core_forwards_to_the_kit_when_a_contract_is_used() -> None:
    import echo_testing
    from echo_core import testing

    assert testing.TransportContract is echo_testing.TransportContract
    with pytest.raises(AttributeError, match="has no attribute 'TransportContrakt'"):
        testing.TransportContrakt  # noqa: B018


def test_core_says_how_to_get_the_kit(python) -> None:
    python(
        """
        import sys
        sys.modules["echo_testing"] = None  # as if it were not installed
        from echo_core import testing
        try:
            testing.TransportContract
        except ModuleNotFoundError as error:
            assert "echo-core[testing]" in str(error), error
        else:
            raise AssertionError("it was found")
        """
    )


def test_only_echo_ray_imports_ray() -> None:
    files = [path for place in ("*/src", "plugins/*/src", "systems/*/src", "examples", "benchmarks", "tools") for path in ROOT.glob(f"{place}/**/*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if re.search(r"^\s*(import|from)\s+ray\b", path.read_text(), re.M)}
    assert found and all(name.startswith("systems/echo_ray/") for name in found), found
