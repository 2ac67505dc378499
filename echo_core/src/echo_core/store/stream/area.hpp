// The memory of a stream store: control words, claim records and sample storage in one mapping that holds no addresses. It can therefore
// be private memory (one process) or a memfd that writers of other processes map too (docs/design/shm.md). A plugin that lets them may include
// this header: it is compiled in on both sides, and kVersion says whether the two fit. Raise it with every change of what lies in the memory.
//
// A writer in another process can be killed between any two instructions. Each word that such a writer changes therefore says, in a field
// `pending`, who changed it last. A thread that wants to change that word next first *settles* it: it notes in that writer's record that the
// change was done. So for every step at which a writer may have died, its record says exactly whether the step was done. Writers within
// the learner's process die together with the store; their steps leave `pending` zero and cost nothing more.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "../wait/event_count.hpp"
#include "../../include/echo_capi.h"
#include "../../include/echo_huge_pages.h"
#include "../../base/memory/page_lock.hpp"

namespace echo {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "processes share these words: a lock beside them would be private to one");

// ---- open: epoch (18 bits) | pending (10) | buffer (12) | next free slot (24). If next == batch size, a new buffer must be opened.
struct Open {
    static constexpr uint64_t kPending = uint64_t(0x3ff) << 36;
    static uint64_t pack(uint64_t epoch, uint64_t buffer, uint64_t next) { return (epoch & 0x3ffff) << 46 | buffer << 24 | next; }
    static uint32_t next(uint64_t w) { return uint32_t(w & 0xffffff); }
    static uint32_t buffer(uint64_t w) { return uint32_t(w >> 24 & 0xfff); }
    static uint64_t epoch(uint64_t w) { return w >> 46; }
    static uint32_t pending(uint64_t w) { return uint32_t(w >> 36 & 0x3ff); }
    static uint64_t by(uint64_t id) { return id << 36; }
};

// ---- progress: lap (19 bits) | pending (10) | state (3) | committed slots (32).
struct Progress {
    enum State : uint64_t {
        kFree = 0,
        kOpening = 1ull << 32,
        kOpen = 2ull << 32,
        kLeased = 3ull << 32,
        kSpare = 4ull << 32,       // kept for a batch that has to be moved
        kQuarantine = 5ull << 32,  // a stalled writer may still write here: nobody else reads or writes it
    };
    static constexpr uint64_t kState = 7ull << 32, kPending = uint64_t(0x3ff) << 35, kLap = ~uint64_t(0) << 45;
    static uint64_t state(uint64_t w) { return w & kState; }
    static uint32_t count(uint64_t w) { return uint32_t(w); }
    static uint32_t pending(uint64_t w) { return uint32_t(w >> 35 & 0x3ff); }
    static uint64_t by(uint64_t id) { return id << 35; }
    static uint64_t lap(uint64_t w) { return w & kLap; }
    static uint64_t next_lap(uint64_t w) { return (w & kLap) + (uint64_t(1) << 45); }
};

// ---- returned: tag (22 bits, against ABA) | pending (10) | slot id + 1 (32). The lower half is 0 if the stack is empty.
struct Returned {
    static constexpr uint64_t kPending = uint64_t(0x3ff) << 32;
    static uint32_t pending(uint64_t w) { return uint32_t(w >> 32 & 0x3ff); }
    static uint64_t by(uint64_t id) { return id << 32; }
    static uint64_t next(uint64_t w, uint64_t top) { return ((w >> 42) + 1) << 42 | top; }
};

struct alignas(64) Buffer {
    std::atomic<uint64_t> progress{Progress::kFree};
    std::atomic<uint64_t> order{0};      // in which buffers were opened; written before the buffer is published in `open`
    std::atomic<int64_t> ready_at{0};    // now_ns when complete, 0 until then
    std::atomic<bool> overtaken{false};  // later batches have left before this one: the learner waits for it no more
};

// The claim that one writer of another process holds, or its next action. The writer notes it before it acts, so that the learner can clean up after it.
struct alignas(64) Record {
    enum Step : uint64_t { kIdle = 0, kIntent = 1, kHeld = 2, kDone = 3 };
    std::atomic<uint64_t> word{0};  // a step in the lower two bits; the whole word only counts up
    std::atomic<uint64_t> place{0};  // buffer << 32 | slot of the run that is wanted or held
    std::atomic<uint32_t> count{0};
    std::atomic<uint32_t> waiting{0};     // the writer counts among space.waiters
    std::atomic<uint64_t> samples{0};     // number committed through this record
    std::atomic<uint64_t> revoked{0};     // number of claims that were taken away from this record
    std::atomic<int64_t> waits_since{0};  // a now_ns(), while the writer waits for space
    std::atomic<uint32_t> left{0};        // its process changes nothing here any more
};

