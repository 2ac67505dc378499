// Decides which connection may claim slots when a store is full: connections that wait for space stand in line, and each takes a share in its turn.
//
// Without it, the connection that is looked at first would take every slot that becomes free, and the others would starve.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

namespace echo_rdma {

// The line of one engine, guarded by the engine's lock. An engine may feed several stores: only connections that want the same store wait for each other.
class Line {
  public:
    void join(const void *who, const void *store) {
        if (find(who) == waiting_.end()) waiting_.push_back({who, store});
    }

    void leave(const void *who) {
        if (auto at = find(who); at != waiting_.end()) waiting_.erase(at);
    }

    // True if no other connection has waited longer for this store.
    bool first(const void *who, const void *store) const {
        for (auto &one : waiting_)
            if (one.store == store) return one.who == who;
        return true;
    }

    // True if another connection waits for this store too.
    bool others(const void *who, const void *store) const {
        return std::any_of(waiting_.begin(), waiting_.end(), [&](auto &one) { return one.store == store && one.who != who; });
    }

    // `who` has had its share and now stands behind the others.
    void pass(const void *who, const void *store) {
        leave(who);
        join(who, store);
    }

  private:
    struct One {
        const void *who, *store;
    };
    std::deque<One>::iterator find(const void *who) {
        return std::find_if(waiting_.begin(), waiting_.end(), [&](auto &one) { return one.who == who; });
    }

    std::deque<One> waiting_;
};

} // namespace echo_rdma
