# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernels, compiled. `bandwidth.py`, `plans.py` and `sequences.py` have the same functions in numpy and document them: their results
are equal within rounding, and they raise the same errors.

Arrays of float32 and float64 are read where they lie, whatever their strides. Others are converted to float64 first, so that no dtype,
byte order or alignment is misread. Loops over arrays run without the GIL."""

from libc.math cimport INFINITY, fabs, isfinite, pow
from libc.stdint cimport int64_t, uint8_t, uint64_t

import numpy as np

from echo_rl.kernels import bandwidth as costs
from echo_rl.kernels import sequences
from echo_rl.kernels.plans import check_decay, check_dim, check_pairs, check_rewards, check_sigma, check_width, rows_of

ctypedef fused real:
    float
    double

cdef object FLOAT32 = np.dtype(np.float32)
cdef object INT64 = np.dtype(np.int64)


cdef object lines(str name, values, int ndim):
    """An aligned array of float32 or float64 whose last axis is contiguous; a copy only if it has to be one."""
    array = np.asarray(values)
    if array.dtype != FLOAT32 or not array.dtype.isnative:
        array = rows_of(name, array, ndim)
    elif array.ndim != ndim:
        rows_of(name, array, ndim)  # which raises
    if not array.flags.aligned or (array.shape[ndim - 1] > 1 and array.strides[ndim - 1] != array.itemsize):
        array = np.ascontiguousarray(np.require(array, requirements="A"))
    return array


cdef object doubles(str name, values):
    return np.ascontiguousarray(rows_of(name, values, 1))


cdef double squares(const real* a, const real* b, Py_ssize_t n) noexcept nogil:
    cdef double total = 0, difference
    cdef Py_ssize_t j
    for j in range(n):
        difference = <double>a[j] - <double>b[j]
        total += difference * difference
    return total


cdef double distance(const real* a, const double* b, Py_ssize_t n) noexcept nogil:
    cdef double total = 0, difference
    cdef Py_ssize_t j
    for j in range(n):
        difference = <double>a[j] - b[j]
        total += difference * difference
    return total


# ---- plans


cdef class EMAPlanTracker:
    cdef readonly double decay
    cdef readonly bint initialized
    cdef object array
    cdef double[::1] values

    def __init__(self, dim, decay=0.99):
        check_dim(dim)
        check_decay(decay)
        self.decay = decay
        self.initialized = False
        self.array = np.zeros(dim)
        self.values = self.array

    @property
    def mean(self):
        return self.array.copy()

    def update(self, plan):
        row = doubles("plan", plan)
        check_width("plan", row, "the mean", self.array)
        cdef const double[::1] given = row
        cdef Py_ssize_t j, n = given.shape[0]
        cdef double old = self.decay if self.initialized else 0.0
        cdef double new = 1 - old
        cdef bint fine = True
        for j in range(n):
            fine &= isfinite(given[j])
        if not fine:
            raise ValueError("plan holds a value that is not finite; the mean is unchanged")
        for j in range(n):
            self.values[j] = old * self.values[j] + new * given[j]
        self.initialized = True
        return self.array.copy()


cdef void surprises(const real[:, :] plans, const double[::1] mean, const double[::1] rewards, double of_plan, double of_reward, double[::1] out) noexcept nogil:
    cdef Py_ssize_t i, d = plans.shape[1]
    for i in range(plans.shape[0]):
        out[i] = of_reward * fabs(rewards[i])
        if d:
            out[i] += of_plan * distance(&plans[i, 0], &mean[0], d)


def plan_surprise(plan, mean, double reward, double surprise_weight=1.0, double reward_weight=1.0):
    cdef const double[::1] row = doubles("plan", plan)
    cdef const double[::1] middle = doubles("mean", mean)
    if row.shape[0] != middle.shape[0]:
        check_width("plans", np.asarray(row), "mean", np.asarray(middle))
    cdef double found = reward_weight * fabs(reward)
    if row.shape[0]:
        found += surprise_weight * distance(&row[0], &middle[0], row.shape[0])
    return found


def plan_surprise_batch(plans, mean, rewards, double surprise_weight=1.0, double reward_weight=1.0):
    rows, middle, given = lines("plans", plans, 2), doubles("mean", mean), doubles("rewards", rewards)
    check_width("plans", rows, "mean", middle)
    check_rewards(rows, given)
    found = np.empty(len(rows))
    cdef const float[:, :] single
    cdef const double[:, :] double_
    cdef const double[::1] middle_ = middle
    cdef const double[::1] given_ = given
    cdef double[::1] out = found
    if rows.dtype == FLOAT32:
        single = rows
        with nogil:
            surprises(single, middle_, given_, surprise_weight, reward_weight, out)
    else:
        double_ = rows
        with nogil:
            surprises(double_, middle_, given_, surprise_weight, reward_weight, out)
    return found


cdef void divergences(const real[:, :] plans, const real[:, :] previous, double sigma, double[::1] out) noexcept nogil:
    cdef Py_ssize_t i, d = plans.shape[1]
    for i in range(plans.shape[0]):
        out[i] = squares(&plans[i, 0], &previous[i, 0], d) / (2 * sigma * sigma) if d else 0.0


def temporal_kl(plan, previous, double sigma=1.0):
    check_sigma(sigma)
    cdef const double[::1] a = doubles("plan", plan)
    cdef const double[::1] b = doubles("previous", previous)
    if a.shape[0] != b.shape[0]:
        check_pairs(np.asarray(a)[None], np.asarray(b)[None])
    return squares(&a[0], &b[0], a.shape[0]) / (2 * sigma * sigma) if a.shape[0] else 0.0


def temporal_kl_batch(plans, previous, double sigma=1.0):
    check_sigma(sigma)
    a, b = lines("plans", plans, 2), lines("previous", previous, 2)
    check_pairs(a, b)
    if a.dtype != b.dtype:
        a, b = np.ascontiguousarray(a, np.float64), np.ascontiguousarray(b, np.float64)
    found = np.empty(len(a))
    cdef const float[:, :] a4, b4
    cdef const double[:, :] a8, b8
    cdef double[::1] out = found
    if a.dtype == FLOAT32:
        a4, b4 = a, b
        with nogil:
            divergences(a4, b4, sigma, out)
    else:
        a8, b8 = a, b
        with nogil:
            divergences(a8, b8, sigma, out)
    return found


# ---- costs and priorities


cdef bint is_length(double value) noexcept nogil:
    return 0 <= value < INFINITY


def attention_bandwidth_cost(double seq_len, double scale=1.0):
    if not is_length(seq_len):
        costs.lengths_of("seq_len", seq_len)  # which raises
    return scale * seq_len * (seq_len + 1) / 2


def effective_bandwidth_cost(double seq_len, double reuse_len, double scale=1.0):
    if not is_length(seq_len):
        costs.lengths_of("seq_len", seq_len)  # which raises
    cdef double reused = min(max(reuse_len, 0.0), seq_len)
    return scale * (seq_len - reused) * (seq_len + reused + 1) / 2  # a difference of costs could round to less than 0


def attention_bandwidth_cost_batch(seq_len, double scale=1.0):
    array = np.asarray(seq_len, np.float64)
    found = np.empty(array.shape)
    cdef const double[::1] given = np.ascontiguousarray(array).reshape(-1)
    cdef double[::1] out = found.reshape(-1)
    cdef Py_ssize_t i
    cdef bint fine = True
    with nogil:
        for i in range(given.shape[0]):
            fine &= is_length(given[i])
            out[i] = scale * given[i] * (given[i] + 1) / 2
    if not fine:
        costs.lengths_of("seq_len", array)  # which raises
    return found


def schedule_priorities(rewards, bandwidth, queue_times, double bandwidth_weight=1.0, double queue_weight=1.0, double epsilon=1e-8):
    costs.check_weights(bandwidth_weight, queue_weight, epsilon)
    r, b, q = np.asarray(rewards, np.float64), np.asarray(bandwidth, np.float64), np.asarray(queue_times, np.float64)
    if not r.shape == b.shape == q.shape:
        r, b, q = np.broadcast_arrays(r, b, q)
    found = np.empty(r.shape)
    cdef const double[::1] reward = np.ascontiguousarray(r).reshape(-1)
    cdef const double[::1] cost = np.ascontiguousarray(b).reshape(-1)
    cdef const double[::1] queue = np.ascontiguousarray(q).reshape(-1)
    cdef double[::1] out = found.reshape(-1)
    cdef Py_ssize_t i
    cdef bint fine = True
    with nogil:
        for i in range(reward.shape[0]):
            fine &= is_length(cost[i]) & is_length(queue[i])
            out[i] = reward[i] / (bandwidth_weight * cost[i] + queue_weight * queue[i] + epsilon)
    if not fine:
        costs.lengths_of("bandwidth", b)
        costs.lengths_of("queue_times", q)  # one of them raises
    return found


def bandwidth_aware_priorities(rewards, bandwidth, queue_times, double epsilon=1e-8):
    return schedule_priorities(rewards, bandwidth, queue_times, epsilon=epsilon)


def bandwidth_efficiency(double reward, double rollout_bandwidth, double learner_cost=0.0):
    cdef double spent = rollout_bandwidth + learner_cost
    if not spent > 0:
        costs.check_spent(spent)
    return reward / spent


# ---- sequences


cdef object as_tokens(values):
    """int64, or None for what int64 can't hold: floats, text and uint64."""
    array = np.asarray(values)
    if array.dtype is INT64 and array.flags.aligned:
        return array
    kind = array.dtype.kind
    if kind == "b" or kind == "i" or (kind == "u" and array.itemsize < 8):
        return np.require(array, np.int64, "A")
    return None if array.size else np.empty(array.shape, np.int64)


