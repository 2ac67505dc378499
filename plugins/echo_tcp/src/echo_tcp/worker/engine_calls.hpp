// The calls of the worker engine: samples, requests, weights, links, the end. Part of
// engine.hpp.
#pragma once

namespace echo_tcp::worker {

inline Engine::Engine(const std::vector<std::uint64_t>& leaf_bytes, const EngineConfig& config)
    : layout_(leaf_bytes, std::min(config.block_bytes, config.window_bytes / least_frames),
              config.original ? Layout::Order::sample_major : Layout::Order::leaf_major),
      config_(config),
      window_(layout_, config.window_bytes, config.window_samples),
      incoming_(config.original),
      buffer_(read_bytes),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    pieces_.reserve(leaf_bytes.size() + 2);
    // A signal must interrupt the wait of a thread that runs Python's handlers, so this thread blocks all signals.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    try {
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        ::close(wake_fd_);
        throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

inline void Engine::stop() {
    {
        Lock lock(mutex_);
        if (stop_) return;
        stop_ = closing_ = closed_ = true;
        lose("it was closed here");
        events_ |= Event::over;
        open_all();
    }
    wake();
    thread_.join();
    Lock lock(mutex_);
    // A caller may be in the middle of sendmsg, recv or poll. The link is down, so no further one begins. If the descriptor
    // were closed before that caller returns, it could name another file by the time it is used.
    ++turn_.waiting;
    turn_.changed.wait(lock, [&] { return !writing_ && !reading_ && !working_; });
    --turn_.waiting;
    if (fd_ >= 0) close_socket(std::exchange(fd_, -1));
    ::close(std::exchange(wake_fd_, -1));
}

inline void Engine::leave_to_parent() noexcept {
    // A thread that does not exist here may hold the mutex. No other thread runs, so the mutex is not
    // needed. The engine itself is left in memory for the same reason. The fork handler has closed the
    // socket; by now its number may belong to another file.
    ::close(wake_fd_);
}

inline Engine::Leftover Engine::leftover(std::uint64_t from) {
    Lock lock(mutex_);
    if (!stop_) return {};
    const Window::Stretch rows = window_.rows_from(window_.acked() + 1 + from);
    std::vector<iovec> pieces;
    layout_.gather(rows.block, rows.row, rows.count, pieces);
    if (rows.labels) pieces.push_back({rows.labels + rows.row * label_bytes, rows.count * label_bytes});
    Leftover out{rows.count, rows.labels != nullptr, {}};
    for (const iovec& piece : pieces) out.payload.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    return out;
}

// ------------------------------------------------------------------------------------- waiting

inline Status Engine::ended() const noexcept {
    return closed_ ? Status::closed : failed_ ? Status::failed : Status::wait;
}

// Waits until ready() or the end of the slice. `closing`: the wait goes on also while the engine closes.
template <class Ready>
Status Engine::await(Lock& lock, Gate& gate, std::uint64_t number, std::int64_t slice_ns,
                     bool closing, Ready ready) {
    auto over = [&] { return closed_ || failed_ || (closing_ && !closing); };
    if (!ready() && !over() && slice_ns > 0) {
        gate.least = gate.waiting ? std::min(gate.least, number) : number;
        ++gate.waiting;
        if (lingering_) wake();
        gate.changed.wait_for(lock, std::chrono::nanoseconds(slice_ns),
                              [&] { return ready() || over(); });
        --gate.waiting;
    }
    if (closing_ && !closing) return Status::closed;
    return ready() ? Status::ok : ended();
}

inline void Engine::open_all() {
    for (Gate* gate : {&room_, &flush_gate_, &ack_gate_, &answer_gate_, &held_gate_, &event_gate_,
                       &link_gate_}) {
        gate->open();
    }
}

inline void Engine::wake() const noexcept {
    std::uint64_t one = 1;
    [[maybe_unused]] ssize_t n = ::write(wake_fd_, &one, sizeof one);  // if the counter is full, the thread wakes as well
}

// ------------------------------------------------------------------------------------- samples

inline Status Engine::put_one(const void* const* leaves, const void* labels) {
    Lock lock(mutex_);
    if (closing_) return Status::closed;
    if (failed_) return Status::failed;
    if (appending_ || !window_.room(1)) return Status::wait;
    Window::Stretch rows = window_.free_rows();
    layout_.put(rows.block, rows.row, leaves);
    window_.append(1, labels);
    bool due = window_.full() || (flights_.empty() && !writing_);
    return due && link_ == Link::up && !blocked_ ? Status::due : Status::ok;
}

inline Status Engine::put(const void* const* leaves, std::uint64_t n, std::int64_t slice_ns,
                          bool again, const void* labels) {
    Lock lock(mutex_);
    auto ready = [&] { return !appending_ && window_.room(n); };
    if (!ready() && !closing_ && !failed_) {
        counters_.send_blocked += !again;
        std::uint64_t since = now_ns();
        // A full window is sent at once, even if its last block is not full.
        flush_to_ = window_.appended();
        write_due(lock, By::caller);
        Status status = Status::ok;
        if (!work_for_room(lock, slice_ns, ready)) status = await(lock, room_, n, slice_ns, false, ready);
        counters_.blocked_ns += now_ns() - since;
        if (status != Status::ok) return status;
    }
    if (closing_) return Status::closed;
    if (failed_) return Status::failed;
    window_.reserve(n);
    appending_ = true;
    for (std::uint64_t done = 0; done < n;) {
        Window::Stretch rows = window_.free_rows();
        auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(rows.count, n - done));
        bool large = count * layout_.sample_bytes() >= copy_without_lock;
        if (large) lock.unlock();
        layout_.put_many(rows.block, rows.row, leaves, done, count);
        if (large) lock.lock();
        window_.append(count, labels ? static_cast<const std::byte*>(labels) + done * label_bytes : nullptr);
        done += count;
        write_due(lock, By::caller);
    }
    appending_ = false;
    room_.open();
    return Status::ok;
}

