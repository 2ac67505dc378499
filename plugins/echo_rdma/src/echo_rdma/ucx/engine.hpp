// A UCX worker and the thread that drives it, without Python: endpoints, their streams, heartbeats, and how they end.
//
// All calls of UCX are made under `lock_`, by the engine's thread or by a caller's. After work, the thread spins for a moment. Then it arms
// UCX's descriptor and sleeps on that and on its own eventfd, which callers write when they leave work for it.
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
    int64_t beat = 1'000'000'000;         // ns between heartbeats
    int64_t silence = 10'000'000'000;     // ns without any message until the other end counts as lost
    int64_t linger = 1'000'000'000;       // ns that messages sent before the end have to arrive
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

    // Returns the port that is used.
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

    // Waits for the next client. Returns nullptr when no more clients are taken, or when the engine `is_stuck`.
    std::shared_ptr<Peer> accept() {
        std::unique_lock hold(accept_lock_);
        accept_changed_.wait(hold, [&] { return deaf_ || stuck_ || !accepted_.empty(); });
        if (stuck_ || accepted_.empty()) return nullptr;
        auto peer = std::move(accepted_.front());
        accepted_.pop_front();
        return peer;
    }

    // True if messages no longer arrive here: see watch.hpp. Another engine has to replace this one.
    bool is_stuck() const { return stuck_; }

    // Takes no more clients and drops those that wait to be accepted. The address is free again.
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

    // --------------------------------------------------------------------------------------------------- calls for one connection

    // Sends one piece (at most PIECE_BYTES). False if the connection has ended; `why` gives the reason.
    bool send(Peer &peer, Memory data, size_t size, bool whole, std::string &why) {
        if (!peer.inbox.wait_credit(size, why)) return false;
        Visit visit(*this);
        if (peer.failed || peer.stage != Stage::OPEN) {
            why = peer.inbox.why_ended(); // the endpoint may have failed since `wait_credit`, and the reason tells people what to do
            return false;
        }
        post(peer, Head{.kind = STREAM, .flags = whole ? WHOLE : uint8_t(0), .number = peer.pieces++}, std::move(data), size);
        return true;
    }

    // The reader has taken bytes, so the other end may send as many again.
    void report_read(Peer &peer) {
        if (uint64_t read = peer.inbox.to_report()) {
            Visit visit(*this);
            if (!peer.failed && peer.stage == Stage::OPEN) post(peer, Head{.kind = CREDIT, .number = read});
        }
    }

    // Ends the stream in both directions: nothing more is read here, but bytes that were sent still arrive.
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

    // The UCX transports that carry the connection, as "transport/device", separated by commas.
    std::string lanes(Peer &peer) {
        Visit visit(*this);
        return lanes_of(peer);
    }

    // The same, for callers that hold the lock.
    std::string lanes_of(Peer &peer) const {
        if (peer.failed || peer.ep == nullptr) return "";
        ucp::TransportEntry entries[32] = {};
        ucp::EndpointAttr attr{};
        attr.mask = attr.TRANSPORTS;
        attr.transports = {entries, 32, sizeof(entries[0])};
        if (ucx_.ep_query(peer.ep, &attr) != ucp::OK) return "";
        std::string text;
        for (unsigned i = 0; i < std::min(attr.transports.count, 32u) && entries[i].transport != nullptr; i++) // UCX before 1.14 fills none
            text += (i ? "," : "") + std::string(entries[i].transport) + "/" + entries[i].device;
        return text;
    }

    // Ends every connection, then the thread and the worker. Takes up to `Times::linger`. A stopped engine cannot be used again.
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

    // ----------------------------------------------------------------------------------------- for flows, called with the lock held

    struct Outgoing {
        Engine *engine;
        Peer *peer;
        Head head;
        Memory data;
        void (*done)(void *);
        void *argument;
    };

    // Sends a message that owns its payload.
    void post(Peer &peer, const Head &head, Memory data = nullptr, size_t size = 0) {
        const char *at = data.get();
        post(peer, new Outgoing{this, &peer, head, std::move(data), nullptr, nullptr}, at, size);
    }

    // Sends a message whose payload must not change until `done(argument)`, which is called in any case.
    void post(Peer &peer, const Head &head, const void *data, size_t size, void (*done)(void *), void *argument) {
        post(peer, new Outgoing{this, &peer, head, nullptr, done, argument}, data, size);
    }

    ucp::Worker *worker() const { return worker_; }
    ucp::Context *context() const { return context_; }
    int64_t now() const { return now_; }
    bool quiet() const { return quiet_; } // no messages arrive at the moment
    Line line;                            // the queue for space in full stores

    // Gives the peer up, because it broke the protocol or there is no memory for it.
    void give_up(Peer &peer, const std::string &why) {
        if (peer.stage == Stage::GONE) return;
        peer.fail(why);
        changed_ = true;
    }

    // Wakes the thread if it sleeps. May be called from any thread, with or without the lock.
    void ring() {
        // SLEEP: run() sets the flag and then looks for work once more, under the locks under which work is left. So either it sees the work, or this
        // thread sees the flag.
        if (sleeping_.load(std::memory_order_relaxed) && sleeping_.exchange(false, std::memory_order_relaxed)) {
            uint64_t one = 1;
            (void)!write(bell_, &one, sizeof one);
        }
    }

    // Holds the lock for a caller; the spinning thread gives way to it.
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
        param.flags = peer.dialled ? uint32_t(param.SEND_REPLY) : 0; // so that the listener can identify the sender
        // Parts are already sized for the lanes, so they are always sent eagerly. UCX before 1.15 would offer parts of 64 KB by rendezvous over TCP.
        if (outgoing->head.kind == PART || outgoing->head.kind == KEY) param.flags |= param.SEND_EAGER;
        // By default UCX sends a small payload over TCP without a copy, which takes longer than the copy.
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
        // If the request failed, the endpoint has failed, and on_error is called for that.
        auto *outgoing = static_cast<Outgoing *>(argument);
        outgoing->engine->changed_ = true;
        sent(outgoing);
        library().request_free(request);
    }

    static void on_error(void *argument, ucp::Endpoint *, ucp::status status) {
        // The peer outlives its endpoint, because it is dropped only after the forced close has completed.
        auto *peer = static_cast<Peer *>(argument);
        peer->engine->give_up(*peer, text_of(status));
    }

    static void on_request(ucp::ConnRequest *request, void *argument) {
        auto *engine = static_cast<Engine *>(argument);
        engine->requests_.push_back(request); // endpoints may only be made outside of UCX's callbacks
        engine->changed_ = true;
    }

    // Messages that arrive: see arrival.hpp.
    struct Rendezvous { // carries a piece of the stream
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
