# cython: language_level=3, boundscheck=False, wraparound=False
"""The store as Python sees it: `submit` on one side, `sample` on the other, and a stream or replay tables behind them.

`Server` derives from `Store`, so that `server.submit` and `server.sample` are builtin methods. A Python call in between would cost
as much as the insert itself.
"""
import os

from libc.stdint cimport int64_t

from echo_core.spec.sample_labels cimport NEWEST, Labels
from echo_core.store.replay.replay_table cimport ReplayTable
from echo_core.store.stream.stream cimport Stream

from echo_core.spec import cuda
from echo_core.base.errors import ForkError, UnknownTableError

cdef Labels UNLABELLED
cdef int generation = 0  # the number of forks: a store belongs to the process that made it


def _forked():
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


cdef class Store(Stream):
    """Batch buffers that writers fill slot by slot and learners take as a whole, or replay tables; see docs/design/store.md."""

    def _open(self, spec, batch_size, num_buffers, lease_timeout, memory=None):
        """Open a stream. `memory` is a `StoreMemory` if other processes write to it, and None for private memory."""
        self.refuse_twice()
        self.open(spec, batch_size, num_buffers, lease_timeout, memory)
        self.tables = {}
        self.generation = generation

    def _open_tables(self, tables, batch_size):
        """Open replay tables: `tables` is a dict of `ReplayTable` by name. The first one is used where no table is named."""
        self.refuse_twice()
        self.tables = tables
        self.replay = next(iter(tables.values()))
        self.spec = self.replay.spec
        self.generation = generation

    def _lock_pages(self):
        """Page-lock the memory that learners upload: the store of a stream, or the batches of replay tables. Raises CudaError."""
        one = cuda.found()
        if isinstance(one, str):
            raise cuda.CudaError(f"pinned=True: {one}")
        place = one.place_here()
        if self.replay is None:
            self.lock_pages(place)
        for table in self.tables.values():
            table.lock_pages(place)

    cdef int refuse_twice(self) except -1:
        if self.ring != NULL or self.replay is not None:
            raise RuntimeError("this store is open already")
        return 0

    cdef ReplayTable table_of(self, object name):
        """Return the table called `name`; None means the first."""
        if self.replay is None:
            if self.ring == NULL:
                self.refuse()
            raise ValueError("this server streams: it has no replay tables, no keys and no priorities; give it a replay sampler and a capacity")
        if name is None:
            return self.replay
        table = self.tables.get(name)
        if table is None:
            raise UnknownTableError(f"no table {name!r}; this server has {', '.join(map(repr, self.tables))}")
        return table

    def table(self, name=None):
        """Return the `ReplayTable` called `name`; None means the first.

        Raises:
            UnknownTableError: no table has this name. ValueError: this server has a stream.
        """
        self._check_process()
        return self.table_of(name)

    cdef int refuse(self) except -1:
        """Raise the error that says why this object cannot be used."""
        if self.ring == NULL and self.replay is None:
            raise RuntimeError("Server.__init__ was not called")
        raise ForkError(
            "this server was made before a fork and belongs to the parent process: what the child inserts or takes would never be seen "
            "there; make clients in the child, or start it with multiprocessing's 'spawn'"
        )

    cdef int check(self) except -1:
        if self.ring == NULL or self.generation != generation:
            self.refuse()
        return 0

    def _check_process(self) -> None:
        if (self.ring == NULL and self.replay is None) or self.generation != generation:
            self.refuse()

    def _same_process(self) -> bool:
        return self.generation == generation

    # ---- writing -----------------------------------------------------------------------------------------------------------

    def submit(self, sample, timeout=30.0, table=None, priority=None, policy_version=None):
        """Insert one sample, from any thread of this process.

        Args:
            sample: a pytree that matches the spec.
            timeout: seconds to wait for space if every buffer is full; None waits for ever.
            table: name of a replay table; None is the first.
            priority: of the new item of a replay table; None lets the sampler choose.
            policy_version: version of the policy that made the sample, see `ReplayTable.submit`.

        Returns:
            The item's key in a replay table (see `ReplayTable.submit`), and None in a stream.

        Raises:
            SpecError: the sample does not match, naming the leaf; nothing was inserted.
            EchoTimeoutError: there was no space in time; the text says who waits for whom. Nothing was inserted.
            ClosedError: the server is closed.
        """
        if self.ring == NULL or self.generation != generation or table is not None or priority is not None or \
                policy_version is not None:
            self._check_process()
            return self.table_of(table).put(sample, timeout, priority, policy_version)
        self.put_one(sample, &UNLABELLED, timeout, "submit()")

    def submit_batch(self, samples, timeout=30.0, table=None, priorities=None, policy_version=None):
        """Insert N samples at once, as vectorised environments produce them.

        Args:
            samples: a pytree like the example whose leaves have one more leading axis: shape `(N, *leaf.shape)`, with the same N for all.
            timeout: seconds to wait for space; None waits for ever.
            table, priorities, policy_version: as in `submit`; priorities have shape (N,).

        Returns:
            N; of a replay table the items' keys, uint64 of shape (N,). An EchoTimeoutError or ClosedError has an attribute `inserted`: the
            first so many samples were inserted.

        Raises:
            SpecError, EchoTimeoutError, ClosedError: as `submit`.
        """
        if self.ring == NULL or self.generation != generation or table is not None or priorities is not None or \
                policy_version is not None:
            self._check_process()
            return self.table_of(table).submit_batch(samples, timeout, priorities, policy_version)
        return self.put_many(samples, None, None, NEWEST, timeout, "submit_batch()")

    # ---- reading -----------------------------------------------------------------------------------------------------------

    def sample(self, timeout=None, *, table=None, n=None, beta=None):
        """Return the next batch. The call waits until `batch_size` samples are in the store.

        Args:
            timeout: seconds; None waits until there is a batch or the server is closed.
            table, n, beta: for replay tables, see `ReplayTable.sample`; if table is None, the first one is used.

        Returns:
            `Sample(batch, info)`: the batch's arrays have shape `(batch_size, *leaf.shape)`, are writable and zero-copy, and stay
            valid for as long as anything refers to them. None once the server is closed and its last complete batch was taken.

        Raises:
            EchoTimeoutError: no batch was complete in time; the text says who waits for whom.
            LeaseError: batches that are still in use hold every buffer, so that no batch can ever come. It is raised when `timeout` or
                `lease_timeout` has passed, whichever is first.
        """
        if self.ring == NULL or self.generation != generation or table is not None or n is not None or beta is not None:
            self._check_process()
            return self.table_of(table).draw(n, timeout, beta)
        return self.next_batch(timeout)

    def update_priorities(self, keys, priorities, table=None) -> int:
        """Give items of a replay table new priorities; return how many of them were gone. See `ReplayTable.update_priorities`."""
        self._check_process()
        return self.table_of(table).update_priorities(keys, priorities)

    def ack(self, keys, table=None) -> int:
        """Acknowledge items of a table with `lease_timeout`; return how many were unacknowledged. See `ReplayTable.ack`."""
        self._check_process()
        return self.table_of(table).ack(keys)

    # ---- figures and the native interface ----------------------------------------------------------------------------------

    def _who_blocks_learner(self) -> str:
        if self.replay is not None:
            return self.replay.who_blocks_learner()
        return Stream._who_blocks_learner(self)

    @property
    def closed(self) -> bool:
        """Whether the store takes no more samples."""
        if self.replay is not None:
            return self.replay.closed
        return self.ring == NULL or self.ring.closed()

    @property
    def batch_size(self) -> int:
        if self.replay is not None:
            return self.replay.batch_size
        return self.opened().batch_size()

    @property
    def num_buffers(self) -> int:
        if self.replay is not None:
            return 0
        return self.opened().buffers()

    def _close_store(self):
        if self.replay is not None:
            for table in self.tables.values():
                table.close()
        if self.ring != NULL:
            self.ring.close()

    def _count_workers(self, workers: int) -> None:
        if self.replay is not None:
            for table in self.tables.values():
                table.count_workers(workers)
            return
        (&self.opened().connections).store(<int64_t>workers)

    def _counters(self) -> dict:
        if self.replay is not None:
            return _sum_of_tables(self.tables.values())
        return Stream._counters(self)

    def _histograms(self) -> dict:
        if self.replay is not None:
            return self.replay.histograms()
        return Stream._histograms(self)

    def reset_histograms(self) -> None:
        """Start the three latency histograms anew; counters stay as they are."""
        if self.replay is None:
            Stream.reset_histograms(self)
            return
        for table in self.tables.values():
            table.reset_histograms()

    def _native(self):
        """Return a PyCapsule "echo_core.store" for the native interface (include/echo_capi.h). It keeps the store's memory alive."""
        if self.replay is not None:
            return self.replay.native()
        return Stream._native(self)


def _sum_of_tables(tables):
    """Return the counters of a stream, summed over all replay tables."""
    names = {
        "inserted": "inserts", "stored": "size", "batches_taken": "drawn_batches", "push_blocked": "push_blocked", "aborted": "aborted",
        "leased": "leased", "queued": "queued",
    }
    counters = [table.counters() for table in tables]
    total = {name: sum(c[key] for c in counters) for name, key in names.items()}
    total["notified"] = total["batches_out_of_order"] = 0
    total["connections"] = max(c["connections"] for c in counters)
    total["queue_depth_max"] = max(c["queue_depth_max"] for c in counters)
    return total
