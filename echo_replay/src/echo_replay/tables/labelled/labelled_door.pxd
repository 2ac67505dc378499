# The part of labelled_door.hpp that Cython code of echo_core itself uses. Plugins use capi.pxd instead.
from echo_core.store.door.door cimport Door
from echo_replay.tables.table cimport Table

cdef extern from "tables/labelled/labelled_door.hpp" namespace "echo::replay" nogil:
    Door* open_labelled(Table*) except +
