# cython: language_level=3, boundscheck=False, wraparound=False
"""A replay table as Python sees it: insert on one side, sample on the other, and tables/table.hpp in between."""
import logging
from importlib import import_module

import numpy as np
import optree

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.math cimport INFINITY, isnan
from libc.stdint cimport int64_t, uint32_t, uint64_t

from echo_core.store.door.door cimport Door, open_door
from echo_replay.tables.replay_info cimport ReplayInfo, drawn_batch
from echo_core.store.local_insert cimport copy_in
from echo_replay.tables.keyed_table cimport KeyedTable, exponent_of
from echo_core.spec.sample_labels cimport NEWEST, Labels
from echo_replay.tables.table cimport Batch, TableCounters, kClosed, kDrawn, kNothing
from echo_replay.tables.labelled.labelled_door cimport open_labelled
from echo_core.store.door.echo_run cimport ECHO_READY, ECHO_TIMEOUT, echo_run
from echo_core.store.sample cimport Sample, snapshot
from echo_core.store.wait.patience cimport Patience

from echo_core.base.errors import ClosedError, EchoError, EchoTimeoutError
from echo_core.base.plural import counted
from echo_replay.tables.policy_lag import lag_figures
from echo_core.store.sampler import must_be_positive

_log = logging.getLogger("echo")


cdef void release_capsule(object capsule) noexcept:
    (<Door*>PyCapsule_GetPointer(capsule, "echo_core.store")).release()


