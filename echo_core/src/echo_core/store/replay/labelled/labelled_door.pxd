# What Cython code of echo_core itself sees of labelled_door.hpp. Not for plugins: their door is capi.pxd.
from echo_core.store.door.door cimport Door
from echo_core.store.replay.table cimport Table

cdef extern from "store/replay/labelled/labelled_door.hpp" namespace "echo::replay" nogil:
    Door* open_labelled(Table*) except +
