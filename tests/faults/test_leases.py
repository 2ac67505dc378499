"""Batches that are kept stay valid for as long as they live, also after their server has gone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from rig.ledger import Ledger
from rig.processes import Child
from rig.workers import flood

from echo_core import LeaseError, Server
from echo_testing.samples import Tally


@pytest.mark.parametrize("filler", [48, 100_000])
def test_batches_kept_in_a_list_stay_as_they_are(
    filler: int, serve: Callable[..., Server], start: Callable[..., Child]
) -> None:
    server = serve(batch_size=8, filler=filler, num_buffers=6)
    child = start(flood, str(server.address), 0, filler)
    kept = []
    ledger = Ledger()
    for turn in range(200):
        sample = server.sample(timeout=20)
        ledger.add(sample.batch)
        kept.append((sample.batch, {key: leaf.tobytes() for key, leaf in sample.batch.items()}))
        if len(kept) == 5:
            for batch, was in kept:
                assert {key: leaf.tobytes() for key, leaf in batch.items()} == was
            del kept[turn % 5], batch
        del sample
    kept.clear()
    child.kill()


def test_a_learner_that_keeps_everything_is_told_and_workers_go_on_later(
    serve: Callable[..., Server], start: Callable[..., Child]
) -> None:
    server = serve(batch_size=8, num_buffers=3, lease_timeout=0.3)
    children = [start(flood, str(server.address), maker) for maker in range(2)]
    for child in children:
        assert child.hear() == "ready"
    ledger = Ledger()
    for _ in range(3):
        kept = [server.sample(timeout=20) for _ in range(3)]
        was = [sample.batch["filler"].tobytes() for sample in kept]
        for timeout in (None, 60, 0.1):
            with pytest.raises(LeaseError, match=r"3 batch buffers.*num_buffers"):
                server.sample(timeout=timeout)
        assert [sample.batch["filler"].tobytes() for sample in kept] == was
        for sample in kept:
            ledger.add(sample.batch)
        del kept, sample
        for _ in range(50):
            ledger.add(server.sample(timeout=20).batch)
    for child in children:
        child.tell("stop")
    sent = {}
    while len(sent) < 2 or ledger.total + 8 <= sum(sent.values()):
        for maker, child in enumerate(children):
            if maker not in sent and child.link.poll():
                sent[maker] = child.hear()["acknowledged"]
        try:
            ledger.add(server.sample(timeout=0.1).batch)
        except TimeoutError:
            pass
    assert ledger.total > sum(sent.values()) - 8
    for child in children:
        child.end()


SETTING = """
    import gc
    from echo_core import Client, Server
    from echo_testing.samples import Tally, example, stacked

    def setting():
        server = Server(example(), 4, {"type": "tcp", "port": 0}).start()
        client = Client(server.address, example())
        client.send_batch(stacked(0, 0, 12))
        client.wait()
        return server, client, [server.sample(timeout=20).batch for _ in range(2)]

    def check(batches):
        gc.collect()
        tally = Tally()
        for batch in batches:
            tally.add(batch)
        tally.check({0: 8})

    server, client, batches = setting()
"""

IN_ONE_PROCESS = [
    "del server; check(batches)",
    "it = server.dataset_iter(); next(it); del server, it; check(batches)",
    "server.close(); check(batches); batches.clear()",
    "server.close(); del server; check(batches)",
    "del client; check(batches); server.close()",
    "del server, client; check(batches)",
    "view = batches[0]['filler'][1:3, ::2]; del server, client, batches; gc.collect(); view += 1",
    "del server; gc.collect(); [batch['filler'].fill(7) for batch in batches]",
]
AT_ITS_END = [
    "check(batches)",
    "del server",
    "cycle = [batches]; cycle.append(cycle); del cycle, batches",
    "import threading; threading.Thread(target=server.sample, daemon=True).start()",
]


def test_batches_outlive_server_and_client(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    again = "\n    server, client, batches = setting()\n    "
    python(SETTING + "    " + again.join(IN_ONE_PROCESS))


@pytest.mark.parametrize("last", AT_ITS_END)
def test_batches_are_no_trouble_to_an_ending_interpreter(
    last: str, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    python(f"{SETTING}    {last}")


def test_torn_reads_are_what_the_tally_finds() -> None:
    """The checks above are worth something: a sample changed behind their back fails them."""
    from echo_testing.samples import stacked

    batch = stacked(3, 5, 4)
    Tally().add(batch)
    batch["filler"][2, 40] ^= 1
    with pytest.raises(AssertionError, match="sample 7 of 3 is torn"):
        Tally().add(batch)
    with pytest.raises(AssertionError, match="came twice"):
        ledger = Ledger()
        ledger.add(stacked(1, 0, 4))
        ledger.add(stacked(1, 3, 1))
