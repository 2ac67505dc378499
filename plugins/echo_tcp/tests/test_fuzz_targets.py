"""The fuzz targets with valid frames, nearly valid frames, and inputs that earlier fuzzing found; `nox -s fuzz` continues from here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import echo_core
from echo_core.wire.protocol import Kind, frame, pack_header, pack_reply, pack_request, weights_frames
from echo_core.wire.weights import pack

NATIVE = Path(__file__).resolve().parent / "native"
CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SAMPLE = 24  # in bytes, as in learner_fuzz.cpp


def data(first: int, count: int, cut: int = 0) -> bytes:
    payload = (bytes(range(256)) * (count * SAMPLE // 256 + 1))[: count * SAMPLE - cut]
    return pack_header(Kind.DATA, count=count, seq=first, length=count * SAMPLE) + payload


def to_learner() -> list[bytes]:
    streams = [
        data(1, 1) + data(2, 3),
        data(1, 5) + frame(Kind.PING, seq=3) + data(6, 2) + frame(Kind.BYE, b"bye"),
        frame(Kind.SUBSCRIBE) + frame(Kind.RECEIPT, bytes(8), seq=1),
        frame(Kind.CONTROL, pack_request("ping", {}), seq=4) + data(1, 100),
        data(1, 20) + data(1, 20) + data(15, 20),
        data(1, 1000, cut=20_000),  # a large frame that stalls: its slots are given back
        data(1, 1000, cut=1) + data(3, 1),
        data(2, 1),
        pack_header(Kind.DATA, count=65535, seq=(1 << 63) - 3, length=65535 * SAMPLE),
        pack_header(Kind.CONTROL, seq=1, length=1 << 20) + b"{" * 100,
        b"\xff" * 100,
    ]
    # The first byte is the size of the portions; 128 means the original protocol.
    return [bytes([how]) + stream for stream in streams for how in (0, 1, 24, 131)]


def to_worker() -> list[bytes]:
    weights = b"".join(b"".join(map(bytes, pieces)) for pieces in weights_frames(pack({"w": np.zeros(30)}, 3)))
    streams = [
        frame(Kind.ACK, seq=3) + frame(Kind.ACK, seq=9) + frame(Kind.ACK, seq=2),
        weights,
        weights[:100] + weights,
        weights + weights,
        frame(Kind.CONTROL, pack_reply({}), flags=1, seq=1) + frame(Kind.PING) + frame(Kind.BYE, b"x"),
        pack_header(Kind.WEIGHTS, flags=2, seq=1, length=1) + b"x" + pack_header(Kind.WEIGHTS, flags=1, seq=1, length=1) + b"y",
        b"\1\1\1\2",
    ]
    return [bytes([how]) + stream for stream in streams for how in (0, 1, 96)]


@pytest.mark.skipif(CXX is None, reason="no C++ compiler (set CXX)")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("target", "inputs"), [("learner", to_learner()), ("incoming", to_worker())], ids=["learner", "incoming"])
def test_no_forbidden_outcome(target: str, inputs: list[bytes], tmp_path: Path) -> None:
    program = str(tmp_path / "fuzz")
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DECHO_FUZZ_MAIN"]
    source = str(NATIVE / f"{target}_fuzz.cpp")
    subprocess.run([str(CXX), *flags, "-I", echo_core.get_include(), source, "-o", program, "-pthread"], check=True)
    files = []
    for number, data in enumerate(inputs):
        files.append(str(tmp_path / f"{number}"))
        Path(files[-1]).write_bytes(data)
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"{len(inputs)} inputs\n"), done.stdout + done.stderr
