// A Door is the echo_store of echo_capi.h: one interface over both kinds of store, the ring of a stream and the table of a replay.
//
// Every capsule has a Door of its own, which counts its own references and holds one reference to the store. The store itself has no
// virtual function and no header for this purpose, so that calls which do not come through a Door cost nothing more.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "../histogram.hpp"
#include "../../include/echo_capi.h"

namespace echo {

class Door {
public:
    virtual ~Door() = default;

    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    virtual uint32_t leaf_count() const = 0;
    virtual uint64_t leaf_bytes(uint32_t leaf) const = 0;
    virtual uint64_t sample_bytes() const = 0;
    virtual uint64_t batch_size() const = 0;
    virtual int claim(uint32_t wanted, echo_run *out) = 0;
    virtual char *leaf(const echo_run &run, uint32_t leaf) const = 0;
    virtual void commit(const echo_run &run) = 0;
    virtual void abort(const echo_run &run) = 0;
    virtual int put(const void *const *leaves, uint32_t n, uint32_t *taken) {
        echo_run run;
        const int status = claim(n, &run);
        if (status != ECHO_OK) return status;
        for (uint32_t i = 0, count = leaf_count(); i < count; ++i) std::memcpy(leaf(run, i), leaves[i], run.count * leaf_bytes(i));
        commit(run);
        *taken = run.count;
        return ECHO_OK;
    }
    virtual int wait_space(int64_t timeout_ns) = 0;
    virtual int arm_space(int eventfd) = 0;
    virtual void disarm_space(int eventfd) = 0;
    virtual void gauge_add(int gauge, int64_t delta) = 0;
    virtual void queue_depth(uint64_t depth) = 0;
    virtual void observe(int histogram, uint64_t ns) = 0;

private:
    std::atomic<uint32_t> references_{1};
};

template <class Store>
class DoorTo : public Door {
public:
    explicit DoorTo(Store *store) : store_(store) { store_->retain(); }
    ~DoorTo() override { store_->release(); }

    uint32_t leaf_count() const override { return store_->leaf_count(); }
    uint64_t leaf_bytes(uint32_t leaf) const override { return store_->leaf_bytes(leaf); }
    uint64_t sample_bytes() const override { return store_->sample_bytes(); }
    uint64_t batch_size() const override { return store_->batch_size(); }
    int claim(uint32_t wanted, echo_run *out) override { return store_->claim(wanted, out); }
    char *leaf(const echo_run &run, uint32_t leaf) const override { return store_->leaf(run, leaf); }
    void commit(const echo_run &run) override { store_->commit(run); }
    void abort(const echo_run &run) override { store_->abort(run); }
    int wait_space(int64_t timeout_ns) override { return store_->wait_space(timeout_ns); }
    int arm_space(int eventfd) override { return store_->arm_space(eventfd); }
    void disarm_space(int eventfd) override { store_->disarm_space(eventfd); }
    void gauge_add(int gauge, int64_t delta) override { store_->gauges[gauge].fetch_add(delta, std::memory_order_relaxed); }
    void queue_depth(uint64_t depth) override {
        auto &most = store_->queue_depth_max;
        uint64_t seen = most.load(std::memory_order_relaxed);
        while (depth > seen && !most.compare_exchange_weak(seen, depth, std::memory_order_relaxed)) {}
    }
    void observe(int histogram, uint64_t ns) override {
        (histogram == ECHO_HIST_COPY ? store_->copy : store_->ingest_round).record(ns);
    }

protected:
    Store *const store_;
};

// Makes an echo_store, as plugins hold it. One reference belongs to the caller.
template <class Store>
Door *open_door(Store *store) {
    return new DoorTo<Store>(store);
}

}  // namespace echo
