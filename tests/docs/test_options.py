"""docs/configuration.md: its tables of transports' options are those that workers and learners really take, with their defaults."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from echo_core.plugins import discovery

pytestmark = pytest.mark.needs("echo-core", "echo-shm", "echo-tcp", "echo-grpc", "echo-rdma")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
SCHEMES = ("tcp", "tcps", "grpc", "grpcs", "rdma", "shm")


def told(title: str) -> dict[tuple[str, str], str]:
    """The default by scheme and option; a row of all transports gives way to one that names a transport."""
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S)
    assert found, f"no section {title}"
    defaults: dict[tuple[str, str], str] = {}
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", found[1], re.M)
    assert len(rows) == len(re.findall(r"^\| `", found[1], re.M)), "a row is not like the others"
    for name, of, default in sorted(rows, key=lambda row: row[1] != "all"):
        for scheme in SCHEMES if of == "all" else re.findall(r"`(\w+)`", of):
            defaults[scheme, name] = default
    return defaults


def shown(name: str, value: Any) -> str:
    """A default as the page writes it."""
    if value is None or value in ("", -1):
        return "none"
    if isinstance(value, str):
        return f'`"{value}"`'
    if name.endswith("_bytes") and value % 1024 == 0:
        return f"{value >> 20} MiB" if value % (1 << 20) == 0 else f"{value >> 10} KiB"
    return f"`{str(value).lower()}`"


@pytest.mark.parametrize(("title", "kind"), [("Options of a worker's transport", "ConnectOptions"), ("Options of a learner's transport", "Options")])
def test_the_tables_have_every_option_and_its_default(title: str, kind: str) -> None:
    there = {
        (scheme, field.name): shown(field.name, field.default)
        for scheme in SCHEMES
        for field in dataclasses.fields(getattr(discovery.transport_class(scheme), kind))
        if scheme != "grpc" or not field.name.startswith("tls_")  # they count for grpcs:// only
    }
    assert told(title) == there
