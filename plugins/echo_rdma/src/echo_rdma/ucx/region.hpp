// Memory of a worker that a learner on the same machine reads: what UCX gives out as shared memory, and what its key opens at the other end.
//
// No byte of a sample passes through UCX then: the worker copies it in here, says where it lies, and the learner copies it from here into its
// slot. The first bytes hold the lease: while a learner finds in it the number that came with the key, what it has read was whole.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <vector>

#include "library.hpp"

namespace echo_rdma {

constexpr size_t LEASE_BYTES = 4096; // in front of the samples, which then begin with a page
constexpr size_t KEY_BYTES = 1024;   // a key is some tens of bytes for each transport that could use it

using Lease = std::atomic<uint32_t>;
static_assert(Lease::is_always_lock_free);

// The worker's end.
class Region {
  public:
    // nullptr: UCX has no memory to give out, and samples go as messages.
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

    // `bytes` that nobody has yet; nullptr when there are no more.
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

    // What earlier readers find from here on is not theirs: memory may be used again without their word. Answers with the next one's lease.
    uint32_t renew() {
        auto *lease = reinterpret_cast<Lease *>(base_);
        uint32_t next = lease->load(std::memory_order_relaxed) + 1;
        lease->store(next, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release); // LEASE: what is written afterwards is seen by nobody who has not seen `next`
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

// The learner's end: a worker's region in its own memory, until the endpoint is closed.
class Sight {
  public:
    ~Sight() { close(); }

    // What is wrong, or nothing. Without that, `opened` says whether this machine can map it.
    std::string open(ucp::Endpoint *ep, uint64_t address, uint64_t bytes, uint32_t lease, const void *key, size_t key_bytes) {
        if (key_ != nullptr || bytes < LEASE_BYTES || key_bytes == 0 || key_bytes > KEY_BYTES) return "a key to memory of " + std::to_string(bytes) + " bytes";
        char padded[2 * KEY_BYTES] = {}; // UCX reads as much as it finds said inside
        memcpy(padded, key, key_bytes);
        void *base;
        if (library().ep_rkey_unpack(ep, padded, &key_) != ucp::OK) {
            key_ = nullptr;
            return "";
        }
        // msync sees whether all of it is mapped, so that a length that is not true ends nobody.
        if (library().rkey_ptr(key_, address, &base) == ucp::OK && msync(base, bytes, MS_ASYNC) == 0) {
            base_ = static_cast<const char *>(base);
            bytes_ = bytes;
            lease_ = lease;
        } else
            close();
        return "";
    }

    bool opened() const { return base_ != nullptr; }

    // nullptr: it does not lie there.
    const char *at(uint64_t offset, uint64_t bytes) const {
        return base_ != nullptr && offset >= LEASE_BYTES && offset <= bytes_ && bytes <= bytes_ - offset ? base_ + offset : nullptr;
    }

    bool holds(const char *at) const { return base_ != nullptr && at >= base_ && at < base_ + bytes_; }

    // Whether what has been read until now was ours to read.
    bool valid() const {
        std::atomic_thread_fence(std::memory_order_acquire); // LEASE
        return reinterpret_cast<const Lease *>(base_)->load(std::memory_order_relaxed) == lease_;
    }

    // Before the endpoint is closed.
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