struct Control {
    static constexpr uint64_t kMagic = 0x31726f74534f4345ull, kVersion = 1;
    explicit Control(bool shared) : ready(shared), space(shared) {}
    uint64_t magic = kMagic, version = kVersion, mapped = 0, batch = 0, buffers = 0, total = 0, leaves = 0, sample_bytes = 0, storage = 0;
    alignas(64) std::atomic<uint64_t> open{0};
    // Every claim reads this word, and it is rarely written. It is apart from `open`, so that claims do not move it from core to core.
    alignas(64) std::atomic<uint64_t> returned{0};
    std::atomic<bool> closed{false};
    alignas(64) std::atomic<uint64_t> next_order{1};
    std::atomic<uint64_t> taken{0}, leased{0}, aborted{0}, push_blocked{0}, notified{0};
    std::atomic<uint64_t> inserted{0};  // the largest total that counters() has reported, so that totals never run backwards
    std::atomic<uint64_t> out_of_order{0};  // number of batches that left before an older one
    alignas(64) EventCount ready;
    alignas(64) EventCount space;
};

class Area {
public:
    static constexpr uint64_t kMaxBatch = (1u << 24) - 1;  // the largest number that fits the fields of `open`
    static constexpr uint64_t kMaxBuffers = (1u << 12) - 1;
    static constexpr uint32_t kRecords = 1024;  // number 0 means no writer

    // Returns the number of bytes that a store needs, for a check before it is allocated; UINT64_MAX on overflow.
    static uint64_t bytes(const std::vector<uint64_t> &leaf_bytes, uint64_t batch, uint64_t buffers, uint64_t spares, bool shared) {
        const uint64_t stride = plan(leaf_bytes, batch, nullptr);
        uint64_t total;
        if (stride == UINT64_MAX || __builtin_mul_overflow(stride, buffers + spares, &total) ||
            __builtin_add_overflow(total, words(batch, buffers + spares, shared), &total) || total > UINT64_MAX / 2)
            return UINT64_MAX;
        return (total + kHugePage - 1) / kHugePage * kHugePage;
    }

    char *base() const { return base_; }
    uint64_t batch_size() const { return batch_; }
    uint64_t buffers() const { return usable_; }
    uint32_t leaf_count() const { return uint32_t(layout_.size()); }
    uint64_t leaf_bytes(uint32_t leaf) const { return layout_[leaf].bytes; }
    uint64_t sample_bytes() const { return sample_bytes_; }
    bool closed() const { return control_->closed.load(std::memory_order_seq_cst); }
    char *leaf(const echo_run &run, uint32_t leaf) const {
        const Layout &l = layout_[leaf];
        return storage_ + run.buffer * stride_ + l.offset + run.slot * l.bytes;
    }
    char *batch_leaf(int buffer, uint32_t leaf) const { return storage_ + uint64_t(buffer) * stride_ + layout_[leaf].offset; }
    // Page-locks the whole mapping until it is unmapped. Returns the driver's status.
    int lock_pages(const PageLock &lock) {
        const int status = lock.apply(base_, mapped_);
        if (status == 0) lock_ = lock;
        return status;
    }

protected:
    struct Layout {
        uint64_t bytes;   // of one sample
        uint64_t offset;  // of the leaf's array inside a batch buffer
    };

    // Makes a new store, in private memory (fd < 0) or in a memfd of bytes() length.
    Area(const std::vector<uint64_t> &leaf_bytes, uint64_t batch, uint64_t buffers, uint64_t spares, int fd);
    // Maps another process's store, to write to it. Throws std::invalid_argument if its layout does not fit the leaves.
    Area(int fd, uint64_t length, const std::vector<uint64_t> &leaf_bytes) : mapped_(length) {
        if (length < sizeof(Control)) throw std::invalid_argument("too short");
        map(fd);
        if (!adopt(length, leaf_bytes)) {
            munmap(base_, mapped_);
            throw std::invalid_argument("its layout is different");
        }
    }
    // Another view of a store that writers of other processes share, where this process has mapped it. It unmaps nothing. Throws like the one above.
    Area(char *base, uint64_t length, const std::vector<uint64_t> &leaf_bytes) : base_(base) {
        if (!adopt(length, leaf_bytes)) throw std::invalid_argument("its layout is different");
    }
    ~Area() {
        if (mapped_ == 0) return;
        if (lock_) lock_.undo(base_);
        munmap(base_, mapped_);
    }
    Area(const Area &) = delete;
    Area &operator=(const Area &) = delete;

