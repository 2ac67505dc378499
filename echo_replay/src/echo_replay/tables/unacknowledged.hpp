// The items of a queue that a client was given and has not acknowledged yet. If a client does not acknowledge an item in time, or is gone,
// the item is given out again, before items that nobody has had. Not thread-safe: the table's mutex guards it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace echo::replay {

class Unacknowledged {
public:
    // duration_ns 0: items need no acknowledgement.
    Unacknowledged(uint32_t capacity, int64_t duration_ns) : duration_(duration_ns) {
        if (duration_ns) state_ = std::make_unique<uint64_t[]>(capacity);
    }

    bool any() const { return state_ != nullptr; }
    uint64_t out() const { return out_; }
    uint64_t back() const { return back_; }

    // The row was drawn. It belongs to the borrower as soon as its batch is gathered, and nobody else gets it meanwhile.
    void give_out(uint32_t row, int64_t now, uint64_t borrower) {
        const uint64_t turn = ++turn_ << 2;
        state_[row] = turn | kDrawn;
        given_.push_back({row, turn, now + duration_, borrower});
        ++out_;
    }
    // The row's batch was gathered: the borrower has it.
    void hand_over(uint32_t row) { state_[row] &= ~kDrawn; }
    // The row's batch failed, so the row waits to be given out again. Returns false if it waits already because its borrower is gone.
    bool revoke(uint32_t row) {
        if (!(state_[row] & kDrawn)) return false;
        give_out_again(row);
        --out_;
        return true;
    }
    enum Ended { kNeither, kOut, kCameBack };  // kCameBack: it waited to be given out again
    // The row was acknowledged, in time or late.
    Ended end(uint32_t row) {
        if (state_[row] == kNo || state_[row] & kDrawn) return kNeither;
        const Ended ended = state_[row] & kBack ? kCameBack : kOut;
        --(ended == kOut ? out_ : back_);
        state_[row] = kNo;
        tidy(&given_, out_);
        tidy(&returned_, back_);
        return ended;
    }
    // Finds rows whose time is over: they wait to be given out again. Returns how many.
    uint64_t expire(int64_t now) {
        uint64_t expired = 0;
        for (; !given_.empty() && given_.front().until <= now; given_.pop_front()) {
            const Entry &entry = given_.front();
            if (!is(entry)) continue;  // this row was acknowledged
            if (state_[entry.row] & kDrawn) break;  // this row is being gathered, which does not take long
            give_out_again(entry.row);
            --out_, ++expired;
        }
        return expired;
    }
    // The borrower is gone: the rows that it has wait to be given out again. Returns how many.
    uint64_t take_back(uint64_t borrower) {
        std::deque<Entry> others;
        uint64_t taken = 0;
        for (const Entry &entry : given_) {
            if (entry.borrower != borrower) {
                others.push_back(entry);
            } else if (is(entry)) {
                give_out_again(entry.row);
                --out_, ++taken;
            }
        }
        given_.swap(others);
        return taken;
    }
    // A row was given out, in this process or before a restart, and has to be given out again.
    void give_out_again(uint32_t row) {
        const uint64_t turn = ++turn_ << 2;
        state_[row] = turn | kBack;
        returned_.push_back({row, turn, 0, 0});
        ++back_;
    }
    // Takes a row that waits to be given out again; returns false if no row waits.
    bool take(uint32_t *row) {
        while (!returned_.empty()) {
            const Entry entry = returned_.front();
            returned_.pop_front();
            if (!is(entry)) continue;  // this row was acknowledged late
            *row = entry.row;
            state_[entry.row] = kNo;
            --back_;
            return true;
        }
        return false;
    }
    // Returns when the first row's time is over (perhaps of a row that was acknowledged meanwhile), or INT64_MAX if no row is out.
    int64_t first_end() const { return given_.empty() ? INT64_MAX : given_.front().until; }
    // Returns every row that is out or waits, in the order in which they would be given out again.
    std::vector<uint32_t> rows() const {
        std::vector<uint32_t> out;
        for (const auto *entries : {&returned_, &given_})
            for (const Entry &entry : *entries)
                if (is(entry)) out.push_back(entry.row);
        return out;
    }

private:
    // A row's state is the turn in which it was given out or came back. The lower two bits say whether it waits to be given out again, or is being gathered.
    static constexpr uint64_t kNo = 0, kBack = 1, kDrawn = 2, kTurn = ~uint64_t(3);
    struct Entry {
        uint32_t row;
        uint64_t turn;
        int64_t until;
        uint64_t borrower;
    };
    bool is(const Entry &entry) const { return (state_[entry.row] & kTurn) == entry.turn; }
    // Entries of acknowledged rows are dropped, however long the others last. This costs two steps for each entry on average.
    void tidy(std::deque<Entry> *entries, uint64_t living) {
        while (!entries->empty() && !is(entries->front())) entries->pop_front();
        if (entries->size() <= 2 * living + 1024) return;
        entries->erase(std::remove_if(entries->begin(), entries->end(), [this](const Entry &entry) { return !is(entry); }), entries->end());
    }

    const int64_t duration_;
    std::unique_ptr<uint64_t[]> state_;
    std::deque<Entry> given_;  // in the order of their deadlines, because all have the same duration
    std::deque<Entry> returned_;
    uint64_t turn_ = 0, out_ = 0, back_ = 0;
};

}  // namespace echo::replay
