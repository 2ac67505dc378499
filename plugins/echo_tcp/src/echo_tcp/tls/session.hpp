// The traffic of a TLS socket after its handshake. One thread sends and one receives, without Python between the records.
//
// OpenSSL makes two system calls for each record of 16 KiB that it receives and one for each that it sends. With a buffering
// BIO between it and the socket there is one call for `buffered` bytes, at the price of a copy within the caches.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <string>

#include "libssl.hpp"

namespace echo_tcp {

enum class How { done, ended, interrupted, over, failed, refused };

// The outcome of an attempt. The two threads may fail for different reasons, so each gets its reason in the result.
struct Outcome {
    How how = How::done;
    int number = 0;           // errno, for `failed`
    const char* reason = "";  // for `refused`: a constant of libcrypto
};

class TlsSession {
public:
    // Expects that the handshake is done and that the socket does not block. Keeps `ssl` alive until this object is destroyed.
    TlsSession(const Libssl& lib, Ssl* ssl, int fd) : lib_(lib), ssl_(ssl), fd_(fd) {
        Bio* const buffer = lib_.bio_new(lib_.buffering());
        if (buffer == nullptr) throw std::bad_alloc();
        constexpr int set_size = 117, reading = 0, writing = 1;  // BIO_C_SET_BUFF_SIZE
        for (int way : {reading, writing})
            if (lib_.bio_int_ctrl(buffer, set_size, buffered, way) != 1) throw std::bad_alloc();
        Bio* const socket = lib_.rbio(ssl_);
        lib_.bio_up_ref(socket);  // set_bio drops the BIOs that `ssl` had
        lib_.bio_push(buffer, socket);
        lib_.set_bio(ssl_, buffer, buffer);
        lib_.up_ref(ssl_);
        buffer_ = buffer;
    }
    ~TlsSession() { lib_.release(ssl_); }
    TlsSession(const TlsSession&) = delete;
    TlsSession& operator=(const TlsSession&) = delete;

    // Encrypts `size` bytes; `done` says how many were taken if it is interrupted. `flush` sends the rest that lies in the buffer.
    Outcome send(const char* data, std::size_t size, std::size_t& done) {
        while (done < size) {
            const std::size_t piece = std::min(size - done, held);  // OpenSSL must be given the same piece again until it takes it
            std::size_t taken = 0;
            const Outcome outcome = patiently([&] { return lib_.write(ssl_, data + done, piece, &taken); });
            if (outcome.how != How::done) return outcome;
            done += taken;
        }
        return {};
    }

    Outcome flush() {
        constexpr int flush_now = 11, retry = 0x08;  // BIO_CTRL_FLUSH, BIO_FLAGS_SHOULD_RETRY
        for (;;) {
            {
                const Turn turn(*this);
                if (over_) return {How::over};
                if (lib_.bio_ctrl(buffer_, flush_now, 0, nullptr) > 0) return {};
                if (const int number = errno; !lib_.bio_flags(buffer_, retry)) return {How::failed, number};
            }
            if (const Outcome outcome = wait(POLLOUT); outcome.how != How::done) return outcome;
        }
    }

    // Waits for a record, then takes all that has come, up to `room` bytes.
    Outcome receive(char* into, std::size_t room, std::size_t& taken) {
        if (behind_.how != How::done) return behind_;
        const Outcome outcome = patiently([&] { return lib_.read(ssl_, into, room, &taken); });
        for (bool more = outcome.how == How::done; more && taken < room;) {
            const Turn turn(*this);  // released regularly, because the other thread has records to send
            for (const std::size_t until = std::min(room, taken + held); more && taken < until;) {
                std::size_t read = 0;
                short event = 0;
                const Outcome next = once([&] { return lib_.read(ssl_, into + taken, until - taken, &read); }, event);
                taken += read;
                more = next.how == How::done && event == 0;
                if (!more && event == 0) behind_ = next;  // OpenSSL reports an error only once
            }
        }
        return outcome;
    }

    // May be called from any thread, before the descriptor is closed. Returns when no thread is inside OpenSSL any more.
    void end() {
        const Turn turn(*this);
        over_ = true;
    }

private:
    static constexpr std::size_t held = 64 << 10;     // the lock is held for so many bytes at a time
    static constexpr long buffered = 64 << 10;        // in each direction: bytes of one system call, and memory of each connection

    // The lock of OpenSSL's state. It is handed over fairly: with a mutex alone, the sender would get it again and again.
    class Turn {
    public:
        explicit Turn(TlsSession& session) : session_(session) {
            session_.next_.lock();
            session_.inside_.lock();
            session_.next_.unlock();
        }
        ~Turn() { session_.inside_.unlock(); }

    private:
        TlsSession& session_;
    };

    template <class Attempt>
    Outcome patiently(Attempt attempt) {
        for (;;) {
            short event = 0;
            {
                const Turn turn(*this);
                if (const Outcome outcome = once(attempt, event); outcome.how != How::done || event == 0) return outcome;
            }
            if (const Outcome outcome = wait(event); outcome.how != How::done) return outcome;
        }
    }

    // If `event` is set, the caller waits for that event and then tries again.
    template <class Attempt>
    Outcome once(Attempt attempt, short& event) {
        constexpr int ssl_error = 1, want_read = 2, want_write = 3, system_call = 5, zero_return = 6;  // SSL_ERROR_...
        if (over_) return {How::over};
        lib_.forget_errors();
        errno = 0;
        const int result = attempt();
        if (result > 0) return {};
        const int number = errno;
        switch (lib_.error_of(ssl_, result)) {
            case want_read: event = POLLIN; return {};
            case want_write: event = POLLOUT; return {};
            case zero_return: return {How::ended};
            case system_call: return {number == 0 ? How::ended : How::failed, number};  // OpenSSL 1.1.1 reports an end without a farewell like this
            case ssl_error: return refusal();
            default: return {How::failed, number};
        }
    }

    Outcome refusal() {
        const unsigned long code = lib_.next_error();
        lib_.forget_errors();  // otherwise the ssl module would take these errors for its own
        constexpr unsigned long end_without_farewell = 294, reasons = 0x7FFFFF;
        if ((code & reasons) == end_without_farewell) return {How::ended};
        const char* const reason = lib_.reason_of(code);
        return {How::refused, 0, reason != nullptr ? reason : "unknown"};
    }

    Outcome wait(short event) {
        pollfd waiting{fd_, event, 0};
        if (::poll(&waiting, 1, -1) >= 0) return {};
        return {errno == EINTR ? How::interrupted : How::failed, errno};
    }

    const Libssl& lib_;
    Ssl* const ssl_;
    const int fd_;
    Bio* buffer_ = nullptr;
    std::mutex next_, inside_;
    bool over_ = false;
    Outcome behind_;  // the event that followed the records received last
};

}  // namespace echo_tcp
