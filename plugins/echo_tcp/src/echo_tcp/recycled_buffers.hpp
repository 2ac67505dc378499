// Memory of large messages, kept for the next ones: an allocator that gives it back to the system in between has its pages cleared anew
// for every message, which takes longer than to copy them.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace echo_tcp {

class RecycledBuffers {
public:
    // An empty string with room for `bytes`.
    std::string take(std::size_t bytes) {
        std::string memory;
        if (bytes >= large) {
            const std::unique_lock<std::mutex> lock(lock_, std::try_to_lock);
            if (lock && !kept_.empty()) {
                memory = std::move(kept_.back());
                kept_.pop_back();
            }
        }
        memory.reserve(bytes);
        return memory;
    }

    // Who has read a message needs it no more.
    void give(std::string memory) noexcept {
        if (memory.capacity() < large) return;
        memory.clear();
        // Tried only: in a forked child another thread may hold the lock for ever.
        const std::unique_lock<std::mutex> lock(lock_, std::try_to_lock);
        if (lock && kept_.size() < kept_.capacity()) kept_.push_back(std::move(memory));
    }

private:
    static constexpr std::size_t large = 64 << 10;  // smaller blocks the allocator keeps
    static constexpr std::size_t most = 8;

    static std::vector<std::string> room() {
        std::vector<std::string> kept;
        kept.reserve(most);
        return kept;
    }

    std::mutex lock_;
    std::vector<std::string> kept_ = room();
};

}  // namespace echo_tcp
