// The data that a table's items refer to, for tables whose rows only say where the data is: items over steps.
#pragma once

#include <numpy/random/bitgen.h>

#include "batch_buffers.hpp"

namespace echo::replay {

class Follower {
public:
    virtual ~Follower() = default;

    // Fills the leaves of `batch` after the items' own rows, which were just copied. Meanwhile writers may overwrite the rows and the data
    // that they refer to. Everything read here is therefore uncertain until the items' generations have been checked again. For that check
    // to work, data that an item refers to may be overwritten only after the item's generation was advanced. This function takes no lock:
    // the table may hold its mutex.
    virtual void gather(Batch *batch) const = 0;
    // Item i of `batch` was drawn, or found by its key if the generator is null: decides which part of it the batch shows. The caller holds
    // the table's mutex, under which the item is there, and has not yet noted its key and generation, because this call may choose another item.
    virtual void choose(Batch *, uint32_t, bitgen_t *) {}
    // The sum that the probabilities of a draw divide by after choose(); `mass` is that of the rows. The caller holds the table's mutex.
    virtual double mass(double mass) const { return mass; }
    // Whether the chosen part was still there when it was copied.
    virtual bool whole(const Batch *, uint32_t) const { return true; }
    // The item in this row is removed, and its generation has advanced: what the row refers to may be used for another. The caller holds the
    // table's mutex.
    virtual void gone(uint32_t) {}
    // The items in these rows cannot be drawn any more. They are removed now, or when their last batch is gathered. The caller holds the table's
    // mutex.
    virtual void forgotten(const uint32_t *, size_t) {}
    // Writers may find room again although nothing was removed: a pause or a hold has ended, or a checkpoint needs fewer rows as they were. The
    // caller holds no lock.
    virtual void resumed() {}
};

}  // namespace echo::replay
