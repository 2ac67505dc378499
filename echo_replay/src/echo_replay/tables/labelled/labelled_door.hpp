// The view of a table for samples with labels: it has one leaf more, which holds what the worker says about each sample (label_leaf.hpp).
#pragma once

#include "store/door/door.hpp"
#include "../table.hpp"

namespace echo::replay {

class LabelledDoor final : public DoorTo<Table> {
public:
    explicit LabelledDoor(Table *table) : DoorTo(table) { table->expect_labels(); }

    uint32_t leaf_count() const override { return store_->leaf_count() + 1; }
    uint64_t leaf_bytes(uint32_t leaf) const override { return leaf < store_->leaf_count() ? store_->leaf_bytes(leaf) : sizeof(Incoming); }
    uint64_t sample_bytes() const override { return store_->sample_bytes() + sizeof(Incoming); }
    char *leaf(const echo_run &run, uint32_t leaf) const override {
        return leaf < store_->leaf_count() ? store_->leaf(run, leaf) : reinterpret_cast<char *>(store_->incoming(run.slot));
    }
    void commit(const echo_run &run) override { store_->commit_labelled(run); }
};

// One reference belongs to the caller.
inline Door *open_labelled(Table *table) { return new LabelledDoor(table); }

}  // namespace echo::replay
