// Decides which spans of an episode are items: windows that may overlap, or one transition over n steps for each step. This file knows
// episodes as counts of steps, and the numbers of the steps in their table. It knows nothing of memory or locks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace echo::replay {

// How an episode went on after a step. The values are those of echo_replay.steps.steps.ENDS.
enum Ends : uint8_t { kGoesOn = 0, kTerminated = 1, kTruncated = 2, kBoundary = 3 };

struct Cut {
    uint32_t lookback;  // number of steps before the anchor that belong to an item, if its episode has them
    uint32_t forward;   // number of steps from the anchor on, including it
    uint32_t period;    // number of steps from one anchor to the next
    bool pad;           // whether windows that the episode's end cuts short are items too
    bool transitions;   // whether an item is a transition from its anchor to its last step
    bool slices;        // whether items are whole episodes, of which `forward` steps are chosen when they are sampled
    bool by_steps;      // for slices: every step that can begin one is equally likely
    uint32_t width() const { return lookback + forward; }
};

// A row of the table of items.
struct Span {
    uint64_t first;      // number of its first step, including the lookback
    uint32_t count;      // number of steps
    uint16_t back;       // how many of them come before the anchor
    uint8_t terminated;  // for transitions: whether the environment itself ended the episode after the last reward
    uint8_t spare;
};
static_assert(sizeof(Span) == 16);

struct Made {
    Span span;
    uint64_t anchor;  // number of the step through which the table finds the item
};

class Episode {
public:
    // Adds the next step, which has this `number`. At most one window is complete after that.
    void add(const Cut &cut, uint64_t number, std::vector<Made> *made) {
        if (cut.slices) {
            last_ = number, ++count_;
            return;
        }
        // The vector grows with the episode, because many short episodes may be open at once.
        if (const uint64_t at = count_++ % cut.width(); at < recent_.size()) recent_[at] = number;
        else recent_.push_back(number);
        last_ = number;
        if (count_ != next_ + cut.forward) return;
        make(cut, cut.forward, 0, made);
        next_ += cut.period;
    }
    // Call this before the first step of an episode whose earlier steps are lost. The first items are those that lack none of the lost steps.
    void go_on(const Cut &cut) { next_ = cut.lookback; }
    void end(const Cut &cut, Ends how, std::vector<Made> *made) {
        if (count_ == 0) return;
        if (cut.slices) {
            // items of this kind are not cut
        } else if (cut.transitions) {
            // If the environment did not end the episode itself, the last step is only the one that the others lead to.
            const uint64_t anchors = how == kTerminated ? count_ : count_ - 1;
            for (; next_ < anchors; ++next_) make(cut, uint32_t(count_ - next_), how == kTerminated, made);
        } else if (cut.pad) {
            for (; next_ < count_ && (next_ < cut.period || next_ + cut.forward < count_ + cut.period); next_ += cut.period)
                make(cut, uint32_t(std::min<uint64_t>(count_ - next_, cut.forward)), 0, made);
        }
        count_ = next_ = 0;
    }
    uint64_t count() const { return count_; }
    uint64_t last() const { return last_; }
    uint64_t next() const { return next_; }
    // Returns the step numbers that are still needed, oldest first; for checkpoints.
    std::vector<uint64_t> recent(const Cut &cut) const {
        std::vector<uint64_t> numbers;
        if (cut.slices) return {last_};
        for (uint64_t i = count_ - std::min<uint64_t>(count_, cut.width()); i < count_; ++i) numbers.push_back(recent_[i % cut.width()]);
        return numbers;
    }
    void restore(const Cut &cut, uint64_t count, uint64_t next, const uint64_t *numbers) {
        count_ = count, next_ = next, last_ = numbers[0];
        if (cut.slices) return;
        recent_.assign(cut.width(), 0);
        const uint64_t from = count - std::min<uint64_t>(count, cut.width());
        for (uint64_t i = from; i < count; ++i) recent_[i % cut.width()] = last_ = numbers[i - from];
    }

private:
    void make(const Cut &cut, uint32_t forward, uint8_t terminated, std::vector<Made> *made) const {
        const uint16_t back = uint16_t(std::min<uint64_t>(next_, cut.lookback));
        Span span{recent_[(next_ - back) % cut.width()], back + forward, back, terminated, 0};
        made->push_back({span, recent_[next_ % cut.width()]});
    }

    std::vector<uint64_t> recent_;  // numbers of the last steps, as many as an item can have, indexed by their place in the episode
    uint64_t count_ = 0, next_ = 0, last_ = 0;  // steps so far; place of the next anchor; number of the last step
};

}  // namespace echo::replay
