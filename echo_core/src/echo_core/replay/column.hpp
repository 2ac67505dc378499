// An array with an entry for each row, on huge pages where there are many rows: a row drawn at random would miss the TLB as well otherwise.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace echo::replay {

// Entries begin as zeros. T must need neither constructor nor destructor.
template <class T>
class Column {
public:
    explicit Column(size_t size) : bytes_(pages(size * sizeof(T))) {
        if (bytes_ == 0) return;
        const size_t room = bytes_ < kHuge ? bytes_ : bytes_ + kHuge;
        void *memory = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        char *begin = static_cast<char *>(memory);
        if (room > bytes_) {
            // From a huge page's border on: of an array of two huge pages that began anywhere else, only one would be one.
            const size_t skipped = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
            if (skipped) munmap(begin, skipped);
            begin += skipped;
            if (skipped < kHuge) munmap(begin + bytes_, kHuge - skipped);
            madvise(begin, bytes_, MADV_HUGEPAGE);
        }
        data_ = reinterpret_cast<T *>(begin);
    }
    ~Column() {
        if (data_) munmap(static_cast<void *>(data_), bytes_);
    }
    Column(const Column &) = delete;
    Column &operator=(const Column &) = delete;

    T &operator[](size_t row) { return data_[row]; }
    const T &operator[](size_t row) const { return data_[row]; }

private:
    static constexpr size_t kHuge = 2u << 20;

    // Whole pages; whole huge ones where that costs at most an eighth more.
    static size_t pages(size_t bytes) {
        const size_t huge = (bytes + kHuge - 1) / kHuge * kHuge;
        return bytes >= kHuge && huge - bytes <= bytes / 8 ? huge : (bytes + 4095) / 4096 * 4096;
    }

    const size_t bytes_;
    T *data_ = nullptr;
};

}  // namespace echo::replay
