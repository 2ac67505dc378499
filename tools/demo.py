"""Print what the demo needs with these arguments, such as `echo-core[shm]`: the transport that --transport or the file of --config names.

    python tools/demo.py [ARGUMENT ...]
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

#: The extra of echo-core that brings the transport of each scheme. The demo itself reports a name that nobody knows.
EXTRAS = {"tcp": "tcp", "tcps": "tcp", "shm": "shm", "grpc": "grpc", "grpcs": "grpc", "rdma": "rdma", "ucx": "rdma"}


def of_file(path: Path) -> list[Any]:
    """The transports of a configuration: addresses, names or tables."""
    content = tomllib.loads(path.read_text())
    found = content.get("server", {}).get("transport", {})
    if isinstance(found, dict) and "type" not in found:
        found = content.get("shared", {}).get("address", "tcp")
    return found if isinstance(found, list) else [found]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--transport")
    parser.add_argument("--config", type=Path)
    given, _ = parser.parse_known_args()
    if given.transport is not None:
        named = [given.transport]
    else:
        named = of_file(given.config) if given.config is not None and given.config.is_file() else ["tcp"]
    schemes = {str(one.get("type", "")) if isinstance(one, dict) else str(one).partition("://")[0] for one in named}
    print(f"echo-core[{','.join(sorted({EXTRAS.get(scheme, 'tcp') for scheme in schemes}))}]")


if __name__ == "__main__":
    main()
