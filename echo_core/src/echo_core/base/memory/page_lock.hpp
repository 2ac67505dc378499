// Page-locks host memory through CUDA's driver (cuda.py), so that devices can read and write it without the processor. This is native
// code because the lock has to be undone where the memory is unmapped, which may be long after its server is gone.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace echo {

class PageLock {
public:
    PageLock() = default;  // does nothing
    // Addresses of cuCtxPushCurrent, cuCtxPopCurrent, cuMemHostRegister and cuMemHostUnregister, and the context.
    PageLock(uintptr_t enter, uintptr_t leave, uintptr_t lock, uintptr_t unlock, uintptr_t context)
        : enter_(reinterpret_cast<int (*)(void *)>(enter)), leave_(reinterpret_cast<int (*)(void **)>(leave)),
          lock_(reinterpret_cast<int (*)(void *, size_t, unsigned)>(lock)), unlock_(reinterpret_cast<int (*)(void *)>(unlock)),
          context_(reinterpret_cast<void *>(context)), process_(getpid()) {}

    explicit operator bool() const { return lock_ != nullptr; }

    // Locks the memory and returns the driver's status.
    int apply(void *memory, size_t bytes) const {
        if (const int status = enter_(context_)) return status;
        const int status = lock_(memory, bytes, kPortable);
        void *before;
        leave_(&before);
        return status;
    }
    // Unlocks memory that was locked. A driver that is shutting down refuses, but has already released the memory.
    void undo(void *memory) const {
        if (process_ != getpid() || enter_(context_) != 0) return;
        unlock_(memory);
        void *before;
        leave_(&before);
    }

private:
    static constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: for every context
    int (*enter_)(void *) = nullptr;
    int (*leave_)(void **) = nullptr;
    int (*lock_)(void *, size_t, unsigned) = nullptr;
    int (*unlock_)(void *) = nullptr;
    void *context_ = nullptr;
    pid_t process_ = 0;  // a forked child has the memory, but no driver
};

}  // namespace echo
