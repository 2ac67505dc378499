// Who may claim slots when a store is full: those who wait for space stand in line, and each takes a share in its turn.
//
// Without it the connection that is looked at first would take every slot that becomes free, and the others would starve.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

namespace echo_rdma {

// Of one engine, under its lock. Several stores may be fed by it: only those who want the same one stand behind each other.
class Line {
  public:
    void join(const void *who, const void *store) {
        if (find(who) == waiting_.end()) waiting_.push_back({who, store});
    }

    void leave(const void *who) {
        if (auto at = find(who); at != waiting_.end()) waiting_.erase(at);
    }

    // Nobody else has waited longer for it.
    bool first(const void *who, const void *store) const {
        for (auto &one : waiting_)
            if (one.store == store) return one.who == who;
        return true;
    }

    // Somebody else waits for it too.
    bool others(const void *who, const void *store) const {
        return std::any_of(waiting_.begin(), waiting_.end(), [&](auto &one) { return one.store == store && one.who != who; });
    }

    // Had its share: behind the others now.
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
