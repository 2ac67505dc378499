# cython: language_level=3
"""What `Server.sample()` returns: a batch, and figures about the store. The lease that keeps the batch's memory is in lease.pxi."""
from typing import NamedTuple

cimport cython

from echo_core.store.stream.ring cimport Counters, Ring
from echo_core.store.histogram cimport HistogramSnapshot

include "lease.pxi"


class HistSnapshot(NamedTuple):
    """A latency histogram at one moment. All times are in nanoseconds; percentiles are exact to about 6 %.

    Attributes:
        count: how many values were recorded (some histograms record one in 64: see `SampleInfo`).
    """

    count: int
    min_ns: int
    max_ns: int
    mean_ns: float
    p50_ns: int
    p90_ns: int
    p99_ns: int


cdef object snapshot(HistogramSnapshot s):
    return HistSnapshot(s.count, s.min, s.max, s.mean, s.p50, s.p90, s.p99)


@cython.final
@cython.freelist(16)
cdef class SampleInfo:
    """Figures about the store at the moment when a batch left it. The histograms are read when the attribute is read.

    Attributes:
        store_size: samples that are in the store, committed and not yet taken.
        active_connections: workers that are connected.
        queue_depth_sum: samples that arrived and wait for a slot, summed over all connections.
        queue_depth_max: the largest number that ever waited on one connection.
        push_blocked_count: how often a writer found the store full.
        samples_inserted_total: samples committed since the start.
        batches_taken_total: batches handed out since the start.
        leases_held: batches whose memory something still refers to, including this one.
        samples_aborted_total: slots that were given back by writers that failed between claim and commit.
        notify_count: how often a sleeping learner had to be woken.
        queue_dwell: `HistSnapshot` of the time a complete batch waited to be taken.
        copy: `HistSnapshot` of the time to copy one sample into its slot (one in 64 is timed).
        ingest_round: `HistSnapshot` of a transport's rounds of reading.
    """

    def __dealloc__(self):
        if self.ring != NULL:
            self.ring.release()

    @property
    def store_size(self) -> int:
        return self.counters.stored

    @property
    def active_connections(self) -> int:
        return self.counters.connections

    @property
    def queue_depth_sum(self) -> int:
        return self.counters.queued

    @property
    def queue_depth_max(self) -> int:
        return self.counters.queue_depth_max

    @property
    def push_blocked_count(self) -> int:
        return self.counters.push_blocked

    @property
    def samples_inserted_total(self) -> int:
        return self.counters.inserted

    @property
    def batches_taken_total(self) -> int:
        return self.counters.batches_taken

    @property
    def leases_held(self) -> int:
        return self.counters.leased

    @property
    def samples_aborted_total(self) -> int:
        return self.counters.aborted

    @property
    def notify_count(self) -> int:
        return self.counters.notified

    @property
    def queue_dwell(self) -> HistSnapshot:
        return snapshot(self.ring.queue_dwell.snapshot())

    @property
    def copy(self) -> HistSnapshot:
        return snapshot(self.ring.copy.snapshot())

    @property
    def ingest_round(self) -> HistSnapshot:
        return snapshot(self.ring.ingest_round.snapshot())

    @property
    def memcpy(self) -> HistSnapshot:
        """The name of `copy` in the original Echo."""
        return self.copy

    @property
    def drain_round(self) -> HistSnapshot:
        """The name of `ingest_round` in the original Echo."""
        return self.ingest_round

    @property
    def cas_success_total(self) -> int:
        """Always 0, as are the two that follow: figures of the original Echo's queues, of which there are none here."""
        return 0

    @property
    def cas_failure_total(self) -> int:
        return 0

    @property
    def reservation_retries_total(self) -> int:
        return 0

    def __repr__(self):
        return (f"SampleInfo(store_size={self.store_size}, active_connections={self.active_connections}, "
                f"samples_inserted_total={self.samples_inserted_total}, leases_held={self.leases_held})")


@cython.final
@cython.freelist(16)
cdef class Sample:
    """A batch and the figures at its moment. It unpacks as `batch, info = server.sample()`.

    Attributes:
        batch: the pytree of the example with leaves of shape `(batch_size, *leaf.shape)`: writable, zero-copy, valid for as long
            as anything refers to it.
        info: `SampleInfo`; for a replay table `ReplayInfo`.
        keys: for a replay table: uint64 of shape (n,), the key that each item keeps for good and that `update_priorities` takes. None for a
            stream.
        probabilities: float64 of shape (n,): the probability with which each item was drawn. None for a stream.
        weights: float32 of shape (n,): importance weights (1 / (N p))^beta, divided by the largest of the batch (Schaul et al. 2016). None for
            a stream.
    """

    __match_args__ = ("batch", "info")

    def with_batch(self, batch) -> Sample:
        """Return the same figures with another batch, such as a copy of this one's. The result holds nothing of this sample."""
        cdef Sample sample = Sample.__new__(Sample)
        sample.batch = batch
        sample.info = self.info
        if self.lease is not None:
            sample.info, sample.lease = self.info.copied(), self.lease.copied()
        return sample

    @property
    def keys(self):
        return self.column("keys")

    @property
    def probabilities(self):
        return self.column("probabilities")

    @property
    def weights(self):
        return self.column("weights")

    cdef object column(self, str name):
        if self.lease is None:
            return None
        if self.arrays is None:
            self.arrays = self.lease.draw_columns()
        return self.arrays[name]

    def __iter__(self):
        yield self.batch
        yield self.info

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (self.batch, self.info)[index]

    def __repr__(self):
        return f"Sample(batch={self.batch!r}, info={self.info!r})"


cdef Sample new_sample(Ring* ring, object batch):
    cdef Sample sample = Sample.__new__(Sample)
    cdef SampleInfo info = SampleInfo.__new__(SampleInfo)
    ring.retain()
    info.ring = ring
    info.counters = ring.counters()
    sample.batch = batch
    sample.info = info
    return sample


cdef Sample replay_sample(object batch, object info, object lease):
    """Makes a sample from a batch of a replay table; `lease.draw_columns()` returns its keys, probabilities, versions and weights."""
    cdef Sample sample = Sample.__new__(Sample)
    sample.batch = batch
    sample.info = info
    sample.lease = lease
    return sample
