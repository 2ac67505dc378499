"""Ten thousand parked requests, 100 of each of 100 clients, while samples flow: each is answered exactly once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # benchmarks is not installed

from benchmarks.parked import run


@pytest.mark.parametrize("scheme", ["tcp", "shm", "grpc", "rdma"])
def test_each_of_ten_thousand_parked_requests_is_answered_once(scheme: str) -> None:
    pytest.importorskip(f"echo_{scheme}")
    place = f"shm://parked-{os.getpid()}" if scheme == "shm" else f"{scheme}://127.0.0.1:0"
    # It raises if an answer is missing, if one is given twice, or if a client got another's.
    assert run(place, clients=100, processes=4, requests=100, senders=1, seconds=0.5) > 0
