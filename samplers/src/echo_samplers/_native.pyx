# cython: language_level=3, boundscheck=False, wraparound=False
"""The Python interface of the native samplers. It checks every argument, then calls the functions that a table calls through the native
interface."""
cimport cython
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.math cimport isfinite, isnan
from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as boolean
from libcpp.string cimport string
from libcpp.vector cimport vector

import numpy as np

from echo_core.base.errors import DuplicateKeyError, UnknownKeyError
from echo_core.store.sampler import check_keys, check_priorities

cdef extern from "numpy/random/bitgen.h" nogil:
    ctypedef struct bitgen_t:
        pass

cdef extern from "echo_sampler.h" nogil:
    ctypedef struct echo_sampler:
        pass
    const char* ECHO_SAMPLER_NAME

cdef extern from "row_sampler.hpp" namespace "echo_samplers" nogil:
    uint64_t kMaxRows
    cdef cppclass State:
        vector[uint32_t] keys
        vector[double] priorities
        vector[double] weights
        vector[double] numbers
        vector[uint32_t] hot
        vector[double] entered
    cdef cppclass PageArray[T]:
        PageArray(size_t) except +
        T& operator[](size_t)
    cdef cppclass RowSampler:
        void insert(const uint32_t*, const double*, size_t) except +
        void remove(const uint32_t*, size_t) except +
        void update(const uint32_t*, const double*, size_t) except +
        size_t sample(bitgen_t*, size_t, uint32_t*, double*) except +
        size_t victims(size_t, uint32_t*) except +
        size_t count()
        bint held(uint32_t)
        double priority(uint32_t)
        double mass()
        void published(uint64_t) except +
        string members() except +
        void save(State&) except +
        string check(const State&) except +
        void load(const State&) except +
        echo_sampler door(bint)

cdef extern from "uniform.hpp" namespace "echo_samplers" nogil:
    cdef cppclass Uniform(RowSampler):
        Uniform(uint64_t, boolean) except +

cdef extern from "ordered.hpp" namespace "echo_samplers" nogil:
    cdef cppclass Ordered(RowSampler):
        Ordered(uint64_t, boolean) except +

cdef extern from "heap.hpp" namespace "echo_samplers" nogil:
    cdef cppclass Heap(RowSampler):
        Heap(uint64_t, boolean) except +

cdef extern from "prioritized.hpp" namespace "echo_samplers" nogil:
    cdef cppclass Prioritized(RowSampler):
        Prioritized(uint64_t, double, double, boolean) except +

cdef extern from "hot_cold.hpp" namespace "echo_samplers" nogil:
    ctypedef struct HotColdOptions:
        uint64_t capacity
        uint64_t hot_capacity
        double hot_ratio
        uint64_t age_threshold
        int weighting
        double alpha
        double eps
        double temperature
        bint by_versions
        double promote_above
        double demote_below
    cdef cppclass HotCold(RowSampler):
        HotCold(const HotColdOptions&) except +
        bint hot(uint32_t)
        double temperature()
        void set_temperature(double)


