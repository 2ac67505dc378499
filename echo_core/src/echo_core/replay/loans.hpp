// Rows of a queue that a learner was given and has not acknowledged yet: on loan until their time is over or their borrower is gone, then given out
// again, before what nobody has had. Not thread-safe: the table's mutex guards it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace echo::replay {

class Loans {
public:
    // duration_ns 0: rows are given away for good.
    Loans(uint32_t capacity, int64_t duration_ns) : duration_(duration_ns) {
        if (duration_ns) state_ = std::make_unique<uint64_t[]>(capacity);
    }

    bool any() const { return state_ != nullptr; }
    uint64_t out() const { return out_; }
    uint64_t back() const { return back_; }

    void lend(uint32_t row, int64_t now, uint64_t borrower) {
        state_[row] = ++turn_ << 1;
        lent_.push_back({row, state_[row], now + duration_, borrower});
        ++out_;
    }
    enum Ended { kNeither, kOut, kCameBack };  // kCameBack: it waited to be given out again
    // Acknowledged, late or not.
    Ended end(uint32_t row) {
        if (state_[row] == kNo) return kNeither;
        const Ended ended = state_[row] & kBack ? kCameBack : kOut;
        --(ended == kOut ? out_ : back_);
        state_[row] = kNo;
        return ended;
    }
    // Rows whose time is over: they wait to be given out again.
    uint64_t expire(int64_t now) {
        uint64_t expired = 0;
        for (; !lent_.empty() && lent_.front().until <= now; lent_.pop_front()) {
            const Loan &loan = lent_.front();
            if (state_[loan.row] != loan.state) continue;  // acknowledged
            give_back(loan.row);
            --out_, ++expired;
        }
        return expired;
    }
    // What this borrower still has: it is gone, and nothing of it has to be waited for.
    uint64_t take_back(uint64_t borrower) {
        std::deque<Loan> others;
        uint64_t taken = 0;
        for (const Loan &loan : lent_) {
            if (loan.borrower != borrower) {
                others.push_back(loan);
            } else if (state_[loan.row] == loan.state) {
                give_back(loan.row);
                --out_, ++taken;
            }
        }
        lent_.swap(others);
        return taken;
    }
    // A row that was on loan, here or in the life before a restart.
    void give_back(uint32_t row) {
        state_[row] = ++turn_ << 1 | kBack;
        returned_.push_back({row, state_[row], 0, 0});
        ++back_;
    }
    // One that waits to be given out again; false when there is none.
    bool take(uint32_t *row) {
        while (!returned_.empty()) {
            const Loan loan = returned_.front();
            returned_.pop_front();
            if (state_[loan.row] != loan.state) continue;  // acknowledged, late
            *row = loan.row;
            state_[loan.row] = kNo;
            --back_;
            return true;
        }
        return false;
    }
    // When the first of the loans is over (of one acknowledged meanwhile, perhaps); INT64_MAX when nothing is on loan.
    int64_t first_end() const { return lent_.empty() ? INT64_MAX : lent_.front().until; }
    // Every row on loan or waiting, in the order in which they would be given out again.
    std::vector<uint32_t> rows() const {
        std::vector<uint32_t> out;
        for (const auto *loans : {&returned_, &lent_})
            for (const Loan &loan : *loans)
                if (state_[loan.row] == loan.state) out.push_back(loan.row);
        return out;
    }

private:
    // A row's state is the turn in which it was lent or came back, twice, and whether it waits to be given out again.
    static constexpr uint64_t kNo = 0, kBack = 1;
    struct Loan {
        uint32_t row;
        uint64_t state;
        int64_t until;
        uint64_t borrower;
    };

    const int64_t duration_;
    std::unique_ptr<uint64_t[]> state_;
    std::deque<Loan> lent_;  // they end in this order, as all last the same
    std::deque<Loan> returned_;
    uint64_t turn_ = 0, out_ = 0, back_ = 0;
};

}  // namespace echo::replay
