// What a table's items refer to, where their rows say where the data lies rather than being the data: the steps of items over steps.
#pragma once

#include <numpy/random/bitgen.h>

#include "store/replay/rows/batch_buffers.hpp"

namespace echo::replay {

class Follower {
public:
    virtual ~Follower() = default;

    // Fills the leaves of `batch` behind the items' own rows, which were just copied. Writers may be overwriting all of it meanwhile, rows
    // and what they refer to: whatever is read has to be taken for a guess until the items' generations were looked at again. So what an
    // item refers to may be overwritten only after the item's generation was advanced. Takes no lock: the table may hold its mutex.
    virtual void gather(Batch *batch) const = 0;
    // Item i of `batch` was drawn, or with no generator of random numbers found by its key: which part of it the batch is to show. With the
    // table's mutex, before the item's key and generation are noted: it may be another item after this.
    virtual void choose(Batch *, uint32_t, bitgen_t *) {}
    // Whether what was chosen was still there when it was copied.
    virtual bool whole(const Batch *, uint32_t) const { return true; }
};

}  // namespace echo::replay
