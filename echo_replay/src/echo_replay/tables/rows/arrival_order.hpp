// Which rows of a table are used, and in what order their items arrived. Not thread-safe: the table's mutex guards it.
//
// As long as only the oldest item is ever removed, the used rows form a circle, which two numbers describe. The first row that becomes free
// out of turn turns the circle into a doubly linked list (8 bytes for each row) that keeps the order of arrival, with a stack of free rows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace echo::replay {

class Arrivals {
public:
    static constexpr uint32_t kNone = UINT32_MAX;

    explicit Arrivals(uint32_t capacity) : capacity_(capacity) {}

    // The number of rows in use, including rows that are being written.
    uint32_t used() const { return used_; }
    uint32_t oldest() const { return used_ == 0 ? kNone : linked() ? first_ : head_; }
    uint32_t after(uint32_t row) const {
        if (linked()) return next_[row];
        const uint32_t following = row + 1 == capacity_ ? 0 : row + 1;
        return following == tail() ? kNone : following;
    }

    uint32_t youngest() const { return used_ == 0 ? kNone : linked() ? last_ : before_in_circle(tail()); }
    uint32_t before(uint32_t row) const {
        if (linked()) return previous_[row];
        return row == head_ ? kNone : before_in_circle(row);
    }

    // Takes 1..wanted consecutive free rows, which are then the youngest. Returns how many, or 0 if every row is in use.
    uint32_t take(uint32_t wanted, uint32_t *first) {
        if (used_ == capacity_) return 0;
        if (!linked()) {
            const uint32_t from = tail(), to_end = capacity_ - from, free = capacity_ - used_;
            uint32_t n = wanted < free ? wanted : free;
            if (n > to_end) n = to_end;
            *first = from;
            used_ += n;
            return n;
        }
        uint32_t n = 0;
        do {
            const uint32_t row = free_.back();
            if (n == 0) *first = row;
            else if (row != *first + n) break;
            free_.pop_back();
            append(row);
            ++n, ++used_;
        } while (n < wanted && !free_.empty());
        return n;
    }

    // Frees a row that was in use.
    void erase(uint32_t row) {
        if (!linked()) {
            const uint32_t last = tail() == 0 ? capacity_ - 1 : tail() - 1;
            if (row == head_) {
                head_ = head_ + 1 == capacity_ ? 0 : head_ + 1;
                --used_;
                return;
            }
            if (row == last) {
                --used_;
                return;
            }
            link();
        }
        unlink(row);
        free_.push_back(row);
        --used_;
    }

    // The oldest row becomes the youngest, because its item is overwritten.
    void renew(uint32_t row) {
        if (!linked()) {
            if (row == head_ && used_ == capacity_) {
                head_ = head_ + 1 == capacity_ ? 0 : head_ + 1;
                return;
            }
            link();
        }
        unlink(row);
        append(row);
    }

    uint64_t bytes() const { return linked() ? uint64_t(capacity_) * 8 + free_.capacity() * 4 : 0; }

    // Exactly these rows are in use, in this order.
    void restore(const uint32_t *order, uint32_t n) {
        next_.reset(), previous_.reset(), free_.clear();
        head_ = n ? order[0] : 0, used_ = n;
        uint32_t i = 0;
        while (i < n && order[i] == (uint64_t(head_) + i) % capacity_) ++i;
        if (i == n) return;  // the rows form a circle
        std::vector<bool> taken(capacity_);
        used_ = 0;
        link();  // this marks every row as free; the loops below correct it
        free_.clear();
        for (i = 0; i < n; ++i) append(order[i]), taken[order[i]] = true;
        for (uint32_t row = capacity_; row-- > 0;)
            if (!taken[row]) free_.push_back(row);
        used_ = n;
    }

private:
    bool linked() const { return next_ != nullptr; }
    uint32_t tail() const {
        const uint64_t t = uint64_t(head_) + used_;
        return uint32_t(t >= capacity_ ? t - capacity_ : t);
    }
    uint32_t before_in_circle(uint32_t row) const { return row == 0 ? capacity_ - 1 : row - 1; }
    void link() {
        auto next = std::make_unique<uint32_t[]>(capacity_), previous = std::make_unique<uint32_t[]>(capacity_);
        free_.reserve(capacity_ - used_ + 1);
        const uint32_t end = tail();
        // The free rows that the circle would use next are on top of the stack.
        for (uint32_t i = capacity_ - used_; i-- > 0;) free_.push_back(uint32_t((uint64_t(end) + i) % capacity_));
        next_ = std::move(next), previous_ = std::move(previous);
        first_ = last_ = kNone;
        for (uint32_t i = 0; i < used_; ++i) append(uint32_t((uint64_t(head_) + i) % capacity_));
    }
    void append(uint32_t row) {
        next_[row] = kNone;
        previous_[row] = last_;
        (last_ == kNone ? first_ : next_[last_]) = row;
        last_ = row;
    }
    void unlink(uint32_t row) {
        const uint32_t before = previous_[row], behind = next_[row];
        (before == kNone ? first_ : next_[before]) = behind;
        (behind == kNone ? last_ : previous_[behind]) = before;
    }

    const uint32_t capacity_;
    uint32_t head_ = 0, used_ = 0;             // of the circle
    uint32_t first_ = kNone, last_ = kNone;    // of the list
    std::unique_ptr<uint32_t[]> next_, previous_;
    std::vector<uint32_t> free_;
};

}  // namespace echo::replay
