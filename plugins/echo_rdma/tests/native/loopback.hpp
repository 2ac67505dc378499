// A replacement of UCX within one process: the part of libucp that the engine calls, between workers that pass messages through queues.
//
// Requests complete at once or later, at random. Messages above `rendezvous` are offered, and read when the receiver asks for them. An endpoint
// whose other end is closed or broken calls its error handler. Shared memory has the same address at both ends.
#pragma once

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sys/eventfd.h>
#include <unistd.h>
#include <vector>

#include "../../src/echo_rdma/ucx/library.hpp"

namespace loopback {

using namespace echo_rdma;

struct Host { // a ucp::Worker
    std::mutex lock;
    std::deque<std::function<void()>> arrived;
    int bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ucp::MessageHandlerParam handler{};
    ucp::ListenerParams listener{};
    std::minstd_rand dice{unsigned(uintptr_t(this) >> 4)};

    void push(std::function<void()> what) {
        std::lock_guard hold(lock);
        arrived.push_back(std::move(what));
        uint64_t one = 1;
        (void)!write(bell, &one, sizeof one);
    }
};

struct End { // a ucp::Endpoint
    std::shared_ptr<Host> host;
    End *other = nullptr; // under `wires`
    bool answered = true; // messages that come before the listener has made its end wait in `early`
    std::vector<std::function<void()>> early;
    std::atomic<bool> broken{false};
    ucp::ErrorCallback error = nullptr;
    void *argument = nullptr;
};

struct Call { // a ucp::ConnRequest
    std::shared_ptr<End> answer; // the end for the listener
};

struct Offer { // the source from which a rendezvous is received
    std::shared_ptr<End> to;
    std::shared_ptr<Host> sender;
    const void *data;
    size_t size;
    ucp::SendCallback done;
    void *argument;
};

inline std::mutex wires; // guards the connections; taken before any host's lock
inline std::map<int, std::shared_ptr<Host>> ports;
inline std::map<void *, std::shared_ptr<Host>> hosts;
inline std::map<void *, std::shared_ptr<End>> ends;
inline size_t rendezvous = SIZE_MAX;
inline char request; // one object stands for all requests, because no request is ever queried

inline std::shared_ptr<Host> host_of(void *worker) {
    std::lock_guard hold(wires);
    return hosts.at(worker);
}

// Both ends notice it in their next progress.
inline void cut(End *end) {
    for (End *one : {end, end->other})
        if (one != nullptr && !one->broken) {
            one->broken = true;
            auto kept = ends.at(one);
            one->host->push([kept] {
                if (kept->error != nullptr) kept->error(kept->argument, reinterpret_cast<ucp::Endpoint *>(kept.get()), ucp::ERR_CONNECTION_RESET);
            });
        }
}

// A random connection breaks.
inline void cut_one(std::minstd_rand &dice) {
    std::lock_guard hold(wires);
    if (ends.empty()) return;
    auto at = std::next(ends.begin(), long(dice() % ends.size()));
    cut(at->second.get());
}

inline void *complete(Host &host, ucp::SendCallback done, void *argument, ucp::status status) {
    if (status == ucp::OK && host.dice() % 4) return nullptr;
    host.push([=] { done(&request, status, argument); });
    return &request;
}

inline void *send(ucp::Endpoint *ep, unsigned, const void *header, size_t header_size, const void *data, size_t size, const ucp::RequestParam *param) {
    std::lock_guard hold(wires);
    auto *end = reinterpret_cast<End *>(ep);
    if (end->broken || end->other == nullptr) return reinterpret_cast<void *>(intptr_t(ucp::ERR_CONNECTION_RESET));
    std::vector<char> head(static_cast<const char *>(header), static_cast<const char *>(header) + header_size), body;
    bool offered = size >= rendezvous && !(param->flags & param->SEND_EAGER);
    auto other = ends.at(end->other);
    Offer *offer = offered ? new Offer{other, end->host, data, size, param->callback.send, param->user_data} : nullptr;
    if (!offered && size) body.assign(static_cast<const char *>(data), static_cast<const char *>(data) + size);
    bool reply = param->flags & param->SEND_REPLY;
    end->host->dice();
    std::function<void()> deliver = [=, head = std::move(head), body = std::move(body)]() mutable {
        if (other->broken) { // offers disappear with their endpoint
            if (offer != nullptr) offer->sender->push([=] { offer->done(&request, ucp::ERR_CANCELED, offer->argument), delete offer; });
            return;
        }
        ucp::MessageParam about{};
        about.attributes = reply ? uint64_t(ucp::MessageParam::REPLY_EP) : 0;
        if (offered) about.attributes |= ucp::MessageParam::RENDEZVOUS;
        about.reply = reinterpret_cast<ucp::Endpoint *>(other.get());
        auto &handler = other->host->handler;
        if (handler.callback(handler.arg, head.data(), head.size(), offered ? static_cast<void *>(offer) : body.data(), size, &about) == ucp::OK && offered)
            offer->sender->push([=] { offer->done(&request, ucp::OK, offer->argument), delete offer; });
    };
    if (other->answered)
        other->host->push(std::move(deliver));
    else
        other->early.push_back(std::move(deliver));
    if (offered) return &request;
    return complete(*end->host, param->callback.send, param->user_data, ucp::OK);
}

inline void release(ucp::Worker *, void *descriptor) {
    auto *offer = static_cast<Offer *>(descriptor);
    offer->sender->push([=] { offer->done(&request, ucp::OK, offer->argument), delete offer; });
}

inline void *receive(ucp::Worker *, void *descriptor, void *buffer, size_t count, const ucp::RequestParam *param) {
    auto *offer = static_cast<Offer *>(descriptor);
    auto parts = std::make_shared<std::vector<ucp::IoVec>>();
    if ((param->mask & param->DATATYPE) && param->datatype == ucp::IOV)
        parts->assign(static_cast<ucp::IoVec *>(buffer), static_cast<ucp::IoVec *>(buffer) + count);
    else
        parts->push_back({buffer, offer->size});
    auto done = param->callback.receive;
    void *argument = param->user_data;
    offer->to->host->push([=] {
        bool whole;
        {
            std::lock_guard hold(wires); // so that a cut comes before or after this, not in between
            whole = !offer->to->broken;
            const char *at = static_cast<const char *>(offer->data);
            if (whole)
                for (auto &part : *parts) memcpy(part.buffer, at, part.length), at += part.length;
        }
        size_t size = offer->size;
        offer->sender->push([=] { offer->done(&request, ucp::OK, offer->argument), delete offer; });
        done(&request, whole ? ucp::OK : ucp::ERR_CANCELED, size, argument);
    });
    return &request;
}

// Called with `wires` held.
inline void drop(const std::shared_ptr<End> &end) {
    end->error = nullptr;
    cut(end.get());
    if (end->other != nullptr) end->other->other = nullptr;
    for (auto &one : end->early) end->host->push(std::move(one)); // messages that are dropped take back their offers
    end->early.clear();
    ends.erase(end.get());
}

inline void reject(ucp::ConnRequest *request) {
    auto *call = reinterpret_cast<Call *>(request);
    std::lock_guard hold(wires);
    drop(call->answer);
    delete call;
}

inline ucp::status open_end(ucp::Worker *worker, const ucp::EndpointParams *params, ucp::Endpoint **out) {
    std::lock_guard hold(wires);
    auto end = std::make_shared<End>();
    if (params->mask & params->CONN_REQUEST) {
        auto *call = reinterpret_cast<Call *>(params->request);
        end = call->answer;
        delete call;
        end->answered = true;
        for (auto &one : end->early) end->host->push(std::move(one));
        end->early.clear();
        if (end->broken) return drop(end), ucp::ERR_NOT_CONNECTED;
    } else {
        auto found = ports.find(ntohs(reinterpret_cast<const sockaddr_in *>(params->where.address)->sin_port));
        if (found == ports.end()) return ucp::ERR_REJECTED;
        auto to = found->second;
        auto answer = std::make_shared<End>();
        answer->host = to;
        answer->answered = false;
        end->host = hosts.at(worker);
        (answer->other = end.get())->other = answer.get();
        ends[answer.get()] = answer;
        to->push([=] {
            auto *call = reinterpret_cast<ucp::ConnRequest *>(new Call{answer});
            std::unique_lock hold(wires);
            bool listens = std::any_of(ports.begin(), ports.end(), [&](auto &one) { return one.second == to; });
            hold.unlock();
            listens ? to->listener.connection.callback(call, to->listener.connection.arg) : reject(call);
        });
    }
    end->error = params->error.callback;
    end->argument = params->error.arg;
    ends[end.get()] = end;
    *out = reinterpret_cast<ucp::Endpoint *>(end.get());
    return ucp::OK;
}

inline void *close_end(ucp::Endpoint *ep, const ucp::RequestParam *param) {
    std::lock_guard hold(wires);
    auto end = ends.at(ep);
    drop(end);
    return complete(*end->host, param->callback.send, param->user_data, ucp::ERR_CANCELED);
}

// Fills the table in place of `Library::open`.
inline void install() {
    Library &ucx = library();
    ucx.worker_create = [](ucp::Context *, const ucp::WorkerParams *, ucp::Worker **out) {
        std::lock_guard hold(wires);
        auto host = std::make_shared<Host>();
        hosts[host.get()] = host;
        *out = reinterpret_cast<ucp::Worker *>(host.get());
        return ucp::status(ucp::OK);
    };
    ucx.worker_destroy = [](ucp::Worker *worker) {
        auto host = host_of(worker);
        while (library().worker_progress(worker) > 0) {}
        std::lock_guard hold(wires);
        close(host->bell);
        hosts.erase(worker);
    };
    ucx.worker_progress = [](ucp::Worker *worker) {
        auto *host = reinterpret_cast<Host *>(worker);
        std::function<void()> next;
        {
            std::lock_guard hold(host->lock);
            uint64_t rings;
            (void)!read(host->bell, &rings, sizeof rings);
            if (host->arrived.empty()) return 0u;
            next = std::move(host->arrived.front());
            host->arrived.pop_front();
        }
        next();
        return 1u;
    };
    ucx.worker_get_efd = [](ucp::Worker *worker, int *fd) {
        *fd = reinterpret_cast<Host *>(worker)->bell;
        return ucp::status(ucp::OK);
    };
    ucx.worker_arm = [](ucp::Worker *worker) {
        auto *host = reinterpret_cast<Host *>(worker);
        std::lock_guard hold(host->lock);
        return ucp::status(host->arrived.empty() ? ucp::OK : ucp::ERR_BUSY);
    };
    ucx.worker_set_am_recv_handler = [](ucp::Worker *worker, const ucp::MessageHandlerParam *param) {
        reinterpret_cast<Host *>(worker)->handler = *param;
        return ucp::status(ucp::OK);
    };
    ucx.listener_create = [](ucp::Worker *worker, const ucp::ListenerParams *params, ucp::Listener **out) {
        std::lock_guard hold(wires);
        auto host = hosts.at(worker);
        host->listener = *params;
        ports[ntohs(reinterpret_cast<const sockaddr_in *>(params->where.address)->sin_port)] = host;
        *out = reinterpret_cast<ucp::Listener *>(worker);
        return ucp::status(ucp::OK);
    };
    ucx.listener_destroy = [](ucp::Listener *listener) {
        std::lock_guard hold(wires);
        std::erase_if(ports, [&](auto &one) { return one.second.get() == reinterpret_cast<Host *>(listener); });
    };
    ucx.listener_query = [](ucp::Listener *, ucp::ListenerAttr *) { return ucp::status(ucp::OK); };
    ucx.listener_reject = [](ucp::Listener *, ucp::ConnRequest *request) {
        reject(request);
        return ucp::status(ucp::OK);
    };
    ucx.conn_request_query = [](ucp::ConnRequest *, ucp::ConnRequestAttr *) { return ucp::status(ucp::ERR_NOT_CONNECTED); };
    ucx.ep_create = open_end;
    ucx.ep_close_nbx = close_end;
    ucx.am_send_nbx = send;
    ucx.am_recv_data_nbx = receive;
    ucx.am_data_release = release;
    ucx.request_free = [](void *) {};
    ucx.status_string = [](ucp::status) { return "the wire was cut"; };
    ucx.mem_map = [](ucp::Context *, const ucp::MemParams *params, ucp::MemHandle **out) {
        *out = static_cast<ucp::MemHandle *>(aligned_alloc(4096, (params->length + 4095) / 4096 * 4096));
        return ucp::status(ucp::OK);
    };
    ucx.mem_unmap = [](ucp::Context *, ucp::MemHandle *handle) {
        free(handle);
        return ucp::status(ucp::OK);
    };
    ucx.mem_query = [](ucp::MemHandle *handle, ucp::MemAttr *attr) {
        attr->address = handle;
        return ucp::status(ucp::OK);
    };
    ucx.rkey_pack = [](ucp::Context *, ucp::MemHandle *, void **key, size_t *size) {
        *key = calloc(1, *size = 24);
        return ucp::status(ucp::OK);
    };
    ucx.rkey_buffer_release = [](void *key) { free(key); };
    ucx.ep_rkey_unpack = [](ucp::Endpoint *, const void *, ucp::Key **key) {
        *key = static_cast<ucp::Key *>(malloc(1));
        return ucp::status(ucp::OK);
    };
    ucx.rkey_ptr = [](ucp::Key *, uint64_t address, void **out) {
        *out = reinterpret_cast<void *>(address);
        return ucp::status(ucp::OK);
    };
    ucx.rkey_destroy = [](ucp::Key *key) { free(key); };
}

} // namespace loopback
