"""The front with TLS and a join token, as it is beyond loopback; and the figures that it serves."""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from pathlib import Path

import grpc
import grpc.aio
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from searches import search
from test_metrics import UPSTREAM

import echo_es.evochi.v1 as evochi
from echo_core import SecurityError
from echo_core.security.tls import Authority
from echo_es.evochi.codec import SERVICE
from echo_es.evochi.options import FrontOptions

pytest.importorskip("cryptography")
WAIT = 60


class Counting(evochi.Worker[int]):
    def initialize(self) -> int:
        return 0

    def evaluate(self, epoch: int, slices: list[slice]) -> list[evochi.Eval]:
        return [evochi.Eval(part, [float(i) for i in range(part.start, part.stop)]) for part in slices]

    def optimize(self, epoch: int, rewards: list[float]) -> int:
        return self.state + 1


async def work(port: int, token: str | None, authority: Path | None = None, seconds: float = WAIT) -> int:
    """The state at the end. `authority`: whose certificates the channel accepts; None: no TLS."""
    if authority is None:
        opened = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    else:
        opened = grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(authority.read_bytes()))
    async with opened as channel:
        worker = Counting(channel, 3, token=token)
        await asyncio.wait_for(worker.start(), seconds)
        return worker.state


def test_a_worker_joins_over_tls_with_the_token(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    identity = authority.issue("learner", ["127.0.0.1", "localhost"])
    options = FrontOptions(host="0.0.0.0", port=0, token="let me in", tls_certificate=identity.certificate, tls_key=identity.key)
    with search(7, options=options, max_epochs=3) as (front, _, heard):
        for token in (None, "something else"):
            with pytest.raises(grpc.aio.AioRpcError, match="join token"):
                asyncio.run(work(front.port, token, authority.certificate))
        stranger = Authority.create(tmp_path / "stranger")
        with pytest.raises((asyncio.TimeoutError, grpc.aio.AioRpcError)):
            asyncio.run(work(front.port, "let me in", stranger.certificate, seconds=3))
        assert not heard.epochs
        assert asyncio.run(work(front.port, "let me in", authority.certificate)) == 3
        assert heard.epochs == {epoch: [float(i) for i in range(7)] for epoch in (1, 2, 3)}


def test_a_certificate_that_is_replaced_is_used_for_new_connections(tmp_path: Path) -> None:
    before, after = Authority.create(tmp_path / "before"), Authority.create(tmp_path / "after")
    old, new = before.issue("learner", ["localhost"]), after.issue("learner", ["localhost"])
    options = FrontOptions(port=0, tls_certificate=old.certificate, tls_key=old.key)

    async def accepted(authority: Path) -> bool:
        credentials = grpc.ssl_channel_credentials(authority.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{front.port}", credentials, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                await channel.unary_unary(f"/{SERVICE}/Heartbeat")(b"", timeout=WAIT)
            except grpc.aio.AioRpcError as error:
                return error.code() is not grpc.StatusCode.UNAVAILABLE  # the front answers that it does not know this worker
        return True

    with search(7, options=options, max_epochs=3) as (front, _, _heard):
        assert asyncio.run(accepted(before.certificate)) and not asyncio.run(accepted(after.certificate))
        new.certificate.replace(old.certificate)
        new.key.replace(old.key)
        assert asyncio.run(accepted(after.certificate)) and not asyncio.run(accepted(before.certificate))
        assert asyncio.run(work(front.port, None, after.certificate)) == 3


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    one, other = authority.issue("one", ["localhost"]), authority.issue("other", ["localhost"])
    with pytest.raises(SecurityError, match=str(one.certificate)), search(7, options=FrontOptions(port=0, tls_certificate=one.certificate, tls_key=other.key)):
        pass


def test_a_front_serves_its_figures() -> None:
    with search(7, options=FrontOptions(port=0, metrics_port=0), max_epochs=3) as (front, _, _heard):
        assert asyncio.run(work(front.port, None)) == 3
        with urllib.request.urlopen(f"http://127.0.0.1:{front.metrics_port}/metrics", timeout=WAIT) as answer:
            text = answer.read().decode()
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == UPSTREAM
    assert "epochs_total_eval_size 21" in text and "worker_pool_workers_added 1" in text
    assert "optimize_duration_seconds_count 3" in text and "initialize_duration_seconds_count 1" in text
