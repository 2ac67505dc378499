// Steps, for tables whose items are episodes: slices of them are chosen when they are sampled (slices.hpp).
#pragma once

namespace echo::replay {

// Steps::evict for an episode whose slices are items.
inline bool Steps::erode(uint64_t number, uint8_t was) {
    const Link *const step = link(number);
    Slices::Run &run = slices_.run(step->key);
    const bool listed = run.key != Slices::kNoKey;
    if (listed && holds(run.key) && items_->leaving(run.row)) return false;
    if (listed && !holds(run.key)) slices_.unlisted(run, true);
    const bool last = step->next == kNone;
    if (last && ends_of(was) == kGoesOn) lose_stream(step->stream);
    slices_.erode(uint32_t(step->key), last ? 0 : number_of(step->next));
    if (run.key != Slices::kNoKey && slices_.starts(run) == 0) {
        gone_.push_back(run.row);
        slices_.unlisted(run, false);
    }
    slices_.tidy(uint32_t(step->key));
    set_state(number, kFree);
    return true;
}

// Episodes that now have a slice become items. Their rows say which run they are.
inline void Steps::insert_runs() {
    if (waiting_.empty()) return;
    std::lock_guard<std::mutex> lock(items_->mutex_);
    if (items_->detached_) return waiting_.clear();
    while (!waiting_.empty()) {
        const uint32_t id = waiting_.back();
        if (Slices::Run &run = slices_.run(id); run.waiting && slices_.starts(run) > 0) {
            echo_run item;
            if (items_->claim_locked(1, &item) != ECHO_OK) return;
            const Span span{id, 0, 0, 0, 0};
            copy_racing_out(items_->rows_.at(0, item.slot), reinterpret_cast<const char *>(&span), sizeof span);
            items_->commit_locked(item, nullptr, Table::Known{});
            slices_.listed(id, items_->generations_.key_of(item.slot), item.slot);
        }
        slices_.run(id).waiting = false;
        waiting_.pop_back();
    }
}

inline void Steps::choose(Batch *batch, uint32_t i, bitgen_t *random) {
    if (!cut_.slices) return;
    double probability = batch->probabilities[i];
    uint64_t u = 0;
    bool chosen = false;
    while (random && cut_.by_steps && slices_.weights().total() > 0 && !chosen) {
        const uint64_t total = slices_.weights().total();
        u = std::min(uint64_t(random->next_double(random->state) * double(total)), total - 1);
        batch->rows[i] = slices_.weights().find(&u);
        probability = 1.0 / double(total);
        Slices::Run &run = slices_.run(slices_.owner(batch->rows[i]));
        chosen = run.key != Slices::kNoKey && holds(run.key) && run.row == batch->rows[i];
        if (!chosen) slices_.unlisted(run, true);  // its item was deleted by key
    }
    const Slices::Run &run = slices_.run(reinterpret_cast<const Span *>(items_->rows_.at(0, batch->rows[i]))->first);
    const uint64_t starts = slices_.starts(run);
    if (random && !chosen) {
        u = std::min(uint64_t(random->next_double(random->state) * double(starts)), starts - 1);
        probability /= double(starts);
    }
    if (random) batch->probabilities[i] = probability;
    const auto link_of = [this](uint64_t number) { return link(number); };
    const auto number_at = [this](uint32_t row) { return number_of(row); };
    windows_.span(batch, i) = slices_.slice(run, u, cut_.forward, link_of, number_at);
}

}  // namespace echo::replay
