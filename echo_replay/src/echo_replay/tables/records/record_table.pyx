# cython: language_level=3, boundscheck=False, wraparound=False
"""A table of samples of varying length as Python sees it: a replay table whose items are records (tables/records/records.hpp)."""
import time

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp.vector cimport vector

from echo_core.base.memory.page_lock cimport PageLock
from echo_core.spec.pytree.ragged_flattener cimport RaggedFlattener
from echo_core.store.door.door cimport Door
from echo_core.store.door.echo_run cimport ECHO_CLOSED, ECHO_OK, echo_run
from echo_core.store.local_insert cimport page_lock
from echo_replay.tables.keyed_table cimport exponent_of
from echo_replay.tables.replay_info cimport ReplayInfo, ReplayLease, replay_lease
from echo_replay.tables.records.records cimport (
    MOST_PAGES, PAGE_BYTES, UNLABELLED, PackedBatch, RecordCounters, RecordHeader, RecordLayout, RecordLeaf, RecordRow, Records, Stuck, open_records)
from echo_replay.tables.replay_table cimport ReplayTable
from echo_replay.tables.table cimport Answer, Batch, kClosed, kDrawn, kNothing
from echo_core.store.wait.patience cimport Patience

from echo_core.base.errors import CheckpointError, ClosedError, ConfigError, EchoError, EchoTimeoutError, SpecError, UnknownTableError
from echo_core.base.memory.promised import unpromised_memory
from echo_core.base.plural import counted
from echo_core.spec.packed import PackedBatch as PackedArrays  # PackedBatch is the native one here
from echo_core.spec.spec import Spec
from echo_replay.tables.records.record_sample import RecordSample
from echo_core.store.sampler import check_keys, must_be_positive
from echo_core.wire.identity import client_number

ROW = Spec.from_example({"record": np.zeros(4, np.uint64)})  # 32 bytes: struct RecordRow of record_layout.hpp
GIVEN_UP_SECONDS = 600.0  # a worker that is gone for so long does not go on with the record that it was sending
MOST_UNITS_ITEMS = 1 << 16  # items of one draw by units

cdef enum:
    INLINE_LEAVES = 64  # samples with more leaves keep their pointers on the heap


@cython.final
cdef class PackedLease:
    """The right to read one packed batch's memory. Its arrays refer to it, and the next batch uses the memory once the last of them is freed."""

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.packed.memory, <Py_ssize_t>self.packed.mapped, 0, flags)

    def __dealloc__(self):
        if self.records != NULL:
            self.records.give_back(self.packed)
            self.records.release()


