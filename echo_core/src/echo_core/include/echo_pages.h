/* An array of fixed size with an entry for each row of a table: for the core's own tables and for native samplers (C++17).
 * It is a header only and no part of the stable native interface: it may change with any release, and whoever includes it compiles it in. */
#ifndef ECHO_PAGES_H
#define ECHO_PAGES_H

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>

#include "echo_huge_pages.h"

namespace echo {

// Entries begin as zeros; T must need neither constructor nor destructor. The kernel provides a page when it is first written, so a large table
// costs as much memory as it holds, not as much as it could hold. Arrays of many rows use huge pages: without them, access to a random row
// would miss the TLB as well.
template <class T>
class PageArray {
public:
    explicit PageArray(size_t size) : size_(size), bytes_(pages(size)) {
        // An array of two huge pages that began anywhere but at the border of one would get only one.
        void *memory = map_aligned(bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        if (bytes_ >= kHugePage) madvise(memory, bytes_, MADV_HUGEPAGE);
#endif
        data_ = static_cast<T *>(memory);
    }
    ~PageArray() { munmap(static_cast<void *>(data_), bytes_); }
    PageArray(const PageArray &) = delete;
    PageArray &operator=(const PageArray &) = delete;

    T &operator[](size_t index) { return data_[index]; }
    const T &operator[](size_t index) const { return data_[index]; }
    T *data() { return data_; }
    const T *data() const { return data_; }
    size_t size() const { return size_; }
    void clear() { std::memset(static_cast<void *>(data_), 0, size_ * sizeof(T)); }

private:
    static constexpr size_t kPage = 4096;

    // Rounds up to whole pages, at least one, and to whole huge pages where that costs at most an eighth more.
    static size_t pages(size_t size) {
        if (size > (std::numeric_limits<size_t>::max() - 2 * kHugePage) / sizeof(T)) throw std::bad_alloc();
        const size_t bytes = size ? size * sizeof(T) : 1, huge = (bytes + kHugePage - 1) / kHugePage * kHugePage;
        return bytes >= kHugePage && huge - bytes <= bytes / 8 ? huge : (bytes + kPage - 1) / kPage * kPage;
    }

    const size_t size_;
    const size_t bytes_;
    T *data_;
};

}  // namespace echo

#endif