cdef class ReplayTable(KeyedTable):
    """A table whose rows stay, and are drawn as often as the sampler decides. `Table(...).open()` makes one for this process alone, and
    `Server(tables=[Table(...)])` one that clients reach as well.

    Every method may be called from any thread. `with Table(...).open() as table` closes it at the end.
    """

    # ---- writing ----------------------------------------------------------------------------------------------------------

    def submit(self, sample, timeout=30.0, priority=None, policy_version=None):
        """Insert one sample, from any thread of this process; return its key.

        Args:
            sample: a pytree that matches the spec.
            timeout: seconds to wait while the rate limiter accepts no insert; None waits for ever.
            priority: of the new item, finite and not negative; None lets the sampler choose.
            policy_version: version of the policy that made the sample, if the table keeps versions; None means the one published last.

        Returns:
            The item's key: a whole number that no other item of this table has or will have.

        Raises:
            SpecError, ValueError: the sample or its priority is refused; nothing was inserted.
            EchoTimeoutError: there was no space in time; the text says who waits for whom. ClosedError: the server is closed.
        """
        return self.put(sample, timeout, priority, policy_version)

    cdef object put(self, object sample, object timeout, object priority, object policy_version):
        cdef double value = 0
        cdef uint64_t key = 0
        cdef Labels labels
        self.opened()
        labels.keys = &key
        labels.version = _version(policy_version)
        if priority is not None:
            value = priority
            if not 0 <= value < INFINITY:
                raise ValueError(f"priority {priority!r} of a new item must be finite and not negative")
            if value == 0 and self.refuses_zero:
                raise ValueError(must_be_positive(f"priority {priority!r} of a new item"))
            labels.priorities = &value
        self.put_one(sample, &labels, timeout, "submit()")
        return key

    def submit_batch(self, samples, timeout=30.0, priorities=None, policy_version=None):
        """Insert N samples at once; leaves have shape `(N, *leaf.shape)`.

        Args:
            samples, timeout, policy_version: as in `submit`.
            priorities: shape (N,), or None.

        Returns:
            Their keys, uint64 of shape (N,). An EchoTimeoutError or ClosedError has the attributes `inserted`: the first so many samples were
            inserted, and `keys`: their keys.
        """
        return self.put_batch(samples, timeout, priorities, policy_version)

    cdef object put_batch(self, object samples, object timeout, object priorities, object policy_version):
        cdef list keys = []
        self.opened()
        try:
            self.put_many(samples, priorities, keys, _version(policy_version), timeout, "submit_batch()")
        except (ClosedError, EchoTimeoutError) as error:
            error.keys = keys[0][:error.inserted]
            raise
        return keys[0]

    cdef int check(self) except -1:
        self.opened()
        return 0

    cdef size_t copy_now(self, const void** data, size_t done, size_t count, const Labels* labels, const echo_run* claimed):
        return copy_in(self.table, data, done, count, labels[0], claimed)

    cdef int claim_now(self, uint32_t wanted, echo_run* run) noexcept nogil:
        return self.table.claim(wanted, run)

    cdef int wait_space(self, int64_t timeout_ns) noexcept nogil:
        return self.table.wait_space(timeout_ns)

    cdef str blocked_writers(self):
        return self.who_blocks_writers()

    # ---- reading ----------------------------------------------------------------------------------------------------------

    def sample(self, n=None, timeout=None, beta=None):
        """Draw a batch. The call waits until the rate limiter allows n items.

        Args:
            n: number of items; None is the server's batch_size.
            timeout: seconds; None waits until there is a batch or the server is closed.
            beta: exponent of the importance weights; None is the attribute `beta`, which may be changed at any time.

        Returns:
            `Sample(batch, info)`, which also has `keys`, `probabilities` and `weights` of shape (n,). The arrays are writable and belong to
            this batch alone. None once the server is closed.

        Raises:
            EchoTimeoutError: there were not enough items in time; the text says who waits for whom.
            EchoError: no item can be drawn, because every priority is 0.
        """
        return self.draw(n, timeout, beta)

    cpdef object draw(self, object n=None, object timeout=None, object beta=None, uint64_t borrower=0):
        cdef Batch* batch
        cdef Batch* whole
        cdef int answer = kClosed
        cdef uint64_t count = self.of_a_batch if n is None else _whole(n, "n", 1, 1 << 24)
        cdef double exponent = self.exponent if beta is None else exponent_of(beta)
        cdef Patience patience = None
        cdef Sample sample
        cdef bint due
        self.opened()
        batch = self.table.take_batch(count)
        batch.borrower = borrower  # the client that has to acknowledge the items, in a queue with lease_timeout
        try:
            while True:
                if self.python_sampler is not None:
                    answer = self.python_sampler.draw(batch)
                else:
                    with nogil:
                        answer = self.table.sample(batch)
                if answer == kDrawn:
                    whole = batch
                    batch = NULL  # from here on the lease owns it
                    self.table.weigh(whole, exponent)
                    sample = drawn_batch(self.table, self.name, whole, self.flattener)
                    if (<ReplayInfo>sample.info).counters.refused > self.refusals_logged:
                        self.refusals_logged = (<ReplayInfo>sample.info).counters.refused
                        _log.warning("table %r refused %s of workers: %s", self.name, counted(self.refusals_logged, "sample"), self._refusal())
                    return sample
                if answer == kClosed:
                    return None
                if answer == kNothing:
                    raise EchoError(
                        f"table {self.name!r}: the sampler can draw none of its {counted(self.table.counters().size, 'item')}, as every priority is 0; "
                        f"give update_priorities() positive ones, or the sampler an eps")
                if patience is None:
                    patience = Patience(timeout)
                    self.can_ever(count)
                with nogil:
                    self.table.wait_ready(<uint32_t>count, patience.slice())
                due = patience.turn()
                if due and not self.table.can_sample(<uint32_t>count) and not self.table.closed():
                    patience.report("sample()", "a batch", self.who_blocks_learner(count))
        finally:
            if batch != NULL:
                self.table.give_back(batch)

    def can_ever(self, uint64_t n) -> None:
        """Raise ValueError if the limiter never allows a batch of n, or not for ever."""
        reason = self.limiter.refusal(n, self.table.capacity(), bool(self.sampler.replacement))
        if reason:
            raise ValueError(f"table {self.name!r}: a batch of {n} can never be drawn: {reason}")

    # ---- for the requests that wait at a server: see server/requests/waiting_line.py -----------------------------------------------------------

    def arm_draws(self, int eventfd, uint32_t n) -> bool:
        """Have `eventfd` written once, when a batch of n can be drawn or the table is closed.

        Return whether that is so now; then nothing is armed. Otherwise call `disarm_draws(eventfd, n)`, also after the eventfd was written.
        """
        cdef bint now
        self.opened()
        with nogil:
            now = self.table.arm_ready(eventfd, n)
        return now

    def disarm_draws(self, int eventfd, uint32_t n) -> None:
        with nogil:
            self.table.disarm_ready(eventfd, n)

    def arm_inserts(self, int eventfd) -> bool:
        """As `arm_draws`, for when an item can be inserted."""
        cdef bint now
        self.opened()
        with nogil:
            now = self.table.arm_space(eventfd) == ECHO_READY
        return now

    def disarm_inserts(self, int eventfd) -> None:
        with nogil:
            self.table.disarm_space(eventfd)

    def next_return(self) -> float | None:
        """Return in how many seconds the first unacknowledged item is given out again, which wakes nobody; None if no item is out."""
        cdef int64_t left
        self.opened()
        with nogil:
            left = self.table.first_return()
        return None if left < 0 else left * 1e-9

    # ---- who waits for whom -------------------------------------------------------------------------------------------------

    def why_full(self) -> str:
        """Return why no sample can be inserted now; "" if one can."""
        cdef bint full
        self.opened()
        with nogil:
            full = self.wait_space(0) == ECHO_TIMEOUT
        return self.who_blocks_writers() if full else ""

    def who_blocks_writers(self) -> str:
        cdef TableCounters c = self.opened().counters()
        if self.table.limited(True, 1):
            return (f"table {self.name!r}: {self.limiter} allows no insert after {counted(c.inserts, 'insert')} and {counted(c.samples, 'sample')} "
                    f"({counted(c.pending, 'insert')} under way); the learner samples slower than the workers insert")
        if c.on_loan:
            return (f"table {self.name!r}: items that a learner was given and has not acknowledged (ack(keys)) take up "
                    f"the room: {c.on_loan}; they are given out again after {self.lease_timeout:g} s")
        return (f"table {self.name!r}: a checkpoint is being taken, or the row to evict next is being written or gathered "
                f"({counted(c.pending, 'insert')} under way in {counted(self.table.capacity(), 'row')})")

    def who_blocks_learner(self, n=None) -> str:
        cdef TableCounters c = self.opened().counters()
        n = self.of_a_batch if n is None else n
        why = "samples are inserted slower than they are drawn" if self.why_no_samples is None else self.why_no_samples()
        if self.table.limited(False, n):
            return (f"table {self.name!r}: {self.limiter} allows no batch of {n} from {counted(c.size, 'item')} after {counted(c.inserts, 'insert')} "
                    f"and {counted(c.samples, 'sample')}; {why}")
        return f"table {self.name!r}: it has {counted(c.size, 'item')}, and a batch of {n} needs more; {why}"

    def look(self, most):
        keys = self.newest(most)
        if keys.size == 0:
            return 0, [], []
        batch, here = self.peek(keys)
        leaves = optree.tree_leaves(batch, namespace=self.spec.namespace)
        return int(here.sum()), [np.ascontiguousarray(leaf[here]).tobytes() for leaf in leaves], keys[here].tolist()

    # ---- figures and native interfaces ------------------------------------------------------------------------------------

    def __len__(self):
        return self.opened().counters().size

    @property
    def capacity(self) -> int:
        return self.opened().capacity()

    @property
    def closed(self) -> bool:
        return self.table == NULL or self.table.closed()

    @property
    def overhead_bytes(self) -> int:
        """Memory in bytes beside that of the items themselves and the sampler."""
        return self.opened().counters().overhead_bytes

    def counters(self) -> dict:
        cdef TableCounters c = self.opened().counters()
        return {
            "size": c.size, "inserts": c.inserts, "samples": c.samples, "pending": c.pending, "deleted": c.deleted, "evicted": c.evicted,
            "push_blocked": c.push_blocked, "aborted": c.aborted, "leased": c.leased, "redrawn": c.redrawn, "updated": c.updated,
            "gone": c.gone, "drawn_batches": c.drawn_batches, "connections": c.connections, "queued": c.queued,
            "queue_depth_max": c.queue_depth_max, "refused": c.refused, "stale": c.stale, "on_loan": c.on_loan,
            "acknowledged": c.acknowledged, "redelivered": c.redelivered,
        }

    def _refusal(self) -> str:
        cdef TableCounters c = self.opened().counters()
        which = f"priority {c.refused_priority} of sample {c.refused_sample}"
        return must_be_positive(which) if c.refused_priority == 0 else f"{which} is negative or not finite"

    def mass(self) -> float | None:
        """Return the sum of weights from which the next batch is drawn; None if the sampler has no such sum. See `Sampler.mass`."""
        cdef double sum
        self.opened()
        if self.python_sampler is not None:
            with self.lock:
                return self.sampler.mass()
        with nogil:
            sum = self.table.mass()
        return None if isnan(sum) else sum

    def stats(self) -> dict:
        """Return flat figures. `blocked` is "", "inserts", "samples" or both, and `blocked_by` says in words why."""
        out = self.counters()
        out["capacity"] = self.table.capacity()
        out["rows_ready"] = self.rows_ready()
        out["samples_per_insert"] = out["samples"] / out["inserts"] if out["inserts"] else 0.0
        inserting = self.table.limited(True, 1)
        sampling = self.table.limited(False, self.of_a_batch)
        if (mass := self.mass()) is not None:
            out["mass"] = mass
        if out["refused"]:
            out["refused_last"] = self._refusal()
        if self.lags is not None:
            out.update(lag_figures(self.policy_version, *self.policy_versions()))
        out["blocked"] = "+".join([word for word, on in (("inserts", inserting), ("samples", sampling)) if on])
        out["blocked_by"] = "; ".join([who() for who, on in ((self.who_blocks_writers, inserting), (self.who_blocks_learner, sampling)) if on])
        return out

    def store_counters(self) -> dict:
        cdef TableCounters c = self.opened().counters()
        return {
            "inserted": c.inserts, "stored": c.size, "batches_taken": c.drawn_batches, "batches_out_of_order": 0, "push_blocked": c.push_blocked,
            "notified": 0, "aborted": c.aborted, "leased": c.leased, "connections": c.connections, "queued": c.queued,
            "queue_depth_max": c.queue_depth_max,
        }

    def histograms(self) -> dict:
        return {"copy": snapshot(self.opened().copy.snapshot()), "ingest_round": snapshot(self.opened().ingest_round.snapshot())}

    def reset_histograms(self) -> None:
        """Start the latency histograms again from zero."""
        self.opened().copy.reset()
        self.table.ingest_round.reset()

    cdef uint64_t rows_ready(self):
        return self.table.rows_ready()

    def count_workers(self, workers) -> None:
        (&self.opened().connections).store(<int64_t>workers)

    def native(self, labelled=False):
        """Return a PyCapsule "echo_core.store" for the native interface (include/echo_capi.h). It keeps the table's memory alive.

        labelled: the interface has one leaf more, which holds the samples' labels (wire/labels.py)."""
        cdef Door* door = self.new_door(labelled)
        try:
            return PyCapsule_New(door, "echo_core.store", release_capsule)
        except BaseException:
            door.release()
            raise

    cdef Door* new_door(self, bint labelled) except NULL:
        return open_labelled(self.opened()) if labelled else open_door(self.opened())

    def checkpoint(self, path) -> str:
        """Write this table to the directory `path` and return the directory of this checkpoint; see `Server.checkpoint`."""
        return str(_checkpoints().save({self.name: self}, path))

    def restore(self, path) -> None:
        """Fill this new table from the newest checkpoint in `path`; see `Server.restore`."""
        if self.closed:
            raise ClosedError("this table was closed; restore into a new one")
        _checkpoints().load({self.name: self}, path)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self) -> None:
        if self.table != NULL:
            self.table.close()

    def __repr__(self):
        return f"<ReplayTable {self.name!r} {len(self)}/{self.capacity} sampler={type(self.sampler).__name__}>"


def _checkpoints():
    """The module of checkpoints, which imports this one."""
    return import_module("echo_replay.checkpoint.checkpoint")


cdef uint64_t _whole(object value, str name, uint64_t least, uint64_t most) except? 0:
    if not hasattr(type(value), "__index__") or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


cdef uint64_t _version(object version) except? 0:
    return NEWEST if version is None else _whole(version, "policy_version", 0, NEWEST - 1)