cdef class RecordTable(ReplayTable):
    """A table of samples of varying length. `Server` makes it for an example with `Ragged` leaves; see `echo_replay.config.table.Table`.

    Everything that `ReplayTable` says about items holds here too: keys, priorities, samplers, removers, limiters, policy versions, leases.
    Its batches are packed: see `RecordSample`.

    Attributes:
        records: the `RaggedSpec` of its samples. `spec` is that of the chunks in which they travel.
    """

    def __cinit__(self):
        self.stored = NULL
        self.given_up = {}
        self.half_sent_limit = <uint64_t>1 << 62

    def __init__(self, described, batch_size, sampler, remover, beta, descriptor):
        """`described` is a `Table` of config/table.py that has `records`. `descriptor` is of the file that holds the records, or -1."""
        records = described.records
        cdef RecordLayout layout
        cdef RecordLeaf one
        cdef uint64_t size = described.page_bytes
        free = unpromised_memory()
        if descriptor < 0 and size > free:
            raise MemoryError(
                f"table {described.name!r}: max_bytes={size:,} does not fit: {free:,} bytes are available; lower max_bytes, or give the table a "
                f"storage path")
        if size // PAGE_BYTES > MOST_PAGES:
            raise ConfigError(f"table {described.name!r}: max_bytes={size:,} is more than the {MOST_PAGES * PAGE_BYTES:,} that a table can address")
        for leaf in records.leaves:
            one.bytes, one.axis = leaf.nbytes, leaf.axis
            layout.leaves.push_back(one)
        for most in records.most:
            layout.most.push_back(most)
        self.more.push_back(sizeof(uint64_t) * 4)
        ReplayTable.__init__(self, described, batch_size, sampler, remover, beta, -1, ROW)
        self.stored = new Records(layout, size, self.table, descriptor)
        self.door.release()
        self.door = NULL
        self.door = open_records(self.stored)
        self.records, self.spec, self.fit = records, records.chunk_spec, RaggedFlattener(records)
        self.flattener, self.leaves, self.sample_bytes = self.spec.flattener, 1, self.spec.sample_bytes

    def __dealloc__(self):
        if self.stored != NULL:
            self.stored.release()

    # ---- writing ----------------------------------------------------------------------------------------------------------

    cdef object put(self, object sample, object timeout, object priority, object policy_version):
        cdef RecordHeader header
        cdef uint64_t key = 0
        self.opened()
        header.priority = self._priority(priority)
        header.version = self._version(policy_version)
        self.insert_one(sample, &header, timeout, &key, "submit()")
        return key

    def submit_batch(self, samples, timeout=30.0, priorities=None, policy_version=None):
        """Insert several samples, a list of them; return their keys, uint64 of shape (N,). See `ReplayTable.submit_batch`."""
        return self.put_batch(samples, timeout, priorities, policy_version)

    cdef object put_batch(self, object samples, object timeout, object priorities, object policy_version):
        cdef RecordHeader header
        cdef vector[const void*] unused
        cdef uint64_t[::1] room
        cdef Py_ssize_t i
        self.opened()
        if not isinstance(samples, (list, tuple)):
            raise SpecError(f"table {self.name!r} takes a list of samples, as their lengths differ, not one {type(samples).__name__}")
        given = [None] * len(samples) if priorities is None else list(priorities)
        if len(given) != len(samples):
            raise ValueError(f"{counted(len(samples), 'sample')} need as many priorities, not {len(given)}")
        bits = [self._priority(priority) for priority in given]
        header.version = self._version(policy_version)
        samples = list(samples)  # another thread may change the caller's
        unused.resize(self.fit.count)
        for i in range(len(samples)):  # all are checked before the first one is inserted
            try:
                self.fit.pointers(samples[i], unused.data(), header.lengths)
            except SpecError as error:
                raise SpecError(f"sample {i} of the batch: {error}") from error
        keys = np.empty(len(samples), np.uint64)
        room = keys
        for i in range(len(samples)):
            header.priority = bits[i]
            try:
                self.insert_one(samples[i], &header, timeout, &room[i], "submit_batch()")
            except (EchoTimeoutError, ClosedError) as error:
                error.inserted, error.keys = i, keys[:i]
                raise
        return keys

    def _priority(self, priority):
        """Return the bits of a priority in a record's header."""
        if priority is None:
            return UNLABELLED
        value = float(priority)
        if not 0 <= value < INFINITY:
            raise ValueError(f"priority {value!r} of a new item must be finite and not negative")
        if value == 0 and self.refuses_zero:
            raise ValueError(must_be_positive(f"priority {value!r} of a new item"))
        return np.float64(value).view(np.uint64)

    def _version(self, version):
        if version is None:
            return UNLABELLED
        if not hasattr(type(version), "__index__") or isinstance(version, bool) or not 0 <= version < UNLABELLED:
            raise ValueError(f"policy_version must be a whole number from 0 to {UNLABELLED - 1}, not {version!r}")
        return int(version)

    cdef int insert_one(self, object sample, RecordHeader* header, object timeout, uint64_t* key, str caller) except -1:
        cdef const void* inline_data[INLINE_LEAVES]
        cdef vector[const void*] heap_data
        cdef const void** data = inline_data
        cdef int status
        cdef Patience patience = None
        if self.fit.count > INLINE_LEAVES:
            heap_data.resize(self.fit.count)
            data = heap_data.data()
        cdef list keep = self.fit.pointers(sample, data, header.lengths)
        while True:
            with nogil:
                status = self.stored.insert(header[0], <const char**>data, key)
            if status == ECHO_OK:
                return 0
            if status == ECHO_CLOSED:
                raise ClosedError(f"{caller}: the server is closed and takes no more samples")
            if patience is None:
                patience = Patience(timeout)
            with nogil:
                self.stored.wait_room(header.lengths, patience.slice())
            if patience.turn():
                patience.report(caller, "space", self.who_blocks_writers())

    cdef int claim_now(self, uint32_t wanted, echo_run* run) noexcept nogil:
        return self.stored.claim(wanted, run)

    cdef int wait_space(self, int64_t timeout_ns) noexcept nogil:
        return self.stored.wait_space(timeout_ns)

    cdef Door* new_door(self, bint labelled) except NULL:
        self.opened()
        if labelled:
            raise UnknownTableError(f"table {self.name!r} takes records, which carry their priorities and policy versions themselves")
        return open_records(self.stored)

    @property
    def takes_labels(self) -> bool:
        return False

    cdef int settle(self) except -1:
        """Inserts records that waited for room, which there may be now."""
        with nogil:
            self.stored.settle()
        return 0

    # ---- clients that come and go -------------------------------------------------------------------------------------------

    def peer_here(self, peer) -> None:
        self.given_up.pop(client_number(peer.id), None)
        self.forget_lost_workers()
        # A worker may leave the longest record half-sent. So its memory is reserved now, before any length is known: later nothing has to wait for it.
        # If there is no room, this worker has to wait until another one leaves. To cut off another one would not help: it returns at once.
        try:
            peer.memory.take(self.records.max_record_bytes, push_out=False)
        except EchoError as error:
            peer.memory.cut_off(f"table {self.name!r} needs {self.records.max_record_bytes:,} bytes for the sample that it sends: {error}")

    def peer_gone(self, connection, client_id, workers) -> None:
        # The record that the client was sending is kept for a while: a client that only lost its connection goes on in the middle. Whose chunks these
        # are is known by what their sender wrote into them, which may be the number of a client that never was here.
        cdef uint64_t client
        here = {client_number(worker) for worker in workers}
        for client in self.stored.clients():
            if client not in here:
                self.given_up.setdefault(client, time.monotonic())
        self.forget_lost_workers()
        ReplayTable.peer_gone(self, connection, client_id, workers)
        self.settle()

    def forget_lost_workers(self, seconds=GIVEN_UP_SECONDS) -> None:
        """Drop the half-sent records of workers that have been gone for so many seconds. This happens by itself when clients come and leave, and
        earlier if all half-sent records take more than twice the server's `client_memory`."""
        now = time.monotonic()
        for client, since in sorted(self.given_up.items(), key=lambda entry: entry[1]):
            if now - since >= seconds or self.stored.counters().half_sent_bytes > self.half_sent_limit:
                self.given_up.pop(client, None)
                self.forget(client)

    def forget(self, uint64_t client):
        with nogil:
            self.stored.forget_client(client)

    # ---- reading ----------------------------------------------------------------------------------------------------------

    def sample(self, n=None, timeout=None, beta=None, units=None):
        """Draw a packed batch: `n` items, or as many whole items as fit into a budget.

        Args:
            n, timeout, beta: as in `ReplayTable.sample`.
            units: `{axis: rows}`: as many items as have at most so many rows along this axis together. It must be at least the axis's `most`. An
                item that does not fit is the first one of the next such draw. The call waits until the items that can be drawn fill the budget, or
                writers wait for room. Items that are sampled several times may then occur twice in a batch.

        Returns:
            `RecordSample`; None once the server is closed.

        Raises:
            ValueError: n or units is invalid, or the batch could have more than 2^31 - 1 rows. EchoTimeoutError, EchoError: as
                `ReplayTable.sample`, and EchoError if writers wait for bytes while this call waits for items.
        """
        if units is not None:
            if n is not None:
                raise ValueError("give either n, a number of items, or units, a budget of rows")
            return self.draw_units(units, timeout, beta)
        return self.draw(n, timeout, beta)

    cpdef object draw(self, object n=None, object timeout=None, object beta=None, uint64_t borrower=0):
        cdef uint64_t count
        if n is not None and (not hasattr(type(n), "__index__") or isinstance(n, bool) or not 1 <= n <= 1 << 24):
            raise ValueError(f"n must be a whole number from 1 to {1 << 24}, not {n!r}")
        count = self.of_a_batch if n is None else n
        return self._drawn(count, 0, 0, timeout, beta, borrower)

    def draw_units(self, units, timeout=None, beta=None, borrower=0):
        axes = self.records.axes
        if not hasattr(units, "items") or len(units) != 1 or next(iter(units)) not in axes:
            raise ValueError(f"units must name one axis and its rows, such as {{{axes[0]!r}: 100_000}}, not {units!r}; the axes are {', '.join(axes)}")
        (name, rows), = units.items()
        most = self.records.most[axes.index(name)]
        if not hasattr(type(rows), "__index__") or isinstance(rows, bool) or not most <= rows < 1 << 31:
            raise ValueError(f"units[{name!r}] must be a whole number from {most}, the longest sample, to {(1 << 31) - 1}, not {rows!r}")
        if self.python_sampler is not None:
            raise EchoError(f"table {self.name!r}: sampler {type(self.sampler).__name__} is written in Python, which cannot draw by units; give n")
        return self._drawn(min(rows, self.table.capacity(), MOST_UNITS_ITEMS), axes.index(name), rows, timeout, beta, borrower)

    cdef PackedLease room_for(self, uint64_t items, uint32_t axis, uint64_t units):
        """Returns memory for a batch; units: rows along `axis`, 0 if the batch is a number of items."""
        cdef uint64_t room[4]
        cdef uint32_t at
        cdef uint64_t most
        cdef PackedLease lease = PackedLease.__new__(PackedLease)
        memset(room, 0, sizeof(room))
        for at in range(len(self.records.most)):
            most = items * <uint64_t>self.records.most[at]
            if units == 0 and most >= 1 << 31:
                raise ValueError(
                    f"table {self.name!r}: {counted(items, 'item')} of up to {self.records.most[at]} rows could have more than {(1 << 31) - 1} along the "
                    f"axis {self.records.axes[at]!r}, which offsets of 32 bits cannot number; draw fewer at once, or use units")
            room[at] = units if units and at == axis else min(most, (<uint64_t>1 << 31) - 1)
        lease.packed = self.stored.take_packed(items, room)
        self.stored.retain()
        lease.records = self.stored
        return lease

    def _drawn(self, uint64_t count, uint32_t axis, uint64_t units, timeout, beta, uint64_t borrower):
        cdef Batch* batch
        cdef int answer = kClosed
        cdef double exponent = self.exponent if beta is None else exponent_of(beta)
        cdef Patience patience = None
        cdef ReplayInfo info
        cdef ReplayLease lease
        cdef uint64_t wanted
        cdef Stuck stuck
        cdef bint due
        self.opened()
        cdef PackedLease packed = self.room_for(count, axis, units)
        batch = self.table.take_batch(count)
        batch.borrower, batch.packed = borrower, <void*>packed.packed
        try:
            while True:
                self.settle()
                if self.python_sampler is not None:
                    answer = self.python_sampler.draw(batch)
                elif units:
                    with nogil:
                        answer = self.stored.sample_units(batch, axis, units)
                else:
                    with nogil:
                        answer = self.table.sample(batch)
                if answer == kDrawn:
                    self.table.weigh(batch, exponent)
                    lease = replay_lease(self.table, batch)
                    batch = NULL  # from here on the lease owns it
                    lease.batch.packed = NULL
                    self.stored.count_drawn(packed.packed)
                    self.settle()
                    info = ReplayInfo.__new__(ReplayInfo)
                    info.counters, info.table, info.lease, info.versioned = self.table.counters(), self.name, lease, self.table.keeps_versions()
                    info.sum = lease.batch.mass
                    arrays, offsets = self.unpacked(packed, lease.batch.n)
                    return RecordSample(self.records, arrays, offsets, info, lease)
                if answer == kClosed:
                    return None
                if answer == kNothing:
                    raise EchoError(
                        f"table {self.name!r}: the sampler can draw none of its {counted(self.table.counters().size, 'item')}, as every priority is 0; "
                        f"give update_priorities() positive ones, or the sampler an eps")
                if patience is None:
                    patience = Patience(timeout)
                    self.can_ever(1 if units else count)
                # By units, more items than there are have to come.
                wanted = self.table.counters().size + 1 if units else count
                if self.stored.stuck(wanted, &stuck):
                    raise EchoError(
                        f"table {self.name!r}: a batch needs {'items of ' + str(units) + ' rows' if units else counted(count, 'item')}, and there "
                        f"{'is' if stuck.size == 1 else 'are'} {stuck.size}, while a writer waits for {stuck.bytes_wanted:,} bytes, of which "
                        f"{stuck.bytes_free:,} of {self.stored.page_bytes():,} are free: both would wait for ever; raise max_bytes, or draw fewer at once")
                with nogil:
                    self.table.wait_ready(<uint32_t>wanted, patience.slice())
                due = patience.turn()
                if due and not self.table.closed() and (units or not self.table.can_sample(<uint32_t>count)):
                    patience.report("sample()", "a batch", self.who_blocks_learner(count))
        finally:
            if batch != NULL:
                batch.packed = NULL
                self.table.give_back(batch)

    cdef tuple unpacked(self, PackedLease packed, uint64_t n):
        """Returns the arrays of a packed batch over its memory: one for each leaf, and the offsets of each axis."""
        cdef Py_ssize_t i = 0
        cdef char* begin = packed.packed.memory
        arrays, offsets = [], []
        for i, leaf in enumerate(self.records.leaves):
            count = n if leaf.axis < 0 else packed.packed.totals[<uint32_t>leaf.axis]
            arrays.append(np.ndarray((count, *leaf.shape), leaf.dtype, packed, packed.packed.leaf[i] - begin))
        for i in range(len(self.records.axes)):
            offsets.append(np.ndarray((n + 1,), np.int32, packed, <char*>packed.packed.offsets[i] - begin))
        return arrays, offsets

    def peek(self, keys):
        """Return items by key. This does not count as sampling.

        Returns:
            `(RecordSample, here)`: `here` is a bool array that says which keys were there; items of the other keys have length 0, and their other
            leaves are unspecified.
        """
        self.opened()
        checked = check_keys(keys)
        cdef const uint64_t[::1] k = checked
        cdef size_t n = checked.size
        cdef uint8_t[::1] flags
        cdef Batch* batch
        cdef ReplayLease lease
        if n == 0:
            raise ValueError("peek() needs at least one key")
        here = np.empty(n, np.bool_)
        flags = here.view(np.uint8)
        cdef PackedLease packed = self.room_for(n, 0, 0)
        batch = self.table.take_batch(n)
        lease = replay_lease(self.table, batch)
        batch.packed = <void*>packed.packed
        memset(batch.leaf[1], 0xFF, n * 32)  # rows of keys that are gone fit into no layout, so they count as empty
        with nogil:
            self.table.find(&k[0], n, batch, &flags[0])
            self.table.gather_known(batch, &flags[0])
        batch.packed = NULL
        arrays, offsets = self.unpacked(packed, n)
        return RecordSample(self.records, arrays, offsets), here

    def update_items(self, keys, leaves):
        raise EchoError(
            f"table {self.name!r}: records have different lengths, so that no leaf can be overwritten in place; insert the changed sample, and delete "
            f"the old one by its key")

    def look(self, most):
        keys = self.newest(most)
        if keys.size == 0:
            return 0, [], []
        found, here = self.peek(keys)
        packed = found.packed
        if not here.any():
            return 0, [], []
        if not here.all():
            packed = PackedArrays.joined([packed[i:i + 1] for i in range(len(packed)) if here[i]])
        lengths = np.stack(list(packed.lengths.values()), axis=1)
        return len(packed), [lengths.tobytes(), *(array.tobytes() for array in packed.arrays)], keys[here].tolist()

    # ---- what removes items: writers may wait for their room -----------------------------------------------------------------------

    def delete(self, keys) -> int:
        cdef object deleted = ReplayTable.delete(self, keys)
        self.settle()
        return deleted

    def ack(self, keys) -> int:
        cdef object ended = ReplayTable.ack(self, keys)
        self.settle()
        return ended

    def published(self, version) -> None:
        ReplayTable.published(self, version)
        self.settle()

    # ---- figures ----------------------------------------------------------------------------------------------------------

    def who_blocks_writers(self) -> str:
        cdef RecordCounters c
        self.opened()
        c = self.stored.counters()
        text = ReplayTable.who_blocks_writers(self)
        if self.table.limited(True, 1):
            return text
        free = f"{c.pages_free * PAGE_BYTES:,} of {c.pages * PAGE_BYTES:,} bytes (max_bytes) are free"
        if c.pages_free * PAGE_BYTES < self.records.max_record_bytes and not self.table.counters().on_loan:
            return (f"table {self.name!r}: {free}, and a sample may need {self.records.max_record_bytes:,}; the learner samples slower than the workers "
                    f"insert")
        return f"table {self.name!r}: {free}; {text}"

    def bytes_to_come(self) -> int:
        return ReplayTable.bytes_to_come(self)

    def use_memory(self, memory) -> None:
        """Raise ConfigError if a worker may not make the server hold the longest record. `memory` is the server's `ClientMemory`, which bounds the
        half-sent records."""
        if self.records.max_record_bytes > memory.share:
            raise ConfigError(
                f"table {self.name!r}: one sample can take {self.records.max_record_bytes:,} bytes, and a worker may make the server hold "
                f"{memory.share:,}; lower most= of the example's axes, or raise Server(client_memory=), of which one worker gets a quarter")
        # Memory is reserved for what connected workers send. Those that left, and may return, keep no more than that again.
        self.half_sent_limit = 2 * memory.limit
        self.stored.limit_half_sent(self.half_sent_limit)

    def lock_pages(self, place):
        self.stored.lock_pages(page_lock(place))

    def stats(self) -> dict:
        """Return the figures of `ReplayTable.stats`, and of records: docs/stats.md explains them."""
        cdef RecordCounters c
        cdef Py_ssize_t i
        out = ReplayTable.stats(self)
        c = self.stored.counters()
        out.update({
            "bytes_capacity": c.pages * PAGE_BYTES, "bytes_used": (c.pages - c.pages_free) * PAGE_BYTES, "records_incomplete": c.incomplete,
            "records_refused": c.refused, "records_half_sent": c.half_sent, "records_half_sent_bytes": c.half_sent_bytes, "records_waiting": c.waiting})
        for i, axis in enumerate(self.records.axes):
            out.update({f"units_{axis}": c.rows[i], f"units_inserted_{axis}": c.rows_in[i], f"units_sampled_{axis}": c.rows_out[i]})
        return out

    # ---- checkpoints: see checkpoint/checkpoint.py -------------------------------------------------------------------------------

    def below(self, rows):
        """Return the records of the items in `rows`, and those that wait for room. Call it while the table is paused.

        Returns:
            `lengths`, uint32 of shape (n, 4), and `bytes`, one after another, of the items; and `waiting`, the header and the bytes of each record that
            was acknowledged and has found no room yet.
        """
        cdef const uint32_t[::1] of = np.ascontiguousarray(rows, np.uint32)
        cdef size_t n = len(rows), i
        cdef uint64_t total = 0
        cdef RecordRow row
        cdef uint32_t[:, ::1] into
        cdef uint8_t[::1] to
        cdef vector[char] held
        self.opened()
        with nogil:
            held = self.stored.waiting_records()
        waiting = np.empty(held.size(), np.uint8)
        if waiting.size:
            to = waiting
            memcpy(&to[0], held.data(), held.size())
        lengths = np.empty((n, 4), np.uint32)
        into = lengths
        for i in range(n):
            row = self.stored.row_of(of[i])
            memcpy(&into[i, 0], row.lengths, sizeof(row.lengths))
            total += row.bytes
        data = np.empty(total, np.uint8)
        if total == 0:
            return {"lengths": lengths, "bytes": data, "waiting": waiting}
        to = data
        total = 0
        with nogil:
            for i in range(n):
                if self.stored.row_of(of[i]).bytes:
                    self.stored.copy_record(of[i], <char*>&to[total])
                total += self.stored.row_of(of[i]).bytes
        return {"lengths": lengths, "bytes": data, "waiting": waiting}

    def check_records(self, lengths, data, waiting) -> None:
        """Raise ValueError unless records with these lengths have so many bytes and find room in this table, and `waiting` is as `below` returned it."""
        self._headers(waiting)
        if lengths.dtype != np.uint32 or lengths.ndim != 2 or lengths.shape[1] != 4 or data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError("lengths and bytes of records must be uint32[n, 4] and uint8[n]")
        sizes = self._sizes(lengths)
        if sizes.sum() != len(data):
            raise ValueError(f"records of {sizes.sum()} bytes have {len(data)}")
        needed = int((-(-sizes // PAGE_BYTES)).sum()) * PAGE_BYTES
        if needed > self.stored.page_bytes():
            raise CheckpointError(f"table {self.name!r}: the checkpoint's items need {needed:,} bytes, and max_bytes is {self.stored.page_bytes():,}; raise it")

    def _headers(self, waiting):
        """Return where the headers of the `waiting` records begin, and the sizes of the bytes behind them. Raises ValueError."""
        if waiting.dtype != np.uint8 or waiting.ndim != 1:
            raise ValueError("waiting records must be uint8[n]")
        found, at = [], 0
        while at < len(waiting):
            if len(waiting) - at < sizeof(RecordHeader):
                raise ValueError("a waiting record is cut off")
            size = int(self._sizes(waiting[at:at + 16].copy().view(np.uint32)[None])[0])
            found.append((at, size))
            at += sizeof(RecordHeader) + size
        if at != len(waiting):
            raise ValueError(f"waiting records of {at} bytes have {len(waiting)}")
        return found

    def _sizes(self, lengths):
        """Return the bytes of records with these lengths, uint32 of shape (n, 4). Raises ValueError if one is too long for this table."""
        if (lengths > np.array([*self.records.most, 0, 0, 0, 0][:4], np.uint32)).any():
            raise ValueError(f"a record is longer than {self.records.most}")
        rows = np.array([*self.records.row_bytes, 0, 0, 0, 0][:4], np.int64)
        return self.records.fixed_bytes + lengths.astype(np.int64) @ rows

    def restore_records(self, rows, loaned, lengths, data, waiting) -> None:
        """Put the records that `below` returned into a table whose items, in the same `rows`, are restored already. `check_records` was called."""
        cdef const uint32_t[::1] of = np.ascontiguousarray(rows, np.uint32)
        cdef const uint32_t[:, ::1] each = np.ascontiguousarray(lengths)
        cdef const int64_t[::1] sizes = self._sizes(lengths)
        cdef const uint8_t[::1] bytes_ = data
        cdef const uint8_t[::1] out = np.isin(rows, loaned).view(np.uint8)
        cdef const uint8_t[::1] held = waiting
        cdef RecordHeader header
        cdef int64_t at = 0
        cdef size_t i
        self.opened()
        for i in range(len(rows)):
            self.stored.place_record(of[i], &each[i, 0], <const char*>&bytes_[at] if sizes[i] else NULL, out[i] == 0)
            at += sizes[i]
        for at, _ in self._headers(waiting):
            memcpy(&header, &held[at], sizeof(header))
            self.stored.add_waiting(header, <const char*>&held[0] + at + sizeof(header))
        self.settle()

    @property
    def rows_spec(self):
        return ROW

    def __repr__(self):
        return f"<RecordTable {self.name!r} {len(self)}/{self.capacity} sampler={type(self.sampler).__name__}>"


def pool_bytes(records, items, most_bytes) -> int:
    """Return the bytes of the pages of a table for `items` records; `most_bytes` is its max_bytes, or None."""
    most = max(1, records.max_record_bytes - 32)
    longest = -(-most // PAGE_BYTES) * PAGE_BYTES
    if most_bytes is not None:  # as many of the longest as their bytes say, although each has an incomplete page
        return max(PAGE_BYTES, most_bytes // PAGE_BYTES * PAGE_BYTES, most_bytes // most * longest)
    return items * longest if items == 1 else min(items * longest, max(longest, unpromised_memory() // 4))
