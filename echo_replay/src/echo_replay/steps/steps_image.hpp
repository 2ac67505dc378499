// Steps, for checkpoints: how its state is saved and restored.
#pragma once

namespace echo::replay {

inline void Steps::save(StepsImage *image) {
    std::lock_guard<std::mutex> lock(mutex_);
    image->head = head_, image->tail = tail_;
    image->steps = steps_, image->episodes = episodes_, image->truncated = truncated_;
    for (uint64_t number = head_; number < tail_; ++number) {
        // A step that is still being written has not been acknowledged, so its worker sends it again.
        const bool whole = (state(number) & kLive) != 0;
        image->states.push_back(whole ? state(number) : uint8_t(kHole));
        image->links.push_back(whole ? *link(number) : Link{Link::kNoKey, kNone, 0});
    }
    for (const auto &[id, slot] : open_) {
        const Stream &stream = streams_[slot];
        const std::vector<uint64_t> recent = stream.episode.recent(cut_);
        image->streams.insert(image->streams.end(), {id, stream.next_word, stream.run, stream.episode.count(), stream.episode.next(), recent.size()});
        image->streams.insert(image->streams.end(), recent.begin(), recent.end());
    }
    image->backlog.assign(backlog_.begin(), backlog_.end());
    std::lock_guard<std::mutex> items(items_->mutex_);
    for (uint64_t id = 0; id < slices_.runs(); ++id)
        if (const Slices::Run &run = slices_.run(id); run.count > run.eroded)
            image->runs.insert(image->runs.end(), {id, run.eroded, uint64_t(run.closed) | uint64_t(run.retired) << 1});
}

inline void Steps::restore(const StepsImage &image, uint64_t first) {
    std::lock_guard<std::mutex> lock(mutex_);
    head_ = std::max(first, image.head), tail_ = image.tail;
    oldest_.store(head_, std::memory_order_relaxed);
    steps_ = image.steps, episodes_ = image.episodes, truncated_ = image.truncated;
    for (uint64_t number = head_; number < tail_; ++number) {
        set_state(number, image.states[number - image.head]);
        if (state(number) & kLive) *link(number) = image.links[number - image.head];
    }
    for (size_t at = 0; at + 6 <= image.streams.size(); at += 6 + image.streams[at + 5]) {
        const uint64_t *const saved = &image.streams[at];
        Stream stream;
        stream.id = saved[0], stream.next_word = saved[1], stream.run = uint32_t(saved[2]);
        stream.episode.restore(cut_, saved[3], saved[4], saved + 6);
        if (stream.episode.last() < head_) continue;
        const uint32_t slot = uint32_t(streams_.size());
        link(stream.episode.last())->stream = slot;  // only the last step's index is ever used
        open_.emplace(stream.id, slot);
        streams_.push_back(std::move(stream));
    }
    backlog_.assign(image.backlog.begin(), image.backlog.end());
    if (cut_.slices) restore_runs(image);
    insert_items();
}

inline void Steps::restore_runs(const StepsImage &image) {
    std::lock_guard<std::mutex> lock(items_->mutex_);
    std::unordered_map<uint64_t, uint64_t> dropped;
    for (uint64_t number = image.head; number < head_; ++number)
        if (image.states[number - image.head] & kLive) ++dropped[image.links[number - image.head].key];
    for (size_t at = 0; at + 3 <= image.runs.size(); at += 3) {
        const uint64_t *const saved = &image.runs[at];
        slices_.restore(saved[0], saved[1] + dropped[saved[0]], saved[2] & 1, saved[2] & 2);
    }
    for (uint64_t number = head_; number < tail_; ++number)
        if (state(number) & kLive) slices_.add(uint32_t(link(number)->key), number);
    for (uint32_t row = 0; row < capacity_ && row < items_->capacity_; ++row) {
        if (!items_->generations_.live(row)) continue;
        const uint64_t id = reinterpret_cast<const Span *>(items_->rows_.at(0, row))->first;
        if (id < slices_.runs() && slices_.starts(slices_.run(id)) > 0) slices_.listed(id, items_->generations_.key_of(row), row);
        else gone_.push_back(row);
    }
    remove_gone();
    slices_.drop_empty();
    for (uint32_t id = 0; id < slices_.runs(); ++id) {
        Slices::Run &run = slices_.run(id);
        if (run.key != Slices::kNoKey || run.retired || slices_.starts(run) == 0) continue;
        run.waiting = true;
        waiting_.push_back(id);
    }
}

inline void Steps::copy_steps(uint32_t leaf, uint64_t number, uint64_t n, char *to) const {
    const uint64_t bytes = rows_.leaf_bytes(leaf);
    for (uint64_t done = 0; done < n;) {
        const uint64_t row = (number + done) % capacity_, run = std::min(n - done, capacity_ - row);
        copy_racing(to + done * bytes, rows_.at(leaf, row), run * bytes);
        done += run;
    }
}

inline void Steps::place_steps(uint32_t leaf, uint64_t number, uint64_t n, const char *from) {
    const uint64_t bytes = rows_.leaf_bytes(leaf);
    for (uint64_t i = 0; i < n; ++i) std::memcpy(rows_.at(leaf, (number + i) % capacity_), from + i * bytes, bytes);
}

}  // namespace echo::replay
