// An array with an entry for each row, on huge pages where there are many rows: a row drawn at random would miss the TLB as well otherwise.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace echo::replay {

// Entries begin as zeros. T must need neither constructor nor destructor.
template <class T>
class Column {
public:
    explicit Column(size_t size) : bytes_((size * sizeof(T) + 4095) & ~size_t(4095)) {
        if (bytes_ == 0) return;
        void *memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        if (bytes_ >= kHuge) madvise(memory, bytes_, MADV_HUGEPAGE);
        data_ = static_cast<T *>(memory);
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

    const size_t bytes_;
    T *data_ = nullptr;
};

}  // namespace echo::replay
