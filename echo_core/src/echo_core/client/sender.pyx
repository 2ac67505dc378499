# cython: language_level=3
"""`send` and `send_batch` of `Client`, compiled.

Nearly every sample goes to the client's own table and has no labels. For these, a Python method in between would cost half a send.
"""
from ..base.errors import EchoTimeoutError
from ..wire.labels import label_of


cdef class Sender:
    """What `Client` inherits. It passes the most common samples straight to a connection, and the others to the outlet of their table."""

    cdef object _send, _send_batch, _explain, _outlet
    cdef object _label  # of the samples that are given no labels of their own; None if they have none
    cdef object _version  # the policy version in it
    cdef bint _labels

    def _begin(self, outlet, send, send_batch, explain, labels):
        """Say how samples leave.

        Args:
            outlet: returns the `Outlet` of a table, by its name.
            send, send_batch: of the own table's connection, or of its `StepStreams`.
            explain: is called with an EchoTimeoutError of these and the call's timeout.
            labels: whether the own table takes labels.
        """
        self._outlet, self._send, self._send_batch, self._explain, self._labels = outlet, send, send_batch, explain, labels

    def _set_version(self, version):
        """From now on, this policy version has made the samples that are given none; None: the one published last. Raises ValueError."""
        label = label_of(None, version)  # which checks it
        self._label, self._version = (label, version) if self._labels else (None, None)

    def send(self, sample, timeout=None, *, table=None, priority=None, policy_version=None, end=None, stream=None):
        """Copy one sample for sending; its arrays may be changed as soon as this returns. An idle link sends it now, a busy one with others.

        Other threads run while a large sample is copied. If they write to its arrays, some of these writes are sent too. If they free its
        memory (`ndarray.resize(refcheck=False)`, closing a mapped file), the process crashes, as anywhere in numpy.

        Args:
            sample: a pytree like the example.
            timeout: seconds to wait while the window of unacknowledged samples is full; None is the client's default.
            table: one of `tables`; None, and its name, are the client's own table (the server's first one, unless the client was given another).
            priority: priority of the new item, finite and not negative; None lets the table's sampler choose.
            policy_version: version of the policy that made the sample; None takes the attribute `policy_version`.
            end, stream: for a table of steps: see `StepStreams.send`.

        Raises:
            ValueError: the priority is negative, NaN or infinite, or the version is invalid; nothing was sent.
            SpecError: the sample does not match; the message names the leaf, and nothing was sent.
            ConfigError: there is no table that could take the labels, or `end` and `stream`; nothing was sent.
            EchoTimeoutError: the window of unacknowledged samples stayed full; the message says who waits for whom.
            ConnectionClosedError: the learner is gone for longer than `timeout`, or the client is closed.
            JobEnded: the learner has ended the job. Every call that needs it raises this error at once.
            UnknownTableError: `table` is neither the client's own table nor one of `tables`.
        """
        cdef bint given = priority is not None or policy_version is not None
        if table is None and end is None and stream is None and self._send is not None and (self._labels or not given):
            label = label_of(priority, self._version if policy_version is None else policy_version) if given else self._label
            try:
                return self._send(sample, timeout) if label is None else self._send(sample, timeout, label)
            except EchoTimeoutError as error:
                self._explain(error, timeout)
                raise
        return self._outlet(table).send(sample, timeout, priority, policy_version, _given(end=end, stream=stream))

    def send_batch(
        self, samples, timeout=None, *, table=None, priorities=None, policy_version=None, ends=None, stream=None, streams=None
    ):
        """Copy N samples at once for sending: the same pytree with leaves of shape `(N, *leaf.shape)`, priorities of shape (N,), and one
        version for all of them. Raises the same errors as `send`; the message names a sample whose priority is invalid.

        Where samples vary in length, `samples` is a list of samples. All of them are sent, or none.

        `ends`, `stream` and `streams` are for a table of steps: see `StepStreams.send_batch`."""
        if (
            table is None and priorities is None and policy_version is None and ends is None and stream is None and streams is None
            and self._label is None and self._send_batch is not None
        ):
            try:
                return self._send_batch(samples, timeout)
            except EchoTimeoutError as error:
                self._explain(error, timeout)
                raise
        return self._outlet(table).send_batch(
            samples, timeout, priorities, policy_version, _given(ends=ends, stream=stream, streams=streams))


def _given(*, end=None, stream=None, ends=None, streams=None):
    named = {"end": end, "stream": stream, "ends": ends, "streams": streams}
    return {name: value for name, value in named.items() if value is not None}
