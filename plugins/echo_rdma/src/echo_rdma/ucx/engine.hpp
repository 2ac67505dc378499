// A UCX worker and the thread that drives it, without Python: endpoints, their streams, heartbeats, and how they end.
//
// Everything of UCX happens under `lock_`, on the thread or on a caller's. The thread spins for a moment after there was something to do,
// then arms UCX's descriptor and sleeps on that and on its own eventfd, which callers write when they leave it work.
#pragma once

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <memory>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include "line.hpp"
#include "peer.hpp"

namespace echo_rdma {

struct Times {
    int64_t spin = 50'000;                // ns without work until the thread sleeps
    int64_t beat = 1'000'000'000;         // ns between signs of life
    int64_t silence = 10'000'000'000;     // ns without any until the other end is given up
    int64_t linger = 1'000'000'000;       // ns for what was sent before the end to arrive
};

class Engine {
  public:
    Engine(ucp::Context *context, const Times &times) : times_(times), context_(context) {
        ucp::WorkerParams params{};
        params.mask = ucp::WorkerParams::THREAD_MODE;
        params.thread_mode = ucp::THREAD_SERIALIZED;
        check(ucx_.worker_create(context, &params, &worker_), "cannot make a UCX worker");
        ucp::MessageHandlerParam handler{};
        handler.mask = handler.ID | handler.FLAGS | handler.CALLBACK | handler.ARG;
        handler.id = MESSAGE_ID;
        handler.flags = handler.WHOLE;
        handler.callback = &Engine::on_message;
        handler.arg = this;
        try {
            check(ucx_.worker_set_am_recv_handler(worker_, &handler), "cannot take active messages");
            check(ucx_.worker_get_efd(worker_, &ucx_fd_), "cannot wait for UCX");
            bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
            if (bell_ < 0) throw std::runtime_error("cannot make an eventfd: " + std::string(strerror(errno)));
            thread_ = std::thread(&Engine::run, this);
        } catch (...) {
            ucx_.worker_destroy(worker_);
            if (bell_ >= 0) close(bell_);
            throw;
        }
    }

    ~Engine() { stop(); }

    // ---------------------------------------------------------------------------------------------- the two ways to get a connection

    // The port that was taken.
    int listen(const sockaddr *where, socklen_t length) {
        Visit visit(*this);
        ucp::ListenerParams params{};
        params.mask = params.SOCK_ADDR | params.CONN_HANDLER;
        params.where = {where, length};
        params.connection = {&Engine::on_request, this};
        check(ucx_.listener_create(worker_, &params, &listener_), "");
        ucp::ListenerAttr attr{};
        attr.mask = attr.SOCKADDR;
        check(ucx_.listener_query(listener_, &attr), "cannot ask for the port");
        return ntohs(reinterpret_cast<sockaddr_in *>(&attr.address)->sin_port); // at the same place in an IPv6 address
    }

    std::shared_ptr<Peer> connect(const sockaddr *where, socklen_t length) {
        Visit visit(*this);
        ucp::EndpointParams params{};
        params.mask = params.SOCK_ADDR | params.FLAGS;
        params.flags = params.CLIENT_SERVER;
        params.where = {where, length};
        return open(params, true);
    }

    // The next client; nullptr once no more are taken, or it `is_stuck`.
    std::shared_ptr<Peer> accept() {
        std::unique_lock hold(accept_lock_);
        accept_changed_.wait(hold, [&] { return deaf_ || stuck_ || !accepted_.empty(); });
        if (stuck_ || accepted_.empty()) return nullptr;
        auto peer = std::move(accepted_.front());
        accepted_.pop_front();
        return peer;
    }

    // Nothing arrives here any longer: see watch.hpp. Another engine has to take its place.
    bool is_stuck() const { return stuck_; }

    // No more clients; those that wait to be accepted are let go. The address is free again.
    void deafen() {
        {
            Visit visit(*this);
            for (auto *request : requests_) ucx_.listener_reject(listener_, request);
            requests_.clear();
            if (listener_ != nullptr) ucx_.listener_destroy(listener_);
            listener_ = nullptr;
        }
        std::deque<std::shared_ptr<Peer>> left;
        {
            std::lock_guard hold(accept_lock_);
            deaf_ = true;
            left.swap(accepted_);
            accept_changed_.notify_all();
        }
        for (auto &peer : left) {
            leave(*peer);
            release(*peer);
        }
    }

    // ------------------------------------------------------------------------------------------------------ what callers do with one

    // Send one piece (at most PIECE_BYTES). False: the connection is over, and why.
    bool send(Peer &peer, Memory data, size_t size, bool whole, std::string &why) {
        if (!peer.inbox.wait_credit(size, why)) return false;
        Visit visit(*this);
        if (peer.failed || peer.stage != Stage::OPEN) {
            why = "the connection is closed";
            return false;
        }
        post(peer, Head{.kind = STREAM, .flags = whole ? WHOLE : uint8_t(0), .number = peer.pieces++}, std::move(data), size);
        return true;
    }

