// The functions of libucp, looked up at run time in a table that is filled once and then only read.
#pragma once

#include <dlfcn.h>
#include <string>

#include "abi.hpp"

namespace echo_rdma {

#define ECHO_UCP_FUNCTIONS(X)                                                                                            \
    X(void, get_version, unsigned *, unsigned *, unsigned *)                                                             \
    X(ucp::status, config_read, const char *, const char *, ucp::Config **)                                              \
    X(ucp::status, config_modify, ucp::Config *, const char *, const char *)                                             \
    X(void, config_release, ucp::Config *)                                                                               \
    X(ucp::status, init_version, unsigned, unsigned, const ucp::Params *, const ucp::Config *, ucp::Context **)          \
    X(void, cleanup, ucp::Context *)                                                                                     \
    X(ucp::status, worker_create, ucp::Context *, const ucp::WorkerParams *, ucp::Worker **)                             \
    X(void, worker_destroy, ucp::Worker *)                                                                               \
    X(unsigned, worker_progress, ucp::Worker *)                                                                          \
    X(ucp::status, worker_get_efd, ucp::Worker *, int *)                                                                 \
    X(ucp::status, worker_arm, ucp::Worker *)                                                                            \
    X(ucp::status, worker_set_am_recv_handler, ucp::Worker *, const ucp::MessageHandlerParam *)                          \
    X(ucp::status, listener_create, ucp::Worker *, const ucp::ListenerParams *, ucp::Listener **)                        \
    X(void, listener_destroy, ucp::Listener *)                                                                           \
    X(ucp::status, listener_query, ucp::Listener *, ucp::ListenerAttr *)                                                 \
    X(ucp::status, listener_reject, ucp::Listener *, ucp::ConnRequest *)                                                 \
    X(ucp::status, conn_request_query, ucp::ConnRequest *, ucp::ConnRequestAttr *)                                       \
    X(ucp::status, ep_create, ucp::Worker *, const ucp::EndpointParams *, ucp::Endpoint **)                              \
    X(void *, ep_close_nbx, ucp::Endpoint *, const ucp::RequestParam *)                                                  \
    X(ucp::status, ep_query, ucp::Endpoint *, ucp::EndpointAttr *)                                                       \
    X(void *, am_send_nbx, ucp::Endpoint *, unsigned, const void *, size_t, const void *, size_t, const ucp::RequestParam *) \
    X(void *, am_recv_data_nbx, ucp::Worker *, void *, void *, size_t, const ucp::RequestParam *)                        \
    X(void, am_data_release, ucp::Worker *, void *)                                                                      \
    X(void, request_free, void *)                                                                                        \
    X(ucp::status, mem_map, ucp::Context *, const ucp::MemParams *, ucp::MemHandle **)                                   \
    X(ucp::status, mem_unmap, ucp::Context *, ucp::MemHandle *)                                                          \
    X(ucp::status, mem_query, ucp::MemHandle *, ucp::MemAttr *)                                                          \
    X(ucp::status, rkey_pack, ucp::Context *, ucp::MemHandle *, void **, size_t *)                                       \
    X(void, rkey_buffer_release, void *)                                                                                 \
    X(ucp::status, ep_rkey_unpack, ucp::Endpoint *, const void *, ucp::Key **)                                           \
    X(ucp::status, rkey_ptr, ucp::Key *, uint64_t, void **)                                                              \
    X(void, rkey_destroy, ucp::Key *)

struct Library {
#define X(result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
    ECHO_UCP_FUNCTIONS(X)
#undef X
    const char *(*status_string)(ucp::status) = nullptr;
    unsigned version[3] = {0, 0, 0};

    // Fills the table from `path` (a file, or a name that the loader knows). Returns an error text, or "" if all is well.
    std::string open(const char *path) {
        // RTLD_LOCAL, so that another UCX in this process keeps its own symbols.
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) return dlerror();
#define X(result, name, ...)                                                                  \
    name = reinterpret_cast<decltype(name)>(dlsym(handle, "ucp_" #name));                     \
    if (name == nullptr) return std::string(path) + " has no ucp_" #name;
        ECHO_UCP_FUNCTIONS(X)
#undef X
        status_string = reinterpret_cast<decltype(status_string)>(dlsym(handle, "ucs_status_string")); // in libucs, which libucp loads
        if (status_string == nullptr) return std::string(path) + " brings no ucs_status_string";
        get_version(&version[0], &version[1], &version[2]);
        return "";
    }
};

inline Library &library() {
    static Library table;
    return table;
}

inline std::string text_of(ucp::status status) { return library().status_string(status); }

} // namespace echo_rdma
