// Keeps the memory of large messages for the next ones. If the allocator gave it back to the system in between, the kernel would clear
// its pages anew for every message, which takes longer than the copy of the message.
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

    // Takes the memory of a message that has been read.
    void give(std::string memory) noexcept {
        if (memory.capacity() < large) return;
        memory.clear();
        // try_to_lock, because in a forked child a thread that does not exist there may hold the lock for ever.
        const std::unique_lock<std::mutex> lock(lock_, std::try_to_lock);
        if (lock && kept_.size() < kept_.capacity()) kept_.push_back(std::move(memory));
    }

private:
    static constexpr std::size_t large = 64 << 10;  // the allocator itself keeps smaller blocks
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