    static uint64_t plan(const std::vector<uint64_t> &leaf_bytes, uint64_t batch, std::vector<Layout> *layout);
    static uint64_t words(uint64_t batch, uint64_t total, bool shared) {
        const uint64_t end = sizeof(Control) + total * sizeof(Buffer) + (shared ? kRecords : 1) * sizeof(Record) + batch * total * 4;
        return (end + 4095) & ~uint64_t(4095);
    }
    void find(bool shared);
    void map(int fd);
    bool adopt(uint64_t length, const std::vector<uint64_t> &leaf_bytes);

    bool complete(uint64_t progress) const {
        return (progress & ~(Progress::kLap | Progress::kPending)) == (Progress::kOpen | batch_);
    }
    bool can_claim() const;

    // ---- settling: see the top of this file. Each function returns the word as it is now.
    uint64_t settle_open(uint64_t seen);
    uint64_t settle_returned(uint64_t seen);
    uint64_t settle_progress(Buffer &buffer, uint64_t seen);
    template <class Still>
    void advance(uint32_t id, uint64_t from, Still still) {
        std::atomic<uint64_t> &word = record_[id].word;
        uint64_t step = word.load(std::memory_order_seq_cst);
        // While the change is pending, its writer takes no further step. This is therefore the step that the change belongs to.
        if ((step & 3) == from && still()) word.compare_exchange_strong(step, step + 1, std::memory_order_seq_cst);
    }

    uint64_t batch_ = 0, usable_ = 0, total_ = 0;
    std::vector<Layout> layout_;
    uint64_t stride_ = 0, sample_bytes_ = 0, mapped_ = 0;
    char *base_ = nullptr, *storage_ = nullptr;
    PageLock lock_;
    Control *control_ = nullptr;
    Buffer *buffer_ = nullptr;
    Record *record_ = nullptr;
    std::atomic<uint32_t> *returned_next_ = nullptr;  // per slot: the slot below it on the stack of returned slots
};

inline uint64_t Area::plan(const std::vector<uint64_t> &leaf_bytes, uint64_t batch, std::vector<Layout> *layout) {
    // Every leaf starts on a cache line of its own. Arrays that all began at the same offset of a 4 KiB page would compete for the same
    // cache sets and store-forwarding slots (1.5 to 2.3 times slower with 42 leaves), so each array is staggered by three lines.
    uint64_t end = 0, index = 0;
    for (uint64_t bytes : leaf_bytes) {
        const uint64_t wish = index++ * 192 % 4096;
        uint64_t offset = (end + 63) & ~uint64_t(63);
        if (bytes * batch >= 4096) offset += (wish + 4096 - offset % 4096) % 4096;
        uint64_t size;
        if (__builtin_mul_overflow(bytes, batch, &size) || __builtin_add_overflow(offset, size, &end) || end > UINT64_MAX / 2)
            return UINT64_MAX;
        if (layout) layout->push_back({bytes, offset});
    }
    return (end + 64 + 4095) & ~uint64_t(4095);  // never empty: leaves of size zero still have an address
}

inline void Area::map(int fd) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *memory = map_aligned(mapped_, PROT_READ | PROT_WRITE, flags, fd);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char *>(memory);
    madvise(base_, mapped_, MADV_HUGEPAGE);
    // Pre-fault the pages: the first lap through untouched pages would run at a fraction of the speed. Old kernels do not know this advice.
    if (madvise(base_, mapped_, 23 /* MADV_POPULATE_WRITE */) != 0 && fd < 0)
        for (uint64_t i = 0; i < mapped_; i += 4096) static_cast<volatile char *>(base_)[i] = 0;
}

inline void Area::find(bool shared) {
    control_ = reinterpret_cast<Control *>(base_);
    buffer_ = reinterpret_cast<Buffer *>(base_ + sizeof(Control));
    record_ = reinterpret_cast<Record *>(buffer_ + total_);
    returned_next_ = reinterpret_cast<std::atomic<uint32_t> *>(record_ + (shared ? kRecords : 1));
    storage_ = base_ + words(batch_, total_, shared);
}

