// The worker engine's traffic: when it writes which messages, and the I/O thread. Part of engine.hpp.
#pragma once

namespace echo_tcp::worker {

// ------------------------------------------------------------------------------------- writing

// Offers the composed message to the socket, without the mutex. False if the socket takes nothing; `error` says why.
inline bool Engine::offer(Lock& lock, int& error) {
    msghdr message{};
    message.msg_iov = &pieces_[next_piece_];
    message.msg_iovlen = std::min<std::size_t>(pieces_.size() - next_piece_, IOV_MAX);
    const int fd = fd_;
    lock.unlock();
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    error = errno;
    lock.lock();
    if (n >= 0) wrote(static_cast<std::size_t>(n));
    return n >= 0;
}

// Writes until nothing is due any more, the socket is full, or the link is gone.
inline void Engine::write_due(Lock& lock, By by) {
    if (by == By::caller) await_turn(lock);
    if (writing_ || blocked_ || link_ == Link::down) return;
    writing_ = true;
    while (link_ != Link::down && (composed() || compose(by))) {
        int error;
        if (offer(lock, error)) {
            if (by == By::caller && in_full_flow_) read_now(lock);
        } else if (error == EAGAIN) {
            if (by == By::caller && wait_writable(lock)) continue;
            blocked_ = true;
            if (by == By::caller) wake();
            break;
        } else if (error != EINTR) {
            lose(std::strerror(error));
        }
        if (turn_.waiting && !composed()) break;
    }
    writing_ = false;
    turn_.open();
    if (fd_is_lost_) {
        wake();  // the I/O thread closes it now
    } else if (parting_ && !said_all_ && !composed() && outbox_.empty()) {
        said_all_ = true;
        ::shutdown(fd_, SHUT_WR);
    }
}

// With a full frame, a caller waits until it may write itself. If it went on to fill the window while another
// thread writes, the samples would only leave the caches before they are sent.
inline void Engine::await_turn(Lock& lock) {
    if (!writing_ || !window_.full()) return;
    ++turn_.waiting;
    turn_.changed.wait_for(lock, std::chrono::milliseconds(patience_ms), [&] {
        return !writing_ || blocked_ || link_ == Link::down || !window_.full();
    });
    --turn_.waiting;
}

// A learner that reads makes room within moments. A wait for it here, instead of leaving the rest to the
// I/O thread, saves two context switches. It also keeps the caller from filling memory that has left the
// caches long before it is sent.
inline bool Engine::wait_writable(Lock& lock) {
    pollfd socket{fd_, POLLOUT, 0};
    lock.unlock();
    const int n = ::poll(&socket, 1, patience_ms);
    lock.lock();
    return n > 0;
}

// Reads the bytes that have arrived, unless another thread reads already.
inline void Engine::read_now(Lock& lock) {
    if (reading_ || link_ == Link::down || fresh_) return;
    reading_ = true;
    const int fd = fd_;
    lock.unlock();
    std::string gone;
    const char* wrong = read_some(fd, gone);
    lock.lock();
    reading_ = false;
    turn_.open();
    counters_.bytes_received += std::exchange(received_, 0);
    if (link_ != Link::down) {
        const bool unread = wrong != nullptr;
        if (!unread) wrong = digest();
        if (wrong) {
            break_off(wrong, unread && incoming_.in_weights());
        } else if (!gone.empty()) {
            lose(gone);
        }
    }
    if (fd_is_lost_) wake();  // the I/O thread closes it now
}

// A caller whose sample finds no room does the I/O thread's work while it waits. Room comes with an
// acknowledgement, and a wake-up by another thread would cost two context switches. False if the caller
// should leave the rest to the I/O thread: another caller does this work already, or the learner takes long.
template <class Ready>
bool Engine::work_for_room(Lock& lock, std::int64_t slice_ns, Ready ready) {
    if (slice_ns < patience_ms * 1'000'000) return ready();
    const std::uint64_t until = now_ns() + patience_ms * 1'000'000;
    while (!ready()) {
        if (appending_ || working_ || reading_ || writing_ || closing_ || failed_) return false;
        if (link_ != Link::up || fresh_) return false;
        pollfd socket{fd_, static_cast<short>(blocked_ ? POLLIN | POLLOUT : POLLIN), 0};
        working_ = true;
        lock.unlock();
        const int n = ::poll(&socket, 1, patience_ms);
        lock.lock();
        working_ = false;
        turn_.open();
        if (n <= 0) return false;
        if (socket.revents & POLLOUT) blocked_ = false;
        if (socket.revents & (POLLIN | POLLERR | POLLHUP)) read_now(lock);
        write_due(lock, By::caller);
        if (now_ns() > until) return ready();
    }
    return true;
}

// Chooses the next message; false if no message is due.
inline bool Engine::compose(By by) {
    pieces_.clear();
    next_piece_ = 0;
    piece_is_data_ = false;
    if (!outbox_.empty() && !said_all_) {
        message_ = outbox_.pop();
        pieces_.push_back({message_.data(), message_.size()});
        return true;
    }
    if (link_ != Link::up || parting_) return false;
    Window::Stretch rows = window_.next();
    // The I/O thread writes right after an acknowledgement. If one more frame is still in flight then,
    // the learner has something to read while this one travels.
    const std::size_t most_flights = by == By::io_thread ? 1 : 0;
    bool due = rows.to_end || flights_.size() <= most_flights || flush_to_ > window_.sent();
    if (!rows.count || !due) return false;
    rows.count = std::min(rows.count, most_rows_);
    if (!config_.original) {
        header_ = make_header(Kind::data, rows.first + number_shift_,
                              rows.count * (layout_.sample_bytes() + (rows.labels ? label_bytes : 0)), rows.count,
                              rows.labels ? flag_labels : 0);
        pieces_.push_back({&header_, sizeof header_});
    }
    layout_.gather(rows.block, rows.row, rows.count, pieces_);
    if (rows.labels) pieces_.push_back({rows.labels + rows.row * label_bytes, rows.count * label_bytes});
    piece_is_data_ = true;
    pinned_ = rows.block;
    window_.advance(rows.count);
    flights_.push_back({window_.sent(), now_ns()});
    ++counters_.frames_sent;
    return true;
}

// The socket took n bytes more of the message.
inline void Engine::wrote(std::size_t n) {
    counters_.bytes_sent += n;
    for (; composed() && n >= pieces_[next_piece_].iov_len; ++next_piece_) {
        n -= pieces_[next_piece_].iov_len;
    }
    if (composed()) {
        iovec& piece = pieces_[next_piece_];
        piece.iov_base = static_cast<std::byte*>(piece.iov_base) + n;
        piece.iov_len -= n;
        return;
    }
    if (!piece_is_data_) return;
    written_ = window_.sent();
    pinned_ = nullptr;
    flush_gate_.reached(written_);
    // Its samples may have been acknowledged before sendmsg returned.
    if (window_.reap(nullptr, appending_)) offer_room();
}

inline void Engine::offer_room() {
    if (room_.waiting && window_.room(room_.least)) room_.open();
}

// --------------------------------------------------------------------------------- the I/O thread

inline bool Engine::anybody_waits() const noexcept {
    return room_.waiting || ack_gate_.waiting || flush_gate_.waiting || answer_gate_.waiting ||
           held_gate_.waiting;
}

inline void Engine::run() {
    ::pthread_setname_np(::pthread_self(), "echo-tcp");
    Lock lock(mutex_);
    while (!stop_) {
        if (fd_is_lost_ && !writing_ && !reading_) end_link();
        if (fresh_) {
            begin_link();  // write_due() below then writes messages that waited for a link, such as SUBSCRIBE
        }
        if (callers_do_it()) {
            lingering_ = true;
            lock.unlock();
            pollfd woken{wake_fd_, POLLIN, 0};
            const timespec time{0, linger_ns};
            ::ppoll(&woken, 1, &time, nullptr);
            lock.lock();
            lingering_ = false;
            if (!woken.revents) continue;
        }
        // While callers did this work, this thread left it to them to send what an acknowledgement made due. Now they have
        // stopped, and perhaps no other thread will come to send the rest.
        write_due(lock, By::io_thread);
        const int fd = link_ == Link::down ? -1 : fd_;
        const short wanted = blocked_ ? POLLIN | POLLOUT : POLLIN;
        pollfd polled[2] = {{wake_fd_, POLLIN, 0}, {fd, wanted, 0}};
        lock.unlock();
        // Callers send without waking this thread, so it wakes regularly to send a sign of life and to look for one.
        const int wait_ms = fd >= 0 ? static_cast<int>(std::min<std::uint64_t>(beat_ms_ / 2, config_.silence_ms / 4) + 1) : -1;
        const int n = ::poll(polled, 2, wait_ms);
        if (polled[0].revents) {
            std::uint64_t count;
            [[maybe_unused]] ssize_t got = ::read(wake_fd_, &count, sizeof count);
        }
        bool fell_silent = n == 0 && silent(fd, config_.silence_ms);
        lock.lock();
        if (n == 0 && link_ != Link::down && !config_.original) {
            fell_silent = fell_silent || now_ns() - heard_ns_.load(std::memory_order_relaxed) > config_.silence_ms * 1'000'000ull;
            if (counters_.bytes_sent == std::exchange(bytes_sent_seen_, counters_.bytes_sent) && link_ == Link::up && outbox_.empty() && !composed())
                outbox_.push(Kind::ping, 0, {}, flag_reply);  // a sign of life, which needs no answer
        }
        if (link_ == Link::down || fd < 0) continue;
        const short happened = n > 0 ? polled[1].revents : 0;
        if (happened & POLLOUT) blocked_ = false;
        if (happened & (POLLIN | POLLHUP | POLLERR)) read_now(lock);
        if (fell_silent) lose("it fell silent");
        if (!callers_do_it(false)) write_due(lock, By::io_thread);
    }
}

// True if the link is in full flow: then callers come all the time, write themselves, and read the acknowledgements
// when they do. If this thread did it, it would be woken for each acknowledgement. The callers would fill the window
// meanwhile, and every byte of it would have left the caches when its turn comes. This thread finds the rest
// that callers leave behind within linger_ns of their last sample.
inline bool Engine::callers_do_it(bool look) noexcept {
    const std::uint64_t appended = window_.appended();
    const bool active = appended != appended_seen_ || working_;
    if (look) appended_seen_ = appended;
    return in_full_flow_ && active && link_ == Link::up && !(blocked_ && !working_) && outbox_.empty() &&
           !anybody_waits() && !fd_is_lost_;
}

inline void Engine::begin_link() {
    fresh_ = false;
    incoming_.restart();
    const char* wrong = incoming_.feed(reinterpret_cast<const std::byte*>(rest_.data()),
                                       rest_.size());
    if (!wrong) wrong = digest();
    if (wrong) break_off(wrong, incoming_.in_weights());
}

inline void Engine::end_link() {
    close_socket(std::exchange(fd_, -1));
    fd_is_lost_ = fresh_ = blocked_ = false;
    pieces_.clear();
    next_piece_ = 0;
    pinned_ = nullptr;
    flights_.clear();
    if (window_.reap(nullptr, appending_)) offer_room();
    events_ |= failed_ ? Event::over : Event::link_lost;
    event_gate_.open();
}

// Runs without the mutex, because no other thread touches incoming_. `gone` says why the link has ended, if it has.
inline const char* Engine::read_some(int fd, std::string& gone) {
    for (int round = 0; round < 4; ++round) {
        ssize_t n = ::recv(fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
        if (n == 0) gone = "it closed the connection";
        if (n < 0 && errno != EAGAIN && errno != EINTR) gone = std::strerror(errno);
        if (n <= 0) break;
        auto got = static_cast<std::size_t>(n);
        received_ += got;
        heard_ns_.store(now_ns(), std::memory_order_relaxed);
        if (const char* wrong = incoming_.feed(buffer_.data(), got)) return wrong;
        if (got < buffer_.size()) break;
    }
    return nullptr;
}

// Acts on the messages that have been read. Returns nullptr, or a text that says how the learner broke the format.
inline const char* Engine::digest() {
    const char* wrong = nullptr;
    if (incoming_.ack) {
        window_.crowd(near_ ? incoming_.crowd : 0);
        wrong = link_ == Link::resuming ? resume(*incoming_.ack) : acknowledge(*incoming_.ack);
    }
    for (Incoming::Message& message : incoming_.messages) {
        const bool reply = message.header.flags & flag_reply;
        if (message.header.kind == static_cast<std::uint8_t>(Kind::ping)) {
            if (!reply) outbox_.push(Kind::ping, message.header.seq, {}, flag_reply);
        } else if (reply) {
            outbox_.answered(message.header.seq, std::move(message.payload));
            ++counters_.answers;
            answer_gate_.open();
        } else {
            outbox_.push(Kind::control, message.header.seq, refused_request(), flag_reply);
        }
    }
    if (incoming_.weights) {
        arrived_ = std::move(incoming_.weights);
        events_ |= Event::weights_here;
        event_gate_.open();
    }
    if (incoming_.bye && !wrong) {
        if (incoming_.job_ended) {
            retire(*incoming_.bye);
        } else {
            lose("it ended the session: " + *incoming_.bye);
        }
    }
    incoming_.taken();
    return wrong;
}

inline std::string Engine::refused_request() {
    const std::string_view json = R"({"error":"workers answer no requests","type":"EchoError"})";
    const auto n = static_cast<std::uint32_t>(json.size());
    return std::string(reinterpret_cast<const char*>(&n), sizeof n).append(json);
}

// Handles the first ACK of a link: it says what the learner has, and so which sample this worker sends next.
inline const char* Engine::resume(std::uint64_t number) {
    if (number < number_shift_ + window_.acked()) return "it forgot samples it had acknowledged";
    number -= number_shift_;
    if (number > window_.reached()) {
        // The learner has samples of this client id that this engine never sent, so its numbers begin after them.
        number_shift_ += number - window_.reached();
        number = window_.reached();
    }
    link_ = Link::up;
    served_ = true;
    link_gate_.open();
    window_.resume(number, appending_);
    written_ = number;
    offer_room();
    ack_gate_.reached(number);
    flush_gate_.reached(number);
    return nullptr;
}

inline const char* Engine::acknowledge(std::uint64_t number) {
    number = config_.original ? window_.acked() + number : number - number_shift_;
    if (number < window_.acked()) return "it took an acknowledgement back";
    if (number > window_.sent()) return "it acknowledged samples that were not sent";
    const std::uint64_t now = flights_.empty() ? 0 : now_ns();
    std::uint64_t took = 0;  // round-trip time of the newest acknowledged frame
    while (!flights_.empty() && flights_.front().last <= number) {
        took = now - flights_.front().since_ns;
        rtt_.record(took);
        flights_.pop_front();
    }
    // If the learner is slow, large frames gain nothing, and the store's space is shared among the workers frame by
    // frame. So frames grow only as long as acknowledgements come quickly.
    if (took > unhurried_ns) {
        most_rows_ = few_rows();
    } else if (took != 0 && took < prompt_ns) {
        most_rows_ = std::min(2 * most_rows_, layout_.capacity());
    }
    in_full_flow_ = number - window_.acked() >= full_flow_samples ||
                    (number - window_.acked()) * layout_.sample_bytes() >= full_flow_bytes;
    window_.acknowledge(number, pinned_, appending_);
    offer_room();
    ack_gate_.reached(number);
    flush_gate_.reached(number);
    return nullptr;
}

}  // namespace echo_tcp::worker
