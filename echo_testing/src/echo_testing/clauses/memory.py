"""Clauses about memory: what clients make a learner hold stays within `Server(client_memory=)`, and the other clients are served."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from ..processes import until
from ..rig import PATIENCE, Rig, drain
from ..samples import stacked
from . import carrier

Needs = Callable[[str], None]

LIMIT = 16 << 20  # bytes
VERSION_BYTES = 12 << 20  # more than a connection's buffers in the kernel take
SAMPLE_BYTES = 2 << 20


@carrier
class MemoryClauses:
    def test_readers_that_stop_within_the_weights_are_bounded(self, rig: Rig, needs: Needs) -> None:
        needs("relayable")
        server = rig.server(client_memory=LIMIT)
        server.publish({"w": np.full(VERSION_BYTES, 1, np.uint8)})
        gc.disable()
        with ExitStack() as stack:
            stack.callback(gc.enable)
            readers, relays, payloads = [], [], []
            for number in range(1, 5):  # each stops within another version
                relay = stack.enter_context(self.relay(server))
                # They must not come back by themselves before the learner has cut them off, however busy this machine is.
                reader = rig.client(self.through(relay, server), name=f"reader{number}", silence=PATIENCE)
                assert reader.weights().version == number
                until(lambda n=number: n in [peer.weights_version for peer in server.peers()], "its receipt has come")
                relay.stall()
                readers.append(reader)
                relays.append(relay)
                payloads.append(weakref.ref(server._publishing.newest.payload))
                server.publish({"w": np.full(VERSION_BYTES, number + 1, np.uint8)})
                stats = server.stats()
                assert int(stats["clients/old_weights_bytes"]) <= max(LIMIT, VERSION_BYTES + 4096), stats
            until(lambda: int(server.stats()["clients/cut_off_total"]) >= 2, "those with the oldest versions are cut off")
            for reader, relay in zip(readers, relays):  # they come back by a path that works
                relay.cut()
                weights = reader.weights(newer_than=4)
                assert weights.version == 5 and (weights.params["w"] == 5).all()
            sender = rig.client(server)
            sender.send_batch(stacked(1, 0, 8))
            sender.wait()
            drain(server, 8).check({1: 8})
            for reader in readers:
                reader.close()
            until(lambda: all(payload() is None for payload in payloads), "old versions are freed, without the garbage collector")

    def test_senders_that_stop_within_a_message_are_bounded(self, rig: Rig, needs: Needs) -> None:
        needs("relayable")
        example = {"number": np.int64(0), "x": np.zeros(SAMPLE_BYTES, np.uint8)}
        server = rig.server(example, batch_size=1, num_buffers=4, client_memory=LIMIT)
        with ExitStack() as stack:
            for number in range(8):
                relay = stack.enter_context(self.relay(server))
                client = rig.client(self.through(relay, server), example, name=f"half{number}", max_inflight_msgs=4)
                relay.stall(after=SAMPLE_BYTES // 2)
                client.send({"number": np.int64(number), "x": np.full(SAMPLE_BYTES, number, np.uint8)})
            good = rig.client(server, example, name="good")
            for number in range(100, 104):
                good.send({"number": np.int64(number), "x": np.full(SAMPLE_BYTES, number, np.uint8)})
            seen: set[int] = set()
            while len(seen & {100, 101, 102, 103}) < 4:
                stats = server.stats()
                assert int(stats["clients/held_bytes"]) <= LIMIT, stats
                batch = server.sample(timeout=60).batch
                assert (batch["x"][0] == batch["number"][0] % 256).all()
                seen.add(int(batch["number"][0]))
            good.wait()