inline Area::Area(const std::vector<uint64_t> &leaf_bytes, uint64_t batch, uint64_t buffers, uint64_t spares, int fd)
    : batch_(batch), usable_(buffers), total_(buffers + spares) {
    if (batch < 1 || batch > kMaxBatch || buffers < 1 || total_ > kMaxBuffers || batch * total_ >= UINT32_MAX)
        throw std::invalid_argument("batch_size or num_buffers out of range");
    stride_ = plan(leaf_bytes, batch, &layout_);
    for (uint64_t bytes : leaf_bytes) sample_bytes_ += bytes;
    mapped_ = bytes(leaf_bytes, batch, buffers, spares, fd >= 0);
    if (mapped_ == UINT64_MAX) throw std::bad_alloc();
    map(fd);
    find(fd >= 0);
    new (control_) Control(fd >= 0);
    control_->mapped = mapped_, control_->batch = batch, control_->buffers = buffers, control_->total = total_;
    control_->leaves = leaf_bytes.size(), control_->sample_bytes = sample_bytes_, control_->storage = uint64_t(storage_ - base_);
    control_->open.store(Open::pack(0, 0, batch), std::memory_order_relaxed);
    for (uint64_t b = 0; b < total_; ++b)
        (new (&buffer_[b]) Buffer)->progress.store(b < usable_ ? Progress::kFree : Progress::kSpare, std::memory_order_relaxed);
    for (uint32_t i = 0; i < (fd >= 0 ? kRecords : 1); ++i) new (&record_[i]) Record;
    for (uint64_t i = 0; i < batch * total_; ++i) new (&returned_next_[i]) std::atomic<uint32_t>(0);
}

// Takes the sizes from the store at `base_`. Returns false if it is no store, or if another version or other leaves laid it out.
inline bool Area::adopt(uint64_t length, const std::vector<uint64_t> &leaf_bytes) {
    control_ = reinterpret_cast<Control *>(base_);
    const Control &c = *control_;
    batch_ = c.batch, usable_ = c.buffers, total_ = c.total;
    for (uint64_t bytes : leaf_bytes) sample_bytes_ += bytes;
    const bool sane = c.magic == Control::kMagic && c.version == Control::kVersion && c.mapped == length && batch_ >= 1 && batch_ <= kMaxBatch &&
                      usable_ >= 1 && total_ >= usable_ && total_ <= kMaxBuffers && c.leaves == leaf_bytes.size() &&
                      c.sample_bytes == sample_bytes_ && c.storage == words(batch_, total_, true) &&
                      bytes(leaf_bytes, batch_, usable_, total_ - usable_, true) == length;
    if (!sane) return false;
    stride_ = plan(leaf_bytes, batch_, &layout_);
    find(true);
    return true;
}

inline bool Area::can_claim() const {
    if (closed() || uint32_t(control_->returned.load(std::memory_order_seq_cst)) != 0) return true;
    if (Open::next(control_->open.load(std::memory_order_seq_cst)) < batch_) return true;
    for (uint64_t b = 0; b < total_; ++b)
        if (Progress::state(buffer_[b].progress.load(std::memory_order_seq_cst)) == Progress::kFree) return true;
    return false;
}

inline uint64_t Area::settle_open(uint64_t seen) {
    std::atomic<uint64_t> &open = control_->open;
    const uint32_t id = Open::pending(seen);
    const auto still = [&] { return open.load(std::memory_order_seq_cst) == seen; };
    if (Open::next(seen) == 0) {  // a buffer was opened: claims never leave the word at slot 0
        std::atomic<uint64_t> &progress = buffer_[Open::buffer(seen)].progress;
        uint64_t p = progress.load(std::memory_order_seq_cst);
        if (Progress::state(p) == Progress::kOpening && Progress::pending(p) == id && still())
            progress.compare_exchange_strong(p, Progress::lap(p) | Progress::kOpen, std::memory_order_seq_cst);
    } else {
        advance(id, Record::kIntent, still);
    }
    uint64_t now = seen;
    return open.compare_exchange_strong(now, seen & ~Open::kPending, std::memory_order_seq_cst) ? seen & ~Open::kPending : now;
}

inline uint64_t Area::settle_returned(uint64_t seen) {
    std::atomic<uint64_t> &returned = control_->returned;
    advance(Returned::pending(seen), Record::kIntent, [&] { return returned.load(std::memory_order_seq_cst) == seen; });
    uint64_t now = seen;
    return returned.compare_exchange_strong(now, seen & ~Returned::kPending, std::memory_order_seq_cst) ? seen & ~Returned::kPending : now;
}

inline uint64_t Area::settle_progress(Buffer &buffer, uint64_t seen) {
    advance(Progress::pending(seen), Record::kHeld, [&] { return buffer.progress.load(std::memory_order_seq_cst) == seen; });
    uint64_t now = seen;
    return buffer.progress.compare_exchange_strong(now, seen & ~Progress::kPending, std::memory_order_seq_cst) ? seen & ~Progress::kPending : now;
}

}  // namespace echo
