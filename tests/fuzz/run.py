"""Fuzz a target for coverage: `python tests/fuzz/run.py NAME [options of libFuzzer] [corpus]`; `--list` names them. Needs atheris."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["echo_core", "echo_net", "echo_replay", "echo_grpc", "targets"]):
    from targets import TARGETS

    if importlib.util.find_spec("echo_grpc"):
        import echo_grpc.protobuf  # noqa: F401  (here, so that it is instrumented)
    else:
        del TARGETS["grpc_message"]

if __name__ == "__main__":
    name, *options = sys.argv[1:] or [""]
    if name == "--list":
        print(*TARGETS)
    elif name not in TARGETS:
        sys.exit(f"one of these, please: {' '.join(TARGETS)}")
    else:
        atheris.Setup([sys.argv[0], *options], TARGETS[name])
        atheris.Fuzz()
