// The part of UCX's C interface (libucp) that this package uses. It is declared here, so that a build needs no headers of UCX, and an import no library.
//
// Layouts and numbers are those of UCX 1.15; 1.16 to 1.23 only appended to them. In each structure, `mask` says which members count, and the
// library reads no others. So members behind the last one in use are left out. tests/test_abi.py compares all of it with UCX's headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sys/socket.h>

namespace echo_rdma::ucp {

using status = int8_t; // a packed enum in UCX: one byte, also as an argument and as a result
enum : status {
    OK = 0,
    INPROGRESS = 1,
    ERR_BUSY = -15,
    ERR_CANCELED = -16,
    ERR_TIMED_OUT = -20,
    ERR_REJECTED = -23,
    ERR_NOT_CONNECTED = -24,
    ERR_CONNECTION_RESET = -25,
    ERR_ENDPOINT_TIMEOUT = -80,
    ERR_LAST = -100,
};

// A call returns null (done), an error, encoded as one of the last hundred addresses, or a request.
inline bool failed(void *answer) { return uintptr_t(answer) >= uintptr_t(intptr_t(ERR_LAST)); }
inline bool pending(void *answer) { return answer != nullptr && !failed(answer); }
inline status status_of(void *answer) { return status(intptr_t(answer)); }

struct Context;
struct Config;
struct Worker;
struct Endpoint;
struct Listener;
struct ConnRequest;
struct MemHandle;
struct Key;

constexpr uint64_t FEATURE_WAKEUP = 1 << 4, FEATURE_AM = 1 << 6;

struct Params {
    enum : uint64_t { FEATURES = 1 << 0, SHARED_WORKERS = 1 << 5, ESTIMATED_EPS = 1 << 6, NAME = 1 << 8 };
    uint64_t mask;
    uint64_t features;
    size_t request_size;
    void *request_init, *request_cleanup;
    uint64_t tag_sender_mask;
    int shared_workers;
    size_t estimated_eps, estimated_per_node;
    const char *name;
};

constexpr int THREAD_SERIALIZED = 1;

struct WorkerParams {
    enum : uint64_t { THREAD_MODE = 1 << 0 };
    uint64_t mask;
    int thread_mode;
    uint64_t cpus[16];
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
};

struct SockAddr {
    const sockaddr *address;
    socklen_t length;
};

using ConnCallback = void (*)(ConnRequest *, void *);

struct ListenerParams {
    enum : uint64_t { SOCK_ADDR = 1 << 0, CONN_HANDLER = 1 << 2 };
    uint64_t mask;
    SockAddr where;
    struct {
        void *callback, *arg;
    } accept;
    struct {
        ConnCallback callback;
        void *arg;
    } connection;
};

struct ListenerAttr {
    enum : uint64_t { SOCKADDR = 1 << 0 };
    uint64_t mask;
    sockaddr_storage address;
};

struct ConnRequestAttr {
    enum : uint64_t { CLIENT_ADDR = 1 << 0 };
    uint64_t mask;
    sockaddr_storage client;
    uint64_t client_id;
};

using ErrorCallback = void (*)(void *, Endpoint *, status);
constexpr int ERROR_MODE_PEER = 1;

struct EndpointParams {
    enum : uint64_t { ERROR_MODE = 1 << 1, ERROR_HANDLER = 1 << 2, SOCK_ADDR = 1 << 4, FLAGS = 1 << 5, CONN_REQUEST = 1 << 6 };
    enum : unsigned { CLIENT_SERVER = 1 << 0 };
    uint64_t mask;
    const void *address;
    int error_mode;
    struct {
        ErrorCallback callback;
        void *arg;
    } error;
    void *user_data;
    unsigned flags;
    SockAddr where;
    ConnRequest *request;
};

struct TransportEntry {
    const char *transport, *device;
};

struct EndpointAttr {
    enum : uint64_t { TRANSPORTS = 1 << 3 };
    uint64_t mask;
    char name[32];
    sockaddr_storage local, remote;
    struct {
        TransportEntry *entries;
        unsigned count;
        size_t entry_size;
    } transports;
};

struct MemParams {
    enum : uint64_t { LENGTH = 1 << 1, FLAGS = 1 << 2 };
    enum : unsigned { NONBLOCK = 1 << 0, ALLOCATE = 1 << 1 };
    uint64_t mask;
    void *address;
    size_t length;
    unsigned flags;
    unsigned protection;
    int memory_type;
    void *exported;
};

struct MemAttr {
    enum : uint64_t { ADDRESS = 1 << 0, LENGTH = 1 << 1 };
    uint64_t mask;
    void *address;
    size_t length;
    int memory_type;
};

using SendCallback = void (*)(void *request, status, void *user_data);
using ReceiveCallback = void (*)(void *request, status, size_t length, void *user_data);

constexpr uint64_t CONTIGUOUS = 1 << 3; // a datatype: elements of one byte
constexpr uint64_t IOV = 2;

struct IoVec {
    void *buffer;
    size_t length;
};

struct RequestParam {
    enum : uint32_t { CALLBACK = 1 << 1, USER_DATA = 1 << 2, DATATYPE = 1 << 3, FLAGS = 1 << 4, FAST_COMPLETION = 1 << 17 };
    enum : uint32_t { SEND_REPLY = 1 << 0, SEND_EAGER = 1 << 1, SEND_RENDEZVOUS = 1 << 2, CLOSE_FORCE = 1 << 0 };
    uint32_t mask;
    uint32_t flags;
    void *request;
    union {
        SendCallback send;
        ReceiveCallback receive;
    } callback;
    uint64_t datatype;
    void *user_data;
    void *reply_buffer;
    int memory_type;
    void *info;
    void *memh;
    uint64_t room[8]; // space for the further members of later versions
};

struct MessageParam {
    enum : uint64_t { REPLY_EP = 1 << 0, DATA = 1 << 16, RENDEZVOUS = 1 << 17 };
    uint64_t attributes;
    Endpoint *reply;
};

using MessageCallback = status (*)(void *arg, const void *header, size_t header_length, void *data, size_t length, const MessageParam *);

struct MessageHandlerParam {
    enum : uint64_t { ID = 1 << 0, FLAGS = 1 << 1, CALLBACK = 1 << 2, ARG = 1 << 3 };
    enum : uint32_t { WHOLE = 1 << 0 };
    uint64_t mask;
    unsigned id;
    uint32_t flags;
    MessageCallback callback;
    void *arg;
};

} // namespace echo_rdma::ucp