@cython.final
cdef class NativeSampler:
    """A native sampler over the rows 0..capacity-1, made by the functions below. Like every sampler, it is not thread-safe."""

    cdef RowSampler* core
    cdef HotCold* strata         # the same object as core if it is a HotCold, otherwise null
    cdef PageArray[uint64_t]* marks  # one bit per row, all clear between calls; it finds keys that occur twice
    cdef echo_sampler door
    cdef bint evicts
    cdef readonly uint64_t capacity
    cdef vector[uint32_t] rows   # the keys of a call
    cdef vector[double] values   # the probabilities of a call

    def __dealloc__(self):
        del self.core
        del self.marks

    def __len__(self):
        return self.core.count()

    def insert(self, keys, priorities=None):
        cdef size_t n = self.take(keys)
        cdef size_t i, bad = n
        cdef const double[::1] given
        cdef const double* values = NULL
        if priorities is not None:
            given = check_priorities(priorities, check_keys(keys))
            values = &given[0] if n else NULL
        with nogil:
            for i in range(n):
                if self.core.held(self.rows[i]) or not self.mark(self.rows[i]):
                    bad = i
                    break
            self.unmark(bad)
        if bad < n:
            where = "is held already" if self.core.held(self.rows[bad]) else "occurs twice"
            raise DuplicateKeyError(f"key {self.rows[bad]} {where}; every sample needs a key of its own")
        if n:
            with nogil:
                self.core.insert(self.rows.data(), values, n)

    def delete(self, keys):
        cdef size_t n = self.take(keys, known=True)
        cdef size_t i, bad = n
        with nogil:
            for i in range(n):
                if not self.mark(self.rows[i]):
                    bad = i
                    break
            self.unmark(bad)
        if bad < n:
            raise UnknownKeyError(f"key {self.rows[bad]} occurs twice; it can be deleted only once")
        if n:
            with nogil:
                self.core.remove(self.rows.data(), n)

    def update(self, keys, priorities):
        cdef size_t n = self.take(keys, known=True)
        cdef const double[::1] given = check_priorities(priorities, check_keys(keys))
        if n:
            with nogil:
                self.core.update(self.rows.data(), &given[0], n)

    def sample(self, n, rng):
        cdef size_t wanted, got
        if n < 1:
            raise ValueError(f"{n} keys were requested, but at least 1 is needed; {self.core.count()} are held")
        wanted = n
        bits = rng.bit_generator
        cdef bitgen_t* random = <bitgen_t*>PyCapsule_GetPointer(bits.capsule, "BitGenerator")
        # Without replacement, n is at most the number of held keys. With replacement, the caller asks for that much memory anyway.
        cdef object keys = np.empty(wanted, np.uint64), probabilities = np.empty(wanted, np.float64)
        cdef uint64_t[::1] out = keys
        cdef double[::1] said = probabilities
        cdef size_t i
        with bits.lock, nogil:
            self.rows.resize(wanted)
            got = self.core.sample(random, wanted, self.rows.data(), &said[0])
            for i in range(got):
                out[i] = self.rows[i]
        if got == 0:
            why = "" if wanted > self.core.count() else "; none of them has a priority above 0: give one, or eps"
            raise ValueError(f"{n} keys were requested, but {self.core.count()} are held{why}")
        return keys, probabilities

    def mass(self):
        cdef double sum = self.core.mass()
        return None if isnan(sum) else sum

    def published(self, uint64_t version):
        with nogil:
            self.core.published(version)

    @property
    def temperature(self):
        """The temperature of `hot_cold`, which may be set at any time, from any thread. The next call of the sampler applies it."""
        return self.strata.temperature() if self.strata != NULL else None

    @temperature.setter
    def temperature(self, double value):
        if self.strata != NULL:
            self.strata.set_temperature(value)

    def victims(self, n):
        if not 1 <= n <= self.core.count():
            raise ValueError(f"{n} keys were requested, but from 1 to {self.core.count()} can be removed")
        self.rows.resize(n)
        self.core.victims(n, self.rows.data())
        return np.array(self.rows, np.uint64)

    def priorities(self, keys):
        """The priorities of held keys, in the precision that the sampler keeps, as float64 of shape (n,)."""
        cdef size_t i, n = self.take(keys, known=True)
        return np.array([self.core.priority(self.rows[i]) for i in range(n)], np.float64)

    def hot(self, keys):
        """Which of these held keys are hot (hot_cold only), as bool of shape (n,)."""
        cdef size_t i, n = self.take(keys, known=True)
        return np.array([self.strata != NULL and self.strata.hot(self.rows[i]) for i in range(n)], bool)

    def state(self):
        cdef State state
        with nogil:
            self.core.save(state)
        arrays = {
            "keys": copy_rows(state.keys),
            "priorities": copy_numbers(state.priorities),
            "weights": copy_numbers(state.weights),
            "numbers": copy_numbers(state.numbers),
            "hot": copy_rows(state.hot),
            "entered": copy_numbers(state.entered),
        }
        return {name: arrays[name] for name in self.core.members().decode().split()}

    def restore(self, given, name):
        """Like Sampler.restore; `name` is the sampler's name in messages. Everything is checked before anything changes."""
        cdef State state
        cdef size_t i, bad
        members = self.core.members().decode().split()
        if set(given) != set(members):
            raise ValueError(f"the state of a {name} is {members}, not {sorted(given)}")
        keys = check_member(given, "keys", self.capacity)
        fill_rows(state.keys, keys)
        bad = state.keys.size()
        for i in range(state.keys.size()):
            if not self.mark(state.keys[i]):
                bad = i
                break
        for i in range(bad):
            self.marks[0][state.keys[i] >> 6] = 0
        if bad < state.keys.size():
            raise ValueError(f"array 'keys' holds {state.keys[bad]} twice; this is not a state of a {name}")
        for member in members[1:]:
            if member == "hot":
                fill_rows(state.hot, check_member(given, "hot", self.capacity))
                continue
            array = np.ascontiguousarray(given[member], dtype=np.float64)
            if array.ndim != 1:
                raise ValueError(f"array {member!r} must have one dimension, not shape {array.shape}")
            if member == "priorities":
                try:
                    check_priorities(array, keys)
                except ValueError as error:
                    raise ValueError(f"array 'priorities': {error}") from None
                fill_numbers(state.priorities, array)
            elif member == "weights":
                fill_numbers(state.weights, array)
            elif member == "numbers":
                fill_numbers(state.numbers, array)
            else:
                fill_numbers(state.entered, array)
        problem = self.core.check(state).decode()
        if problem:
            raise ValueError(f"array {problem}; this is not a state of a {name} with these options")
        with nogil:
            self.core.load(state)

    def native(self):
        capsule = PyCapsule_New(&self.door, ECHO_SAMPLER_NAME, release)
        PyCapsule_SetContext(capsule, <void*>self)
        Py_INCREF(self)  # the capsule holds this reference, so it keeps the memory alive
        return capsule

    cdef size_t take(self, keys, bint known=False) except? 0:
        """Copy `keys` to `self.rows`. Raises if a key is not a row, or (with `known`) is not held."""
        cdef const uint64_t[::1] given = check_keys(keys)
        cdef size_t i, n = given.shape[0]
        self.rows.resize(n)
        for i in range(n):
            if given[i] >= self.capacity:
                if known:
                    raise UnknownKeyError(f"key {given[i]} is not held; it was never inserted or is deleted")
                raise ValueError(f"key {given[i]} is not a row of a table of {self.capacity}; keys go from 0 to {self.capacity - 1}")
            self.rows[i] = <uint32_t>given[i]
            if known and not self.core.held(self.rows[i]):
                raise UnknownKeyError(f"key {given[i]} is not held; it was never inserted or is deleted")
        return n

    cdef bint mark(self, uint32_t row) noexcept nogil:
        """Mark a row; returns False if it was already marked."""
        cdef uint64_t bit = <uint64_t>1 << (row & 63)
        if self.marks[0][row >> 6] & bit:
            return False
        self.marks[0][row >> 6] = self.marks[0][row >> 6] | bit
        return True

    cdef void unmark(self, size_t n) noexcept nogil:
        cdef size_t i
        for i in range(n):
            self.marks[0][self.rows[i] >> 6] = 0


