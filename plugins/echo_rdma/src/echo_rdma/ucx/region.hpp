// Memory of a worker that a learner on the same machine reads. UCX allocates it as shared memory, and its key opens it at the other end.
//
// The bytes of samples then do not pass through UCX: the worker copies a sample in here and says where it lies, and the learner copies it from here into
// its slot. The first bytes hold the lease. As long as a learner finds there the number that came with the key, the bytes that it has read were whole.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <vector>

#include "library.hpp"

namespace echo_rdma {

constexpr size_t LEASE_BYTES = 4096; // lie in front of the samples, which so begin at a page
constexpr size_t KEY_BYTES = 1024;   // a key needs some tens of bytes for each transport that could use it

using Lease = std::atomic<uint32_t>;
static_assert(Lease::is_always_lock_free);

// The worker's end.
class Region {
  public:
    // Returns nullptr if UCX cannot allocate such memory. Then samples travel as messages.
    static std::unique_ptr<Region> make(ucp::Context *context, size_t bytes) {
        std::unique_ptr<Region> region(new Region(context));
        ucp::MemParams params{};
        params.mask = params.LENGTH | params.FLAGS;
        params.length = LEASE_BYTES + bytes;
        params.flags = params.ALLOCATE | params.NONBLOCK;
        if (library().mem_map(context, &params, &region->handle_) != ucp::OK) return nullptr;
        ucp::MemAttr attr{};
        attr.mask = attr.ADDRESS | attr.LENGTH;
        if (library().mem_query(region->handle_, &attr) != ucp::OK) return nullptr;
        region->base_ = static_cast<char *>(attr.address);
        region->bytes_ = LEASE_BYTES + bytes;
        new (region->base_) Lease(0);
        void *key;
        size_t size;
        if (library().rkey_pack(context, region->handle_, &key, &size) != ucp::OK) return nullptr;
        region->key_.assign(static_cast<char *>(key), static_cast<char *>(key) + size);
        library().rkey_buffer_release(key);
        return size <= KEY_BYTES ? std::move(region) : nullptr;
    }

    ~Region() {
        if (handle_ != nullptr) library().mem_unmap(context_, handle_);
    }
    Region(const Region &) = delete;

    // Returns `bytes` unused bytes; nullptr if there are not so many left.
    char *take(size_t bytes) {
        if (bytes_ - used_ < bytes) return nullptr;
        char *at = base_ + used_;
        used_ += bytes;
        return at;
    }

    uint64_t offset(const char *at) const { return uint64_t(at - base_); }
    uint64_t address() const { return uintptr_t(base_); }
    uint64_t bytes() const { return bytes_; }
    const std::vector<char> &key() const { return key_; }

    // Ends the lease of earlier readers: from here on the memory may be used again without their acknowledgement. Returns the next reader's lease.
    uint32_t renew() {
        auto *lease = reinterpret_cast<Lease *>(base_);
        uint32_t next = lease->load(std::memory_order_relaxed) + 1;
        lease->store(next, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release); // LEASE: a reader that sees bytes written after this also sees `next`
        return next;
    }

  private:
    explicit Region(ucp::Context *context) : context_(context) {}

    ucp::Context *context_;
    ucp::MemHandle *handle_ = nullptr;
    char *base_ = nullptr;
    size_t bytes_ = 0, used_ = LEASE_BYTES;
    std::vector<char> key_;
};

// The learner's end: maps a worker's region into its own memory, until the endpoint is closed.
class Sight {
  public:
    ~Sight() { close(); }

    // Returns an error text, or "" if the key is valid. In that case, `opened` says whether this process could map the region.
    std::string open(ucp::Endpoint *ep, uint64_t address, uint64_t bytes, uint32_t lease, const void *key, size_t key_bytes) {
        if (key_ != nullptr || bytes < LEASE_BYTES || key_bytes == 0 || key_bytes > KEY_BYTES) return "a key to memory of " + std::to_string(bytes) + " bytes";
        char padded[2 * KEY_BYTES] = {}; // padded, because UCX reads as many bytes as the key itself says
        memcpy(padded, key, key_bytes);
        void *base;
        if (library().ep_rkey_unpack(ep, padded, &key_) != ucp::OK) {
            key_ = nullptr;
            return "";
        }
        // msync checks that all of it is mapped, so that a wrong length cannot crash this process.
        if (library().rkey_ptr(key_, address, &base) == ucp::OK && msync(base, bytes, MS_ASYNC) == 0) {
            base_ = static_cast<const char *>(base);
            bytes_ = bytes;
            lease_ = lease;
        } else
            close();
        return "";
    }

    bool opened() const { return base_ != nullptr; }

    // Returns nullptr if these bytes do not lie in the region.
    const char *at(uint64_t offset, uint64_t bytes) const {
        return base_ != nullptr && offset >= LEASE_BYTES && offset <= bytes_ && bytes <= bytes_ - offset ? base_ + offset : nullptr;
    }

    bool holds(const char *at) const { return base_ != nullptr && at >= base_ && at < base_ + bytes_; }

    // True if the lease held for all bytes that have been read until now.
    bool valid() const {
        std::atomic_thread_fence(std::memory_order_acquire); // LEASE
        return reinterpret_cast<const Lease *>(base_)->load(std::memory_order_relaxed) == lease_;
    }

    // To be called before the endpoint is closed.
    void close() {
        if (key_ != nullptr) library().rkey_destroy(key_);
        key_ = nullptr;
        base_ = nullptr;
    }

  private:
    ucp::Key *key_ = nullptr;
    const char *base_ = nullptr;
    uint64_t bytes_ = 0;
    uint32_t lease_ = 0;
};

} // namespace echo_rdma