inline void Engine::pump() {
    Lock lock(mutex_);
    write_due(lock, By::caller);
}

inline std::uint64_t Engine::appended() {
    Lock lock(mutex_);
    return window_.appended();
}

inline Status Engine::flushed(std::uint64_t number, std::int64_t slice_ns) {
    Lock lock(mutex_);
    flush_to_ = std::max(flush_to_, number);
    write_due(lock, By::caller);
    return await(lock, flush_gate_, number, slice_ns, true,
                 [&] { return std::max(written_, window_.acked()) >= number; });
}

inline Status Engine::acknowledged(std::uint64_t number, std::int64_t slice_ns) {
    Lock lock(mutex_);
    flush_to_ = std::max(flush_to_, number);
    write_due(lock, By::caller);
    return await(lock, ack_gate_, number, slice_ns, true,
                 [&] { return window_.acked() >= number; });
}

// ------------------------------------------------------------------------- requests and weights

inline std::uint64_t Engine::ask(std::string_view payload) {
    Lock lock(mutex_);
    std::uint64_t id = outbox_.ask(payload);
    write_due(lock, By::caller);
    return id;
}

inline Status Engine::answer(std::uint64_t id, std::int64_t slice_ns, std::string& payload) {
    Lock lock(mutex_);
    Status status = await(lock, answer_gate_, 0, slice_ns, false,
                          [&] { return outbox_.look(id) != Outbox::Answer::none; });
    if (status != Status::ok) return status;
    if (outbox_.look(id) == Outbox::Answer::lost) return Status::lost;
    payload = outbox_.take(id);
    return Status::ok;
}

inline void Engine::forget(std::uint64_t id) {
    Lock lock(mutex_);
    outbox_.forget(id);
}

inline void Engine::subscribe() {
    Lock lock(mutex_);
    if (subscribed_ || config_.original) return;
    subscribed_ = true;
    if (link_ == Link::down) return;  // attach() says it
    outbox_.push(Kind::subscribe, version_);
    write_due(lock, By::caller);
}

inline void Engine::waits_for_weights(bool begins) {
    Lock lock(mutex_);
    const bool waited = weights_waits_ != 0;
    weights_waits_ += begins ? 1 : -1;
    const bool waits = weights_waits_ != 0;
    if (waits == waited || link_ == Link::down) return;  // attach() says it
    outbox_.push(Kind::subscribe, version_, {}, waits ? flag_waiting : 0);
    write_due(lock, By::caller);
}

inline bool Engine::take_weights(WeightsBlob& out) {
    Lock lock(mutex_);
    if (!arrived_) return false;
    out = std::move(*arrived_);
    arrived_.reset();
    return true;
}

inline void Engine::hold(std::uint64_t number, std::uint64_t digest) {
    Lock lock(mutex_);
    version_ = number;
    ++holds_;
    held_gate_.open();
    if (link_ == Link::down) return;  // attach() says it
    outbox_.push(Kind::receipt, number,
                 {reinterpret_cast<const char*>(&digest), sizeof digest});
    write_due(lock, By::caller);
}

inline std::uint64_t Engine::holds() {
    Lock lock(mutex_);
    return holds_;
}

inline Status Engine::held(std::uint64_t holds_before, std::int64_t slice_ns) {
    Lock lock(mutex_);
    return await(lock, held_gate_, 0, slice_ns, false, [&] { return holds_ > holds_before; });
}

// --------------------------------------------------------------------------------------- links

