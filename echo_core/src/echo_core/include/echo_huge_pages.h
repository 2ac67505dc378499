/* Memory in pages of 2 MiB: an entry of the TLB then stands for 512 times as much, and the kernel provides it in fewer steps (C++17).
 * It is a header only and no part of the stable native interface: it may change with any release, and whoever includes it compiles it in. */
#ifndef ECHO_HUGE_PAGES_H
#define ECHO_HUGE_PAGES_H

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace echo {

constexpr size_t kHugePage = 2u << 20;

// An mmap whose memory begins at the border of a huge page if it is as large as one. At any other address the kernel would not map huge pages as
// such, even if the file has them. `offset`: a multiple of kHugePage. Release it with munmap. Returns MAP_FAILED like mmap, with errno.
inline void *map_aligned(size_t bytes, int protection, int flags, int fd, off_t offset = 0) {
    if (bytes >= kHugePage && bytes <= SIZE_MAX - 2 * kHugePage) {
        const size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage, room = whole + kHugePage;  // hugetlbfs maps whole huge pages
        void *reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved != MAP_FAILED) {
            char *const first = static_cast<char *>(reserved);
            char *const begin = first + (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
            void *memory = mmap(begin, bytes, protection, flags | MAP_FIXED, fd, offset);
            const int error = errno;
            if (memory == MAP_FAILED) {
                munmap(first, room);
                errno = error;
                return MAP_FAILED;
            }
            if (begin > first) munmap(first, size_t(begin - first));
            char *const end = begin + (bytes + 4095) / 4096 * 4096;
            munmap(end, size_t(first + room - end));
            return memory;
        }
    }
    return mmap(nullptr, bytes, protection, flags, fd, offset);
}

// Gives `bytes` of a new memfd, from `offset` on, huge pages as far as the machine has them. Returns false if it has no more. Call it before the memory is
// reserved: most systems would not do it by themselves for shared memory (shmem_enabled is "never"). Here the kernel takes one small page and clears
// the rest of a huge page at once, which takes a tenth of the time of 512 small pages. To replace 512 pages that are there would take longer instead.
// Kernels before 6.1 do not know MADV_COLLAPSE; then, and where memory is too fragmented, small pages remain.
inline bool use_huge_pages(int fd, off_t offset, size_t bytes) {
    constexpr int kCollapse = 25;  // MADV_COLLAPSE
    void *memory = map_aligned(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (memory == MAP_FAILED) return false;
    bool more = true;
    for (size_t at = 0; more && at + kHugePage <= bytes; at += kHugePage) {
        int failed;
        do failed = posix_fallocate(fd, offset + off_t(at), 1);
        while (failed == EINTR);  // a signal came; the pages after this one can still be huge
        more = failed == 0;
        for (int tries = 2; more && tries > 0 && madvise(static_cast<char *>(memory) + at, kHugePage, kCollapse) != 0; --tries)
            more = errno == EAGAIN;  // the small page was in use
    }
    munmap(memory, bytes);
    return more;
}

}  // namespace echo

#endif
