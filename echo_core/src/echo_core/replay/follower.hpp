// What a table's items refer to, where their rows say where the data lies rather than being the data: the steps of items over steps.
#pragma once

#include "batches.hpp"

namespace echo::replay {

class Follower {
public:
    virtual ~Follower() = default;

    // Fills the leaves of `batch` behind the items' own rows, which were just copied. Writers may be overwriting all of it meanwhile, rows
    // and what they refer to: whatever is read has to be taken for a guess until the items' generations were looked at again. So what an
    // item refers to may be overwritten only after the item's generation was advanced. Takes no lock: the table may hold its mutex.
    virtual void gather(Batch *batch) const = 0;
};

}  // namespace echo::replay
