# cython: language_level=3
"""The `Client.send` of a client with one table: it calls the connection's own `send`, or handles labels once some are given.

Nearly every sample has no labels. For these, going through the Python method `Client.send` would cost half a send; this class costs 11 ns.
"""
import weakref

from ..base.errors import EchoTimeoutError


cdef class PlainSender:
    """Takes the arguments of `Client.send` and `send_batch`, and passes calls without labels straight to the connection.

    Args:
        client: held by a weak reference, because a client that the user dropped must not stay alive.
        connection: the client's connection, or its `StepStreams` if samples are steps.
        steps: whether samples are steps.
        explain: is called with an EchoTimeoutError of the connection and the call's timeout; None if the connection explains its errors itself.
    """

    cdef object _client, _send, _send_batch, _explain
    cdef bint _steps
    cdef bint _labelled  # set by the first label: samples without labels must not overtake labelled ones

    def __init__(self, client, connection, bint steps, explain):
        self._client = weakref.ref(client)
        self._explain = explain
        self._send, self._send_batch = connection.send, connection.send_batch
        self._steps = steps
        self._labelled = False

    def send(self, sample, timeout=None, *, table=None, priority=None, policy_version=None, end=None, stream=None):
        if not self._labelled and table is None and priority is None and policy_version is None:
            if end is None and stream is None:
                try:
                    return self._send(sample, timeout)
                except EchoTimeoutError as error:
                    if self._explain is not None:
                        self._explain(error, timeout)
                    raise
            if self._steps:
                return self._send(sample, timeout, end=end, stream=0 if stream is None else stream)
        client = self._client()
        if client is None:
            return self._send(sample, timeout)  # raises the error of a closed connection
        self._labelled = self._labelled or priority is not None or policy_version is not None
        return type(client).send(
            client, sample, timeout, table=table, priority=priority, policy_version=policy_version, **_given(end=end, stream=stream))

    def send_batch(
        self, samples, timeout=None, *, table=None, priorities=None, policy_version=None, ends=None, stream=None, streams=None
    ):
        if not self._labelled and table is None and priorities is None and policy_version is None:
            if ends is None and stream is None and streams is None:
                try:
                    return self._send_batch(samples, timeout)
                except EchoTimeoutError as error:
                    if self._explain is not None:
                        self._explain(error, timeout)
                    raise
            if self._steps:
                return self._send_batch(samples, timeout, ends=ends, stream=stream, streams=streams)
        client = self._client()
        if client is None:
            return self._send_batch(samples, timeout)
        self._labelled = self._labelled or priorities is not None or policy_version is not None
        return type(client).send_batch(
            client, samples, timeout, table=table, priorities=priorities, policy_version=policy_version,
            **_given(ends=ends, stream=stream, streams=streams))


def _given(*, end=None, stream=None, ends=None, streams=None):
    named = {"end": end, "stream": stream, "ends": ends, "streams": streams}
    return {name: value for name, value in named.items() if value is not None}