cdef Py_ssize_t shared(const int64_t* a, const int64_t* b, Py_ssize_t stride, Py_ssize_t most) noexcept nogil:
    cdef Py_ssize_t j = 0
    while j < most and a[j] == b[j * stride]:
        j += 1
    return j


def prefix_match(sequence, cached):
    wanted_ = as_tokens(sequence)
    if wanted_ is None or wanted_.ndim != 1:
        return sequences.prefix_match(sequence, cached)
    cdef const int64_t[::1] wanted = np.ascontiguousarray(wanted_)
    cdef const int64_t[:, :] rows
    cdef const int64_t[:] row
    cdef Py_ssize_t i, length, best = -1, longest = 0, n = wanted.shape[0], most
    if isinstance(cached, np.ndarray) and cached.ndim == 2:
        table = as_tokens(cached)
        if table is None:
            return sequences.prefix_match(sequence, cached)
        rows = table
        most = min(n, rows.shape[1])
        if not most:
            return -1, 0
        with nogil:
            for i in range(rows.shape[0]):
                length = shared(&wanted[0], &rows[i, 0], rows.strides[1] // <Py_ssize_t>sizeof(int64_t), most)
                if length > longest:
                    best, longest = i, length
        return best, longest
    for i in range(len(cached)):
        other = as_tokens(cached[i])
        if other is None:
            return sequences.prefix_match(sequence, cached)
        row = other
        most = min(n, row.shape[0])
        if most <= longest:
            continue
        length = shared(&wanted[0], &row[0], row.strides[0] // <Py_ssize_t>sizeof(int64_t), most)
        if length > longest:
            best, longest = i, length
    return best, longest


def priority_sample(priorities, n, double temperature=1.0, double beta=1.0, seed=None, *, bint normalize=False):
    values = sequences.priorities_of(priorities, temperature)
    # numpy's exponential is vectorised, which the one of the C library is not.
    masses_ = np.exp((values - values.max()) / temperature)
    numbers_ = np.random.default_rng(seed).random(n)
    sums_, indices_, weights_ = np.empty(len(values)), np.empty(n, np.int64), np.empty(n)
    cdef const double[::1] masses = masses_
    cdef const double[::1] numbers = numbers_
    cdef double[::1] sums = sums_
    cdef int64_t[::1] indices = indices_
    cdef double[::1] weights = weights_
    cdef Py_ssize_t i, low, high, middle, size = masses.shape[0]
    cdef double total = 0, wanted, largest = 0
    with nogil:
        for i in range(size):
            total += masses[i]
            sums[i] = total
        for i in range(numbers.shape[0]):
            wanted = numbers[i] * total
            low, high = 0, size - 1
            while low < high:  # the first whose sum is greater than the number
                middle = (low + high) // 2
                if sums[middle] > wanted:
                    high = middle
                else:
                    low = middle + 1
            indices[i] = low
            weights[i] = pow(size * masses[low] / total, -beta)
            if weights[i] > largest:
                largest = weights[i]
    return indices_, weights_ / largest if normalize and n else weights_


cdef uint64_t mixed(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


def state_hash(state):
    words_, begin_ = sequences.words_of(state)
    cdef const uint64_t[::1] words = words_
    cdef uint64_t total = begin_, position = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(words.shape[0]):
            position += <uint64_t>0x9E3779B97F4A7C15
            total += mixed(words[i] + position) * (position | 1)
    return mixed(total)