inline bool Engine::attach(int fd, std::string_view rest, std::uint32_t beat_ms, bool restarted) {
    sockets_of_ours.add(fd);
    Lock lock(mutex_);
    if (closed_ || failed_ || parting_) {
        ::shutdown(fd, SHUT_RDWR);
        close_socket(fd);
        return false;
    }
    fd_ = fd;
    near_ = near(fd);
    beat_ms_ = beat_ms;
    heard_ns_.store(now_ns(), std::memory_order_relaxed);
    rest_.assign(rest);
    fresh_ = true;
    link_ = config_.original ? Link::up : Link::resuming;
    broken_format_ = broken_weights_ = false;
    ++counters_.links;
    if (restarted) {
        ++counters_.restarts;
        version_ = 0;
    }
    if (subscribed_) outbox_.push(Kind::subscribe, version_, {}, weights_waits_ != 0 ? flag_waiting : 0);
    wake();
    return true;
}

inline unsigned Engine::wait_event(std::int64_t slice_ns) {
    Lock lock(mutex_);
    event_gate_.waiting++;
    event_gate_.changed.wait_for(lock, std::chrono::nanoseconds(slice_ns),
                                 [&] { return events_ != Event::none; });
    event_gate_.waiting--;
    return std::exchange(events_, events_ & Event::over);
}

inline Status Engine::linked(std::int64_t slice_ns) {
    Lock lock(mutex_);
    return await(lock, link_gate_, 0, slice_ns, false, [&] { return link_ == Link::up; });
}

inline void Engine::fail(std::string_view why, bool broken_format) {
    Lock lock(mutex_);
    lose(why);
    if (failed_) return;
    why_ = why;
    failed_ = true;
    broken_format_ = broken_format;
    open_all();
}

inline std::uint64_t Engine::base() {
    Lock lock(mutex_);
    return window_.acked() + number_shift_;
}

// The link cannot be used any more. The I/O thread closes the socket when no thread writes to it.
inline void Engine::lose(std::string_view why) {
    if (link_ == Link::down) return;
    link_ = Link::down;
    why_ = why;
    ::shutdown(fd_, SHUT_RDWR);
    fd_is_lost_ = true;
    outbox_.link_lost();
    answer_gate_.open();
    link_gate_.open();
    wake();
}

// The peer broke the wire format. If it has never served this worker, a further link would end in the same way. Otherwise
// bytes may have been damaged on their way, and the thread that dials decides whether to try another link.
inline void Engine::break_off(std::string_view why, bool weights) {
    if (link_ == Link::down) return;
    lose(why);
    if (failed_ || parting_) return;
    broken_format_ = true;
    broken_weights_ = weights;
    failed_ = !served_;
    open_all();
}

// The learner has ended the job, so no further link is tried: nobody would answer.
inline void Engine::retire(std::string_view why) {
    lose(why);
    if (failed_ || parting_) return;
    failed_ = job_ended_ = true;
    open_all();
}

inline void Engine::end_job() {
    Lock lock(mutex_);
    retire("the learner has ended the job");
}

inline void Engine::damaged(std::string_view why) {
    Lock lock(mutex_);
    break_off(why, true);
}

// ------------------------------------------------------------------------------------- the end

inline void Engine::begin_close() {
    Lock lock(mutex_);
    closing_ = true;
    // A thread that copies samples in now was admitted before the close: its samples count and are delivered with the others.
    ++room_.waiting;
    room_.changed.wait(lock, [&] { return !appending_; });
    --room_.waiting;
    flush_to_ = window_.appended();
    write_due(lock, By::caller);
    open_all();
}

inline void Engine::part(std::string_view reason) {
    Lock lock(mutex_);
    closing_ = parting_ = true;
    events_ |= Event::over;
    open_all();
    if (link_ == Link::down) return;
    if (!config_.original) outbox_.push(Kind::bye, 0, reason);
    write_due(lock, By::caller);
    wake();
}

inline Status Engine::parted(std::int64_t slice_ns) {
    Lock lock(mutex_);
    return await(lock, link_gate_, 0, slice_ns, true, [&] { return link_ == Link::down; });
}

inline Status Engine::state() {
    Lock lock(mutex_);
    return closing_ ? Status::closed : failed_ ? Status::failed : Status::ok;
}

inline bool Engine::broken_weights() {
    Lock lock(mutex_);
    return broken_format_ && broken_weights_;
}

inline bool Engine::broken_format() {
    Lock lock(mutex_);
    return broken_format_;
}

inline bool Engine::job_ended() {
    Lock lock(mutex_);
    return job_ended_;
}

inline std::string Engine::why() {
    Lock lock(mutex_);
    return why_;
}

inline EngineStats Engine::stats() {
    Lock lock(mutex_);
    return {counters_,
            window_.appended(),
            window_.acked(),
            window_.bytes_used(),
            version_,
            holds_,
            rtt_.quantile(0.5),
            rtt_.quantile(0.99),
            link_ == Link::up};
}

}  // namespace echo_tcp::worker
