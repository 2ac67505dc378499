# cython: language_level=3, boundscheck=False, wraparound=False
"""A replay table's sampler that is written in Python. A thread that draws first tells it of all changes, and then asks it what to draw."""
from contextlib import suppress

import numpy as np

cimport cython
from libc.math cimport NAN
from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_replay.tables.table cimport Batch, Change, Table, kClosed, kDrawn, kWait

from echo_core.base.errors import DuplicateKeyError, EchoError, PluginError, UnknownKeyError

cdef enum:
    POLITE = 8  # gathers of one batch that may fail before writers have to wait


cdef object drawn_by(object sampler, Py_ssize_t n, object rng):
    """The keys and probabilities that the sampler draws. Raises PluginError, which says what `sample` has to return, if it returned something else."""
    returned = sampler.sample(n, rng)
    if isinstance(returned, tuple) and len(returned) == 2:
        shown = [f"{part.dtype} of shape {part.shape}" if isinstance(part, np.ndarray) else type(part).__name__ for part in returned]
        if shown == [f"uint64 of shape ({n},)", f"float64 of shape ({n},)"]:
            return returned
        got = f"({', '.join(shown)})"
    else:
        got = f"{type(returned).__name__} of {len(returned)}" if isinstance(returned, (list, tuple)) else type(returned).__name__
    raise PluginError(
        f"{type(sampler).__name__}.sample({n}, rng) returned {got}; it has to return two numpy arrays of shape ({n},): "
        f"return np.array(keys, np.uint64), np.array(probabilities, np.float64)")


cdef PythonSampler python_sampler_of(Table* table, object sampler, object rng, object lock):
    """`lock` is held during every call of the sampler."""
    cdef PythonSampler made = PythonSampler.__new__(PythonSampler)
    made.table, made.sampler, made.rng, made.lock = table, sampler, rng, lock
    return made


@cython.final
cdef class PythonSampler:
    """The sampler of one table. The table outlives this object."""

    cdef int draw(self, Batch* batch) except -1:
        """Like Table::sample."""
        with self.lock:
            return self.draw_locked(batch)

    cdef uint64_t update(self, const uint64_t[::1] keys, object values) except? 0:
        """Gives new priorities to the items that are there; returns how many were gone."""
        cdef size_t n = keys.shape[0], kept
        cdef uint32_t[::1] rows, index
        with self.lock:
            self.catch_up()
            found, where = np.empty(n, np.uint32), np.empty(n, np.uint32)
            rows, index = found, where
            kept = self.table.known_rows(&keys[0], n, &rows[0], &index[0])
            if kept:
                self.sampler.update(found[:kept].astype(np.uint64), values[where[:kept]])
        return n - kept

    cdef int catch_up(self) except -1:
        """Tells the sampler of all changes; the caller holds the lock. If a call raises or is interrupted, its changes are repeated next time."""
        cdef vector[Change] fresh
        cdef size_t i, start, count
        self.table.take_log(&fresh)
        self.log.insert(self.log.end(), fresh.begin(), fresh.end())
        count = self.log.size()
        i = self.done
        while i < count:
            start = i
            while i < count and self.log[i].inserted == self.log[start].inserted and \
                    (self.log[i].priority == self.log[i].priority) == (self.log[start].priority == self.log[start].priority):
                i += 1
            interrupted, self.interrupted = self.interrupted, True
            if interrupted:
                self.report_again(start, i)
            else:
                self.report(start, i)
            self.interrupted = False
            self.done = i
        self.log.clear()
        self.done = 0
        return 0

    cdef int report(self, size_t start, size_t end) except -1:
        """Tells the sampler of changes of one kind."""
        cdef uint64_t[::1] rows
        cdef size_t i
        keys = np.empty(end - start, np.uint64)
        rows = keys
        for i in range(end - start):
            rows[i] = self.log[start + i].row
        if not self.log[start].inserted:
            self.sampler.delete(keys)
        elif self.log[start].priority == self.log[start].priority:
            self.sampler.insert(keys, np.array([self.log[j].priority for j in range(start, end)]))
        else:
            self.sampler.insert(keys)
        return 0

    cdef int report_again(self, size_t start, size_t end) except -1:
        """The same if the sampler may know some of the changes already: it is told of them one by one."""
        cdef size_t i
        for i in range(start, end):
            with suppress(DuplicateKeyError, UnknownKeyError):
                self.report(i, i + 1)
        return 0

    cdef int draw_locked(self, Batch* batch) except -1:
        cdef uint32_t i, torn
        cdef int turn = 0
        cdef int answer = kClosed
        cdef bint redraws_all = self.table.redraws_all()
        cdef bint held = False, counted = False, delivered = False
        if not self.table.can_sample(<uint32_t>batch.n):
            return kClosed if self.table.closed() else kWait
        try:
            self.catch_up()
            if not self.ask(batch, 0, batch.n):
                return kWait
            answer = self.table.admit(batch, 0, <uint32_t>batch.n, False)
            counted = answer == kDrawn
            while answer == kDrawn:
                with nogil:
                    torn = self.table.gather(batch)
                if torn == 0:
                    delivered = True
                    return kDrawn
                turn += 1
                if turn == POLITE and not held:
                    held = True
                    self.table.hold(True)
                self.catch_up()
                if not redraws_all:
                    for i in range(<uint32_t>batch.n):
                        if self.table.overwritten(batch, i):
                            if not (self.ask(batch, i, 1) if self.sampler.replacement else self.ask_another(batch, i)):
                                return kWait
                            answer = self.table.admit(batch, i, 1, True)
                else:
                    if not self.ask(batch, 0, batch.n):
                        return kWait
                    answer = self.table.admit(batch, 0, <uint32_t>batch.n, True)
            return answer
        finally:
            if counted and not delivered:  # the sampler raised, or has too few keys by now, or the table was closed
                self.table.uncount(batch)
            if held:
                self.table.hold(False)
            self.table.finish(batch, delivered)

    cdef bint ask(self, Batch* batch, uint32_t first, uint64_t n) except -1:
        cdef uint64_t[::1] rows
        cdef double[::1] probabilities
        cdef Py_ssize_t i
        if len(self.sampler) < (1 if self.sampler.replacement else n):
            return False
        if n == batch.n:
            mass = self.sampler.mass()
            batch.mass = NAN if mass is None else mass
        drawn, chances = drawn_by(self.sampler, n, self.rng)
        rows, probabilities = drawn, chances
        for i in range(<Py_ssize_t>n):
            self.check(rows[i])
            batch.rows[first + i] = <uint32_t>rows[i]
            batch.probabilities[first + i] = probabilities[i]
        return True

    cdef bint ask_another(self, Batch* batch, uint32_t at) except -1:
        """Draws another item for one place of a batch whose sampler gives every item only once: an item that the batch does not have yet."""
        cdef uint32_t i
        n = min(batch.n, len(self.sampler))
        if n == 0:
            return False
        # The torn places before this one have been drawn again already, and those after it are drawn again later.
        had = {batch.rows[i] for i in range(<uint32_t>batch.n) if i < at or (i > at and not self.table.overwritten(batch, i))}
        for key, chance in zip(*drawn_by(self.sampler, n, self.rng)):
            if int(key) not in had:
                self.check(key)
                batch.rows[at], batch.probabilities[at] = key, chance
                return True
        return False

    cdef int check(self, uint64_t key) except -1:
        if key >= self.table.capacity() or not self.table.sampler_knows(<uint32_t>key):
            raise EchoError(
                f"sampler {type(self.sampler).__name__} drew key {key}, which it does not hold: the key was never inserted, or was deleted")
        return 0
