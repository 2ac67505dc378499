# cython: language_level=3, boundscheck=False, wraparound=False
"""The storages of a server as Python sees them: `submit` on one side, `sample` on the other, and a stream or replay tables behind them.

`Server` derives from `Store`, so that `server.submit` and `server.sample` are builtin methods. A Python call in between would cost
as much as the insert itself.
"""
import os

from echo_core.store.storage cimport Storage

from echo_core.base.errors import ForkError, UnknownTableError
from echo_core.spec import cuda

cdef int generation = 0  # the number of forks. A comparison with it costs less than a question to a storage


def _forked():
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


cdef class Store:
    """What a server keeps samples in: batch buffers that writers fill and learners take as a whole, or replay tables; see docs/design/store.md."""

    def __cinit__(self):
        self.generation = -1

    def _open(self, storages):
        """Use these storages, by name. The first one is used where no table is named."""
        if self.first is not None:
            raise RuntimeError("this store is open already")
        self.storages, self.generation = storages, generation
        self.tables = {name: storage for name, storage in storages.items() if not storage.why_no_table()}
        self.first = next(iter(storages.values()))

    def _lock_pages(self):
        """Page-lock the memory that learners upload. Raises CudaError."""
        one = cuda.found()
        if isinstance(one, str):
            raise cuda.CudaError(f"pinned=True: {one}")
        place = one.place_here()
        for storage in self.storages.values():
            storage.lock_pages(place)

    cdef Storage storage_of(self, object name):
        """Return the storage called `name`; None means the first."""
        if name is None:
            return self.first
        storage = self.storages.get(name) if name else None
        if storage is None:
            if why := self.first.why_no_table():
                raise ValueError(why)
            raise UnknownTableError(f"no table {name!r}; this server has {', '.join(map(repr, self.tables))}")
        return storage

    def table(self, name=None):
        """Return the `ReplayTable` called `name`; None means the first.

        Raises:
            UnknownTableError: no table has this name. ValueError: this server has no tables.
        """
        self._check_process()
        storage = self.storage_of(name)
        if why := storage.why_no_table():
            raise ValueError(why)
        return storage

    cdef int refuse(self) except -1:
        """Raise the error that says why this object cannot be used."""
        if self.first is None:
            raise RuntimeError("Server.__init__ was not called")
        raise ForkError(
            "this server was made before a fork and belongs to the parent process: what the child inserts or takes would never be seen "
            "there; make clients in the child, or start it with multiprocessing's 'spawn'"
        )

    def _check_process(self) -> None:
        if self.generation != generation:
            self.refuse()

    def _same_process(self) -> bool:
        return self.first is None or self.generation == generation

    @property
    def spec(self):
        """The `Spec` of the samples that `submit` takes, if no table is named."""
        return None if self.first is None else self.first.spec

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
            ClosedError: the server is closed. ConfigError: it takes no samples, because it was made without an example.
        """
        if self.generation != generation:
            self.refuse()
        return (self.first if table is None else self.storage_of(table)).put(sample, timeout, priority, policy_version)

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
            SpecError, EchoTimeoutError, ClosedError, ConfigError: as `submit`.
        """
        if self.generation != generation:
            self.refuse()
        return (self.first if table is None else self.storage_of(table)).put_batch(samples, timeout, priorities, policy_version)

    # ---- reading -----------------------------------------------------------------------------------------------------------

    def sample(self, timeout=None, *, table=None, n=None, beta=None, units=None):
        """Return the next batch. The call waits until `batch_size` samples are in the store.

        Args:
            timeout: seconds; None waits until there is a batch or the server is closed.
            table, n, beta: for replay tables, see `ReplayTable.sample`; if table is None, the first one is used.
            units: for tables of samples of varying length, `{axis: rows}`: see `RecordTable.sample`.

        Returns:
            `Sample(batch, info)`: the batch's arrays have shape `(batch_size, *leaf.shape)`, are writable and zero-copy, and stay
            valid for as long as anything refers to them. None once the server is closed and its last complete batch was taken.

        Raises:
            EchoTimeoutError: no batch was complete in time; the text says who waits for whom.
            LeaseError: batches that are still in use hold every buffer, so that no batch can ever come. It is raised when `timeout` or
                `lease_timeout` has passed, whichever is first.
            ConfigError: this server takes no samples, because it was made without an example.
        """
        if self.generation != generation:
            self.refuse()
        if units is not None:
            if n is not None:
                raise ValueError("give either n, a number of items, or units, a budget of rows")
            return self.storage_of(table).draw_units(units, timeout, beta)
        return (self.first if table is None else self.storage_of(table)).draw(n, timeout, beta)

    def update_priorities(self, keys, priorities, table=None) -> int:
        """Give items of a replay table new priorities; return how many of them were gone. See `ReplayTable.update_priorities`."""
        return self.table(table).update_priorities(keys, priorities)

    def ack(self, keys, table=None) -> int:
        """Acknowledge items of a table with `lease_timeout`; return how many were unacknowledged. See `ReplayTable.ack`."""
        return self.table(table).ack(keys)

    # ---- figures and the native interface ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the store takes no more samples."""
        return self.first is None or self.first.closed

    @property
    def batch_size(self) -> int:
        self._check_process()
        return self.first.batch_size

    @property
    def num_buffers(self) -> int:
        self._check_process()
        return self.first.num_buffers

    def _close_store(self):
        if self.storages is not None:
            for storage in self.storages.values():
                storage.close()

    def _storage(self, name=None):
        """Return the storage that clients ask for by `name`; None means the first."""
        self._check_process()
        return self.storage_of(name)

    def _counters(self) -> dict:
        """Return the counters of all storages: their sums, and of how many workers are connected and how deep a queue was the maximum."""
        self._check_process()
        counters = [storage.store_counters() for storage in self.storages.values()]
        most = ("connections", "queue_depth_max")
        return {name: (max if name in most else sum)([one[name] for one in counters]) for name in counters[0]}

    def _histograms(self) -> dict:
        self._check_process()
        return self.first.histograms()

    def reset_histograms(self) -> None:
        """Start the latency histograms anew; counters stay as they are."""
        self._check_process()
        for storage in self.storages.values():
            storage.reset_histograms()
