# cython: language_level=3
"""What a replay table returns beside a batch: figures about the table and about the batch, and importance weights."""
import numpy as np

cimport cython
from libc.math cimport isnan
from libc.stdint cimport uint64_t

from echo_core.spec.pytree.flattener cimport Flattener
from echo_replay.tables.table cimport Batch, Table, TableCounters
from echo_core.store.sample cimport Sample, replay_sample

from echo_core.spec.spec import Spec

include "replay_lease.pxi"

cdef extern from "tables/importance_weights.hpp" namespace "echo::replay" nogil:
    void weigh "echo::replay::importance_weights" (const double*, uint64_t, double, float*)


@cython.final
@cython.freelist(16)
cdef class ReplayInfo:
    """Figures about a table at the moment when a batch left it.

    Attributes:
        table: its name.
        store_size: items in the table.
        effective_sample_size: (sum w)^2 / sum w^2 over the batch, with w = 1 / probability. A mean with these importance weights is as
            precise as a mean of so many equally likely items: n if all were equally likely, near 1 if one item outweighs the others.
        inserted, sampled: items inserted into the table and drawn from it so far.
        policy_versions: uint64 of shape (n,): the version of the policy that made each item of the batch; None if the table keeps no
            versions.
        policy_version: the newest version of the policy when the batch was drawn; 0 before the first was published.
        mass: the sum of weights from which the batch was drawn, see `Sampler.mass`; None if the sampler has no such sum.
        redrawn: rows that a writer overwrote while they were gathered, so that others were drawn instead.
        updates_gone: priority updates for items that were no longer there.
        leases_held: batches whose memory something still refers to, including this one.
        active_connections, push_blocked_count, queue_depth_sum, queue_depth_max, samples_inserted_total, batches_taken_total,
            samples_aborted_total: as in `SampleInfo`.
    """

    @property
    def store_size(self) -> int:
        return self.counters.size

    @property
    def effective_sample_size(self) -> float:
        w = 1.0 / self.lease.draw_columns()["probabilities"]
        return float(w.sum() ** 2 / np.square(w).sum())

    @property
    def policy_versions(self):
        return self.lease.draw_columns()["versions"] if self.versioned else None

    @property
    def policy_version(self) -> int:
        return self.counters.policy_version

    @property
    def mass(self):
        return None if isnan(self.sum) else self.sum

    @property
    def inserted(self) -> int:
        return self.counters.inserts

    @property
    def sampled(self) -> int:
        return self.counters.samples

    @property
    def redrawn(self) -> int:
        return self.counters.redrawn

    @property
    def updates_gone(self) -> int:
        return self.counters.gone

    @property
    def leases_held(self) -> int:
        return self.counters.leased

    @property
    def active_connections(self) -> int:
        return self.counters.connections

    @property
    def push_blocked_count(self) -> int:
        return self.counters.push_blocked

    @property
    def queue_depth_sum(self) -> int:
        return self.counters.queued

    @property
    def queue_depth_max(self) -> int:
        return self.counters.queue_depth_max

    @property
    def samples_inserted_total(self) -> int:
        return self.counters.inserts

    @property
    def batches_taken_total(self) -> int:
        return self.counters.drawn_batches

    @property
    def samples_aborted_total(self) -> int:
        return self.counters.aborted

    def copied(self) -> ReplayInfo:
        """Return the same figures without a hold on the batch's memory."""
        cdef ReplayInfo info = ReplayInfo.__new__(ReplayInfo)
        info.counters, info.table, info.lease, info.versioned = self.counters, self.table, self.lease.copied(), self.versioned
        info.sum = self.sum
        return info

    def __repr__(self):
        return f"ReplayInfo(table={self.table!r}, store_size={self.store_size}, inserted={self.inserted}, sampled={self.sampled})"


cdef Sample drawn_batch(Table* table, str name, Batch* batch, Flattener flattener):
    """Makes the `Sample` of a batch that was drawn, gathered and weighted."""
    cdef ReplayLease lease = replay_lease(table, batch)
    cdef ReplayInfo info = ReplayInfo.__new__(ReplayInfo)
    info.counters, info.table, info.lease, info.versioned = table.counters(), name, lease, table.keeps_versions()
    info.sum = batch.mass
    return replay_sample(flattener.arrays(batch.leaf.data(), batch.n, lease), info, lease)


def importance_weights(probabilities, double beta):
    """The weights of a batch whose items were drawn with these probabilities: (1 / (N p))^beta, the largest 1 (Schaul et al. 2016).

    Args:
        probabilities: float64 of shape (n,), all above 0.
        beta: exponent, from 0 to 1.

    Returns:
        float32 of shape (n,).
    """
    cdef const double[::1] given = np.ascontiguousarray(probabilities, np.float64)
    weights = np.empty(given.shape[0], np.float32)
    cdef float[::1] made = weights
    if given.shape[0]:
        weigh(&given[0], <uint64_t>given.shape[0], beta, &made[0])
    return weights
