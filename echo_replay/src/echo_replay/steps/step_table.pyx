# cython: language_level=3, boundscheck=False, wraparound=False
"""A table of items over steps as Python sees it: a replay table of spans, and the steps that they refer to (steps/steps.hpp)."""
import numpy as np

from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

from echo_core.store.door.door cimport Door, open_door
from echo_core.store.local_insert cimport copy_in
from echo_core.spec.pytree.flattener cimport Flattener
from echo_core.spec.sample_labels cimport Labels
from echo_replay.tables.table cimport Rows
from echo_replay.tables.replay_table cimport ReplayTable
from echo_core.store.door.echo_run cimport echo_run
from echo_replay.tables.replay_info cimport ReplayLease
from echo_core.store.sample cimport Sample

from echo_core.base.errors import EchoError, UnknownTableError
from echo_replay.steps.items import NStep, Slices
from echo_core.spec.spec import Spec
from echo_replay.steps.steps import Steps as StepExample, StepStreams, wire_spec
from echo_core.wire.identity import client_number, new_client_id
from echo_core.base.memory.promised import unpromised_memory

SPAN = Spec.from_example({"span": np.zeros(2, np.uint64)})  # 16 bytes: struct Span of steps/item_cutter.hpp


cdef class StepTable(ReplayTable):
    """Steps that every worker sends once, and items that are spans of them. `Server` makes it; see `echo_replay.config.table.Table`.

    Everything that `ReplayTable` says about items holds here too: keys, priorities, samplers, limiters, deletion. `sample` returns a
    `StepSample`.

    Attributes:
        layout: the `Layout` of its batches.
        step: the `Spec` of a step; `spec` is that of a step with its mark, as workers send it.
        restored_clients: the numbers of the clients whose open episodes came with a checkpoint.
    """

    def __cinit__(self):
        self.steps = NULL
        self.restored_clients = set()

    def __init__(self, described, batch_size, sampler, remover, beta, descriptor):
        """`described` is a `Table` of config/table.py that has a `layout`. `descriptor` is of the file that holds the steps, or -1."""
        layout, initial = described.layout, described.initial
        cdef uint64_t steps = described.steps
        cdef vector[uint64_t] sizes
        cdef Cut cut
        cdef View view
        wire = wire_spec(layout.spec)
        for leaf in wire.leaves:
            sizes.push_back(leaf.nbytes)
        cdef uint64_t total = Rows.plan(sizes, steps, NULL)
        free = unpromised_memory()
        if descriptor < 0 and total > free:
            raise MemoryError(
                f"table {described.name!r}: {steps:,} steps of {wire.sample_bytes:,} bytes need {total:,} bytes; {free:,} are available: lower "
                f"capacity, or give the table a storage path")
        for leaf in layout.leaves:
            self.more.push_back(leaf.nbytes)
        view.spans = 0
        if isinstance(layout.items, Slices):
            view.spans = 1 + len(layout.leaves)
            self.more.push_back(16)
        ReplayTable.__init__(self, described, batch_size, sampler, remover, beta, -1, SPAN)
        cut.lookback, cut.forward, cut.period = layout.lookback, layout.forward, layout.period
        cut.transitions, cut.pad = isinstance(layout.items, NStep), getattr(layout.items, "pad", False)
        cut.slices, cut.by_steps = isinstance(layout.items, Slices), getattr(layout.items, "by", None) == "steps"
        view.burn_in = getattr(layout.items, "burn_in", 0)
        for stack in layout.stacks:
            view.stack.push_back(stack)
        view.repeat, view.reward, view.wide, view.gamma = layout.repeat, layout.reward, layout.wide, layout.gamma
        self.steps = new Steps(sizes, steps, cut, view, self.table, descriptor, UINT64_MAX if initial is None else <uint64_t>initial)
        self.door.release()
        self.door = NULL
        self.door = self.new_door(False)
        self.layout, self.step, self.spec = layout, layout.spec, wire
        self.flattener, self.leaves, self.sample_bytes = wire.flattener, len(wire.leaves), wire.sample_bytes
        self.batch_flattener, self.figures_flattener = layout.batch.flattener, layout.figures.flattener
        self.next_flattener = None if layout.next is None else layout.next.flattener

    def __dealloc__(self):
        if self.steps != NULL:
            self.steps.release()

    # ---- writing ----------------------------------------------------------------------------------------------------------

    def writer(self) -> StepStreams:
        """Return a writer for this process's own environments. It has `send`, `send_batch` and `end_episode` like a `Client`."""
        return StepStreams(StepExample(self.step), self.submit, self.submit_batch, new_client_id())

    def end_streams(self, client_id) -> int:
        """Call this when a worker is gone: its open episodes end as truncated. Return how many they were."""
        self.opened()
        cdef uint64_t client = client_number(client_id)
        cdef size_t ended
        with nogil:
            ended = self.steps.end_streams(client)
        return ended

    def end_restored(self, connected) -> int:
        """End the open episodes of a checkpoint as truncated, except those of the clients with the ids `connected`. Return how many they were."""
        here = set()
        for client_id in connected:
            try:
                here.add(client_number(client_id))
            except ValueError:
                continue  # it is no client of a table of steps
        gone, self.restored_clients = self.restored_clients - here, set()
        return sum(self.end_streams(f"{client:012x}") for client in gone)

    cdef object put(self, object sample, object timeout, object priority, object policy_version):
        if priority is not None or policy_version is not None:
            raise ValueError(f"table {self.name!r} takes steps, which have no priority; its items get theirs by update_priorities()")
        ReplayTable.put(self, sample, timeout, None, None)

    def submit_batch(self, samples, timeout=30.0, priorities=None, policy_version=None):
        """Insert N steps with their marks, as `writer().send_batch` makes them; return N."""
        return self.put_batch(samples, timeout, priorities, policy_version)

    cdef object put_batch(self, object samples, object timeout, object priorities, object policy_version):
        if priorities is not None or policy_version is not None:
            raise ValueError(f"table {self.name!r} takes steps, which have no priorities; its items get theirs by update_priorities()")
        return len(ReplayTable.put_batch(self, samples, timeout, None, None))

    @property
    def takes_labels(self) -> bool:
        return False

    def peer_gone(self, connection, client_id, workers) -> None:
        # Ids can be given by hand, so others may have it: clients that send nothing, and connections to another table.
        if client_id is not None and all(client_number(other) != client_number(client_id) for other in workers):
            self.end_streams(client_id)
        ReplayTable.peer_gone(self, connection, client_id, workers)

    def awaits_workers(self) -> bool:
        return bool(self.restored_clients)

    cdef size_t copy_now(self, const void** data, size_t done, size_t count, const Labels* labels, const echo_run* claimed):
        return copy_in(self.steps, data, done, count, labels[0], claimed)

    cdef int claim_now(self, uint32_t wanted, echo_run* run) noexcept nogil:
        return self.steps.claim(wanted, run)

    cdef int wait_space(self, int64_t timeout_ns) noexcept nogil:
        return self.steps.wait_space(timeout_ns)

    cdef Door* new_door(self, bint labelled) except NULL:
        self.opened()
        if labelled:
            raise UnknownTableError(f"table {self.name!r} takes steps, which come without priorities and policy versions")
        return open_door(self.steps)

    # ---- reading ----------------------------------------------------------------------------------------------------------

    cpdef object draw(self, object n=None, object timeout=None, object beta=None, uint64_t borrower=0):
        cdef Sample sample = ReplayTable.draw(self, n, timeout, beta, borrower)
        if sample is None:
            return None
        trees = self.trees(<ReplayLease>sample.lease)
        return self.layout.sample(trees, sample.info, sample.keys, sample.probabilities, sample.weights)

    cdef list trees(self, ReplayLease lease):
        """Returns the parts of a batch over its memory, without the spans, in the order of the layout."""
        cdef char** leaf = lease.batch.leaf.data() + 1
        cdef list trees = [self.batch_flattener.arrays(leaf, lease.batch.n, lease)]
        leaf += self.batch_flattener.count
        if self.next_flattener is not None:
            trees.append(self.next_flattener.arrays(leaf, lease.batch.n, lease))
            leaf += self.next_flattener.count
        trees.append(self.figures_flattener.arrays(leaf, lease.batch.n, lease))
        return trees

    def peek(self, keys):
        """Return items by key: `(StepSample, here)`; see `ReplayTable.peek`. This does not count as sampling. The sample's `info` is None."""
        tree, here = ReplayTable.peek(self, keys)
        lease = tree["echo"].base
        keys = np.array(keys, np.uint64)
        ones = np.ones(len(keys))
        return self.layout.sample(self.trees(<ReplayLease?>lease), None, keys, ones, ones.astype(np.float32)), here

    def update_items(self, keys, leaves):
        raise EchoError(
            f"table {self.name!r}: items over steps share their steps, so that no item can be changed by its key; keep the values that you "
            f"refresh in a separate table, under the same keys")

    # ---- checkpoints: see step_checkpoint.py ---------------------------------------------------------------------------------

    def below(self, rows):
        """Return everything that is known of the steps, except their bytes, as arrays."""
        cdef StepsImage image
        self.opened()
        with nogil:
            self.steps.save(&image)
        figures = np.array([image.head, image.tail, image.steps, image.episodes, image.truncated], np.uint64)
        return {
            "figures": figures, "states": _bytes_of(image.states.data(), image.states.size()),
            "links": _bytes_of(image.links.data(), image.links.size() * 16).view(np.uint64),
            "runs": _bytes_of(image.runs.data(), image.runs.size() * 8).view(np.uint64),
            "streams": _bytes_of(image.streams.data(), image.streams.size() * 8).view(np.uint64),
            "backlog": _bytes_of(image.backlog.data(), image.backlog.size() * 24).view(np.uint64),
        }

    @property
    def rows_spec(self):
        return SPAN

    def flush(self) -> None:
        """Turn the steps that waited for the end of a pause into items."""
        self.opened()
        with nogil:
            self.steps.flush()

    def step_rows(self, leaf, number, n):
        """Return the bytes of n steps of leaf `leaf` of `step`: `(array of shape (n, *shape), number below which steps may be torn)`."""
        spec = self.step.leaves[leaf]
        out = np.empty((n, *spec.shape), spec.dtype)
        cdef uint8_t[::1] to = out.reshape(-1).view(np.uint8) if out.nbytes else np.empty(1, np.uint8)
        cdef uint64_t first = number, count = n, head
        cdef uint32_t index = leaf + 1
        with nogil:
            self.steps.copy_steps(index, first, count, <char*>&to[0])
            head = self.steps.head()
        return out, head

    def restore_steps(self, snapshot, stored, spans, leaves, first) -> None:
        """Put the contents that `below` returned into a table whose items are restored already.

        Args:
            snapshot: the arrays of `below`. stored: rows of the items. spans: spans of the items in these rows, shape (n, 2).
            leaves: for each leaf of `step` the bytes of the steps from number `first` on.
        """
        cdef StepsImage image
        cdef uint64_t begin = first
        cdef const uint8_t[::1] data
        cdef uint32_t i
        figures = snapshot["figures"]
        image.head, image.tail, image.steps, image.episodes, image.truncated = [int(figure) for figure in figures]
        count = int(image.tail - image.head)
        if len(snapshot["states"]) != count or len(snapshot["links"]) != 2 * count or count > self.steps.capacity():
            raise ValueError("the steps' columns do not belong together")
        image.states.resize(count)
        image.links.resize(count)
        image.runs.resize(len(snapshot["runs"]))
        image.streams.resize(len(snapshot["streams"]))
        image.backlog.resize(len(snapshot["backlog"]) // 3)
        _bytes_to(snapshot["states"], image.states.data())
        _bytes_to(snapshot["links"], image.links.data())
        _bytes_to(snapshot["runs"], image.runs.data())
        _bytes_to(snapshot["streams"], image.streams.data())
        _bytes_to(snapshot["backlog"], image.backlog.data())
        # An item is a span that begins with a step. For slices it is an episode, and Steps.restore finds out what is left of it.
        if not isinstance(self.layout.items, Slices):
            keys, rows, _ = self._items(False)
            self.delete(keys[np.isin(rows, stored[spans[:, 0] < begin])])
        for i in range(len(leaves)):
            if leaves[i].nbytes:
                data = leaves[i].reshape(-1).view(np.uint8)
                self.steps.place_steps(i + 1, begin, len(leaves[i]), <const char*>&data[0])
        self.steps.restore(image, begin)
        streams, at = snapshot["streams"].tolist(), 0
        while at < len(streams):
            self.restored_clients.add(streams[at] >> 16)
            at += 6 + streams[at + 5]

    # ---- figures ----------------------------------------------------------------------------------------------------------

    @property
    def steps_held(self) -> int:
        """Number of steps that are in the table, including those that are being written."""
        self.opened()
        return self.steps.counters().held

    @property
    def overhead_bytes(self) -> int:
        """Memory in bytes beside that of the steps themselves and the sampler: marks, spans, and the columns of both."""
        self.opened()
        return ReplayTable.overhead_bytes.__get__(self) + 17 * self.steps.capacity() + 16 * self.capacity

    def bytes_to_come(self) -> int:
        cdef uint64_t rows = 0 if self.steps == NULL else self.steps.capacity() - self.steps.rows_ready()
        return ReplayTable.bytes_to_come(self) + rows * self.sample_bytes

    cdef uint64_t rows_ready(self):
        return self.steps.rows_ready()

    def stats(self) -> dict:
        """Return the figures of `ReplayTable.stats` for items, and `steps`, `steps_held`, `steps_capacity`, `episodes` (ended so far),
        `truncated` (how many of those) and `streams` (open)."""
        cdef StepCounters c
        out = ReplayTable.stats(self)
        c = self.steps.counters()
        out.update({"steps": c.steps, "steps_held": c.held, "steps_capacity": self.steps.capacity(), "episodes": c.episodes,
                    "truncated": c.truncated, "streams": c.streams})
        return out

    def __repr__(self):
        return f"<StepTable {self.name!r} {len(self)} items over {self.steps_held} steps, {self.layout.items}>"


cdef object _bytes_of(const void* data, size_t size):
    cdef uint8_t[::1] to
    out = np.empty(size, np.uint8)
    if size:
        to = out
        memcpy(&to[0], data, size)
    return out


cdef int _bytes_to(object array, void* to) except -1:
    cdef const uint8_t[::1] data
    if array.nbytes:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memcpy(to, &data[0], data.shape[0])
    return 0
