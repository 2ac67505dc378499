# cython: language_level=3
"""The storage of a server that takes no samples. It serves requests and weights, and has neither a stream nor replay tables."""
from libc.stdint cimport uint64_t

from echo_core.store.door.echo_run cimport ECHO_OK, echo_run
from echo_core.store.stream.stream cimport Stream

from echo_core.base.errors import ConfigError
from echo_core.spec.spec import Spec

TAKES_NONE = "this server takes no samples, because it was made without an example; give it one: Server({'obs': np.zeros(4, np.float32)}, batch_size=32)"


cdef class NoSamples(Stream):
    """A stream of empty samples, whose slots are all taken from the beginning.

    Transports need a store behind every server. A worker that sends to this one waits for space, like at any full store, and is told why. The
    wait ends with the server.
    """

    def __init__(self):
        cdef echo_run run
        Stream.__init__(self, Spec.from_example(()), 1, 2)
        while self.ring.claim(1, &run) == ECHO_OK:
            pass

    @property
    def batch_size(self) -> int:
        return 0

    @property
    def num_buffers(self) -> int:
        return 0

    @property
    def capacity(self) -> int:
        return 0

    def why_no_table(self) -> str:
        return TAKES_NONE

    cdef object put(self, object sample, object timeout, object priority, object policy_version):
        raise ConfigError(TAKES_NONE)

    cdef object put_batch(self, object samples, object timeout, object priorities, object policy_version):
        raise ConfigError(TAKES_NONE)

    cpdef object draw(self, object n=None, object timeout=None, object beta=None, uint64_t borrower=0):
        raise ConfigError(TAKES_NONE)

    def look(self, Py_ssize_t most):
        raise ConfigError(TAKES_NONE)

    cdef str blocked_writers(self):
        return TAKES_NONE

    cdef str blocked_learner(self):
        return TAKES_NONE