    // The reader has taken something: the other end may send as much again.
    void report_read(Peer &peer) {
        if (uint64_t read = peer.inbox.to_report()) {
            Visit visit(*this);
            if (!peer.failed && peer.stage == Stage::OPEN) post(peer, Head{.kind = CREDIT, .number = read});
        }
    }

    // End the stream both ways: nothing more is read here, what was sent still arrives.
    void leave(Peer &peer) {
        peer.inbox.stop("");
        Visit visit(*this);
        if (peer.stage != Stage::OPEN) return;
        peer.stage = Stage::LEAVING;
        peer.leave_until = clock_ns() + times_.linger;
        if (!peer.failed) post(peer, Head{.kind = END, .number = peer.pieces});
        changed_ = true;
    }

    void release(Peer &peer) {
        Visit visit(*this);
        peer.released = true;
        changed_ = true;
    }

    void attach(Peer &peer, std::shared_ptr<Flow> flow) {
        Visit visit(*this);
        peer.flow = std::move(flow);
    }

    // Which transports carry it, as "transport/device" separated by commas.
    std::string lanes(Peer &peer) {
        Visit visit(*this);
        return lanes_of(peer);
    }

    // The same, lock held.
    std::string lanes_of(Peer &peer) const {
        if (peer.failed || peer.ep == nullptr) return "";
        ucp::TransportEntry entries[32] = {};
        ucp::EndpointAttr attr{};
        attr.mask = attr.TRANSPORTS;
        attr.transports = {entries, 32, sizeof(entries[0])};
        if (ucx_.ep_query(peer.ep, &attr) != ucp::OK) return "";
        std::string text;
        for (unsigned i = 0; i < std::min(attr.transports.count, 32u) && entries[i].transport != nullptr; i++) // none before UCX 1.14
            text += (i ? "," : "") + std::string(entries[i].transport) + "/" + entries[i].device;
        return text;
    }

    // Every connection ends, then the thread and the worker. Takes as long as `Times::linger`; a stopped engine is of no more use.
    void stop() {
        if (!thread_.joinable()) return;
        deafen();
        {
            Visit visit(*this);
            for (auto &peer : peers_) {
                peer->inbox.stop("");
                if (peer->stage == Stage::OPEN) {
                    peer->stage = Stage::LEAVING;
                    peer->leave_until = 0;
                }
                peer->released = true;
            }
            changed_ = stopping_ = true;
        }
        ring();
        thread_.join();
        ucx_.worker_destroy(worker_);
        close(bell_);
    }

    // -------------------------------------------------------------------------------------------------------- for flows, lock held

    struct Outgoing {
        Engine *engine;
        Peer *peer;
        Head head;
        Memory data;
        void (*done)(void *);
        void *argument;
    };

    // Send a message that owns its payload.
    void post(Peer &peer, const Head &head, Memory data = nullptr, size_t size = 0) {
        const char *at = data.get();
        post(peer, new Outgoing{this, &peer, head, std::move(data), nullptr, nullptr}, at, size);
    }

    // Send a message whose payload must stay until `done(argument)`, which is called in any case.
    void post(Peer &peer, const Head &head, const void *data, size_t size, void (*done)(void *), void *argument) {
        post(peer, new Outgoing{this, &peer, head, nullptr, done, argument}, data, size);
    }

    ucp::Worker *worker() const { return worker_; }
    ucp::Context *context() const { return context_; }
    int64_t now() const { return now_; }
    bool quiet() const { return quiet_; } // nothing is arriving just now
    Line line;                            // for space in stores that are full

    // The peer broke the protocol, or there is no memory for it.
    void give_up(Peer &peer, const std::string &why) {
        if (peer.stage == Stage::GONE) return;
        peer.fail(why);
        changed_ = true;
    }

    // Wake the thread if it sleeps. From any thread, with or without the lock.
    void ring() {
        // SLEEP: run() sets it and then looks for work once more, under the locks under which work is left. So either it sees that, or we it.
        if (sleeping_.load(std::memory_order_relaxed) && sleeping_.exchange(false, std::memory_order_relaxed)) {
            uint64_t one = 1;
            (void)!write(bell_, &one, sizeof one);
        }
    }

    // Holds the lock for a caller; the spinning thread steps back for it.
    class Visit {
      public:
        explicit Visit(Engine &engine) : engine_(engine) {
            engine_.visitors_.fetch_add(1, std::memory_order_relaxed);
            engine_.lock_.lock();
        }
        ~Visit() {
            engine_.visitors_.fetch_sub(1, std::memory_order_relaxed);
            engine_.lock_.unlock();
            engine_.ring();
        }
        Visit(const Visit &) = delete;

      private:
        Engine &engine_;
    };

  private:
    void check(ucp::status status, const std::string &what) {
        if (status != ucp::OK) throw std::runtime_error(what + (what.empty() ? "" : ": ") + text_of(status));
    }

