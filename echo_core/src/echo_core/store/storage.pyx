# cython: language_level=3
"""The contract of a storage, which is where a server keeps samples: a stream is one, and each replay table is one.

A server has a stream, or replay tables, or a storage that takes no samples (stream/no_samples.pyx). It treats them alike, through these
methods. A storage is an extension class, so that `server.submit` and `server.sample` reach it by a call of C. Most defaults do nothing, for
storages that have no use for a method. put, put_batch, draw and native have no default and raise NotImplementedError, because an extension
class cannot be abstract.
"""
import os

from libc.stdint cimport uint64_t

from echo_core.store.storage_operations import StorageOperations

cdef int forks = 0


def _forked():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)


cdef class Storage:
    """Base of every storage.

    Attributes:
        name: the name by which clients ask for it; "" for a stream.
        spec: the `Spec` of the samples that it takes.
        why_no_samples, who_waits: the server sets these, and messages about a wait contain what they return.
    """

    def __cinit__(self):
        self.name = ""
        self.forks = forks

    cdef bint here(self) noexcept nogil:
        """Whether it was made in this process. A forked child has only a copy of it, which nobody else would see."""
        return self.forks == forks

    # ---- samples -----------------------------------------------------------------------------------------------------------

    cdef object put(self, object sample, object timeout, object priority, object policy_version):
        """Inserts one sample and returns its key, or None if it gives no keys. See `Store.submit`."""
        raise NotImplementedError(f"{type(self).__name__} has no put()")

    cdef object put_batch(self, object samples, object timeout, object priorities, object policy_version):
        """Inserts N samples and returns their keys, or N if it gives no keys. See `Store.submit_batch`."""
        raise NotImplementedError(f"{type(self).__name__} has no put_batch()")

    cpdef object draw(self, object n=None, object timeout=None, object beta=None, uint64_t borrower=0):
        """Return the next batch, or None once the storage is closed. See `Store.sample`.

        borrower: the client that has to acknowledge the items; 0 is this process.
        """
        raise NotImplementedError(f"{type(self).__name__} has no draw()")

    def draw_units(self, units, timeout=None, beta=None, borrower=0):
        """Return the next batch of as many items as fit into a budget. See `RecordTable.sample`."""
        raise ValueError(f"units= is for tables of samples of varying length; {'table ' + repr(self.name) if self.name else 'this stream'} takes a number of items, n")

    def native(self, labelled=False):
        """Return a PyCapsule "echo_core.store" for the native interface (include/echo_capi.h). It keeps the memory alive.

        labelled: the interface has one leaf more, which holds the samples' labels (wire/labels.py).
        """
        raise NotImplementedError(f"{type(self).__name__} has no native()")

    def shared_memory(self):
        """Return its memory as `Sink.memory` describes it; None if other processes cannot map it."""
        return None

    @property
    def takes_labels(self) -> bool:
        """Whether samples of clients may come with labels, which are their priority and their policy version."""
        return False

    @property
    def batch_size(self) -> int:
        """How many samples a batch has if nobody asks for another number."""
        return 0

    @property
    def num_buffers(self) -> int:
        """How many batches of memory it has; 0 if it has no such buffers."""
        return 0

    @property
    def capacity(self) -> int:
        """How many samples it holds at most."""
        return 0

    # ---- its life ----------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it takes no more samples."""
        return False

    def close(self) -> None:
        """Take no more samples, and wake everybody who waits. Idempotent."""

    def lock_pages(self, place) -> None:
        """Page-lock the memory that learners upload, in a `cuda.Place`. Raises CudaError."""

    # ---- what the server tells it ------------------------------------------------------------------------------------------

    def count_workers(self, workers) -> None:
        """So many workers are connected."""

    def peer_here(self, peer) -> None:
        """A client's connection has begun, which sends its samples here. `peer` is its `Peer`, with an account for memory."""

    def peer_gone(self, connection, client_id, workers) -> None:
        """A client's connection has ended.

        Args:
            connection: the number that `draw` was given as `borrower`.
            client_id: the id of the client; None if it sends no samples.
            workers: the ids of the workers that are still connected.
        """

    def published(self, version) -> None:
        """The server has published weights with this number."""

    def use_memory(self, memory) -> None:
        """The server's `ClientMemory`: what its clients may make it hold. It is given before the first worker connects."""

    def awaits_workers(self) -> bool:
        """Whether it was restored with streams of workers that may come back."""
        return False

    def end_restored(self, connected) -> int:
        """End the restored streams of all workers but those with the ids `connected`. Return how many were ended."""
        return 0

    def operations(self):
        """Return the `StorageOperations` with which a server answers the requests of clients for it. A server calls this once."""
        return StorageOperations()

    # ---- what the server asks it -------------------------------------------------------------------------------------------

    def why_no_table(self) -> str:
        """Return why it has no keys and no priorities, in words; "" if it has some, which makes it a replay table."""
        return ""

    def why_full(self) -> str:
        """Return why no sample can be inserted now; "" if one can."""
        return ""

    def who_blocks_learner(self, n=None) -> str:
        """Return why no batch of n is there, in words."""
        return ""

    def store_counters(self) -> dict:
        """Return the counters of `stats()` whose names begin with `store/`."""
        return {}

    def histograms(self) -> dict:
        """Return a `HistSnapshot` for each latency, by name."""
        return {}

    def reset_histograms(self) -> None:
        """Start the latency histograms again from zero."""

    def look(self, most):
        """Copy up to `most` of the newest samples for an observer, and take nothing: `(n, [bytes of each leaf], keys)`, oldest sample first.

        keys: a list of the samples' keys; None if it gives no keys. A table of samples of varying length puts their lengths before the leaves,
            int32 of shape (n, axes).
        """
        return 0, [], None

    def wish(self, wish) -> bool:
        """Have the next batch that a learner takes fulfil an observer's wish (server/tap.py). Return whether that is possible."""
        return False