cdef void release(object capsule) noexcept:
    cdef object owner = <object>PyCapsule_GetContext(capsule)
    Py_DECREF(owner)


cdef object copy_rows(vector[uint32_t]& rows):
    cdef object array = np.empty(rows.size(), np.uint64)
    cdef uint64_t[::1] out = array
    cdef size_t i
    for i in range(rows.size()):
        out[i] = rows[i]
    return array


cdef object copy_numbers(vector[double]& numbers):
    cdef object array = np.empty(numbers.size(), np.float64)
    cdef double[::1] out = array
    cdef size_t i
    for i in range(numbers.size()):
        out[i] = numbers[i]
    return array


cdef object check_member(given, str name, uint64_t capacity):
    try:
        keys = check_keys(given[name])
    except (TypeError, ValueError) as error:
        raise ValueError(f"array {name!r}: {error}") from None
    if keys.size and keys.max() >= capacity:
        raise ValueError(f"array {name!r} holds key {keys.max()}, but the capacity is {capacity}; restore with the capacity of the saved sampler")
    return keys


cdef void fill_rows(vector[uint32_t]& out, const uint64_t[::1] keys) except *:
    cdef size_t i, n = keys.shape[0]
    out.resize(n)
    for i in range(n):
        out[i] = <uint32_t>keys[i]


cdef void fill_numbers(vector[double]& out, const double[::1] numbers) except *:
    cdef size_t i, n = numbers.shape[0]
    out.resize(n)
    for i in range(n):
        out[i] = numbers[i]


cdef uint64_t check_capacity(capacity) except? 0:
    if not 1 <= capacity <= kMaxRows:
        raise ValueError(f"capacity must be from 1 to {kMaxRows}, not {capacity}")
    return capacity


cdef NativeSampler adopt(RowSampler* core, uint64_t capacity, bint evicts):
    cdef NativeSampler self = NativeSampler.__new__(NativeSampler)
    self.core = core
    self.marks = new PageArray[uint64_t]((capacity + 63) // 64)
    self.door = core.door(evicts)
    self.evicts = evicts
    self.capacity = capacity
    return self


def uniform(capacity, bint replacement):
    cdef uint64_t rows = check_capacity(capacity)
    return adopt(new Uniform(rows, replacement), rows, False)


def ordered(capacity, bint newest_first):
    cdef uint64_t rows = check_capacity(capacity)
    return adopt(new Ordered(rows, newest_first), rows, False)


def heap(capacity, bint highest_first):
    cdef uint64_t rows = check_capacity(capacity)
    return adopt(new Heap(rows, highest_first), rows, False)


def prioritized(capacity, double alpha, double eps, bint stratified):
    cdef uint64_t rows = check_capacity(capacity)
    return adopt(new Prioritized(rows, alpha, eps, stratified), rows, False)


def hot_cold(capacity, hot_capacity, double hot_ratio, age_threshold, int weighting, double alpha, double eps, double temperature,
             bint by_versions, double promote_above, double demote_below):
    cdef HotColdOptions options
    options.capacity = check_capacity(capacity)
    options.hot_capacity = hot_capacity
    options.hot_ratio = hot_ratio
    options.age_threshold = age_threshold
    options.weighting = weighting
    options.alpha = alpha
    options.eps = eps
    options.temperature = temperature
    options.by_versions = by_versions
    options.promote_above = promote_above
    options.demote_below = demote_below
    cdef HotCold* core = new HotCold(options)
    cdef NativeSampler self = adopt(core, options.capacity, True)
    self.strata = core
    return self