    std::shared_ptr<Peer> open(ucp::EndpointParams &params, bool dialled) {
        auto peer = std::make_shared<Peer>(this);
        params.mask |= params.ERROR_MODE | params.ERROR_HANDLER;
        params.error_mode = ucp::ERROR_MODE_PEER;
        params.error = {&Engine::on_error, peer.get()};
        peer->dialled = dialled;
        peer->heard = peer->said = clock_ns();
        check(ucx_.ep_create(worker_, &params, &peer->ep), "");
        by_endpoint_[peer->ep] = peer.get();
        peers_.push_back(peer);
        return peer;
    }

    void post(Peer &peer, Outgoing *outgoing, const void *data, size_t size) {
        ucp::RequestParam param{};
        param.mask = param.CALLBACK | param.USER_DATA | param.FLAGS;
        param.flags = peer.dialled ? uint32_t(param.SEND_REPLY) : 0; // the listener knows by it who speaks
        // Parts are sized for the lanes, whatever UCX makes of their size: before 1.15 it would offer those of 64 KB by rendezvous over TCP.
        if (outgoing->head.kind == PART || outgoing->head.kind == KEY) param.flags |= param.SEND_EAGER;
        // By itself UCX sends a few bytes over TCP from where they lie, which takes longer than to copy them.
        if (size <= COPIED_BYTES) param.mask |= param.FAST_COMPLETION;
        param.callback.send = &Engine::on_sent;
        param.user_data = outgoing;
        peer.said = now_;
        peer.bytes_out += size + sizeof(Head);
        peer.in_flight++;
        void *answer = ucx_.am_send_nbx(peer.ep, MESSAGE_ID, &outgoing->head, sizeof(Head), data, size, &param);
        if (ucp::pending(answer)) return;
        if (ucp::failed(answer)) give_up(peer, text_of(ucp::status_of(answer)));
        sent(outgoing);
    }

    static void sent(Outgoing *outgoing) {
        outgoing->peer->in_flight--;
        if (outgoing->done != nullptr) outgoing->done(outgoing->argument);
        delete outgoing;
    }

    static void on_sent(void *request, ucp::status, void *argument) {
        // A failed one is the endpoint's failure, which on_error hears of.
        auto *outgoing = static_cast<Outgoing *>(argument);
        outgoing->engine->changed_ = true;
        sent(outgoing);
        library().request_free(request);
    }

    static void on_error(void *argument, ucp::Endpoint *, ucp::status status) {
        // The peer outlives its endpoint: it is dropped only after the forced close has completed.
        auto *peer = static_cast<Peer *>(argument);
        peer->engine->give_up(*peer, text_of(status));
    }

    static void on_request(ucp::ConnRequest *request, void *argument) {
        auto *engine = static_cast<Engine *>(argument);
        engine->requests_.push_back(request); // endpoints are made outside of UCX's callbacks
        engine->changed_ = true;
    }

    // What arrives: arrival.hpp.
    struct Rendezvous { // of a piece of the stream
        std::shared_ptr<Peer> peer;
        uint64_t index;
        Piece piece;
        Engine *engine;
    };
    static ucp::status on_message(void *argument, const void *header, size_t header_length, void *data, size_t length, const ucp::MessageParam *param);
    Peer *sender(const ucp::MessageParam *param);
    void late(Peer &peer, const void *header);
    void small(Peer &peer, const Head &head, std::string &broken);
    ucp::status stream(Peer &peer, const Head &head, void *data, size_t length, uint64_t attributes, std::string &broken);
    bool begin_rendezvous();
    static void on_piece(void *request, ucp::status status, size_t, void *argument);
    static void finish(Rendezvous *wanted, ucp::status status);

    // The thread: loop.hpp.
    void run();
    bool progress();
    bool turn();
    int64_t next_look() const;
    void take_requests();
    static std::string text_of(const sockaddr *address);
    static std::string text_of(ucp::status status) { return echo_rdma::text_of(status); }
    void look_after(Peer &peer);
    void begin_close(Peer &peer);
    // The queue in shared memory: watch.hpp.
    bool is_near(Peer &peer) const;
    bool stands_still();
    void give_all_up();
    static void on_closed(void *request, ucp::status, void *argument);

    const Library &ucx_ = library();
    const Times times_;
    ucp::Context *const context_;
    ucp::Worker *worker_ = nullptr;
    ucp::Listener *listener_ = nullptr;
    int ucx_fd_ = -1, bell_ = -1;
    std::mutex lock_;
    std::atomic<int> visitors_{0};
    std::atomic<bool> sleeping_{false};
    int64_t now_ = clock_ns(), look_at_ = 0, looked_at_ = now_, awake_since_ = now_;
    bool changed_ = false, stopping_ = false, quiet_ = true;
    std::vector<std::shared_ptr<Peer>> peers_;
    std::unordered_map<ucp::Endpoint *, Peer *> by_endpoint_;
    std::deque<ucp::ConnRequest *> requests_;
    std::deque<std::pair<void *, Rendezvous *>> waiting_;
    std::mutex accept_lock_;
    std::condition_variable accept_changed_;
    std::deque<std::shared_ptr<Peer>> accepted_;
    bool deaf_ = false;
    std::atomic<bool> stuck_{false};
    std::thread thread_;
};

} // namespace echo_rdma

#include "arrival.hpp"
#include "loop.hpp"
#include "watch.hpp"
