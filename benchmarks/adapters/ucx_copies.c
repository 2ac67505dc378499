/* What two bare processes reach over UCX that copy each sample as often as has to be, for it to be sent again after a lost connection and to end in
 * a row of a batch: see ucx_copies.py.
 *
 *   ucx_copies BYTES POOL AHEAD SLOTS PART SECONDS
 *       One process copies pieces of BYTES, POOL different ones, into AHEAD pieces of memory and sends them as active messages of at most PART bytes; the
 *       other copies them from where UCX has them into SLOTS rows, and acknowledges. One thread each, which polls. Prints bytes per second.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { DATA = 1, ACK = 2 };
#define ACK_BYTES ((size_t)256 << 10)
#define AT_ONCE 64 /* requests under way */

static ucp_worker_h worker;
static ucp_ep_h peer;
static size_t bytes, slots, in_flight;
static uint64_t done, acknowledged; /* pieces */
static char *rows;

static void must(ucs_status_t status, const char *what) {
    if (status == UCS_OK || status == UCS_INPROGRESS) return;
    fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* On large pages, as a store is. */
static char *memory(size_t size) {
    size_t large = 2 << 20, whole = (size + large - 1) / large * large;
    char *at = aligned_alloc(large, whole);
    if (at == NULL) exit(1);
    madvise(at, whole, MADV_HUGEPAGE);
    memset(at, 1, whole);
    return at;
}

static void sent(void *request, ucs_status_t status, void *argument) {
    (void)argument;
    must(status, "send");
    ucp_request_free(request);
    in_flight--;
}

static void post(unsigned kind, const uint64_t *head, const void *data, size_t size) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_EAGER, .cb.send = sent};
    if (size <= 4096) param.op_attr_mask |= UCP_OP_ATTR_FLAG_FAST_CMPL;
    in_flight++;
    void *request = ucp_am_send_nbx(peer, kind, head, sizeof *head, data, size, &param);
    if (UCS_PTR_IS_PTR(request)) return;
    must(UCS_PTR_STATUS(request), "send");
    in_flight--;
}

/* The header is where in the piece the bytes belong. */
static ucs_status_t on_data(void *argument, const void *head, size_t head_size, void *data, size_t size, const ucp_am_recv_param_t *param) {
    (void)argument, (void)head_size, (void)param;
    uint64_t offset;
    memcpy(&offset, head, sizeof offset);
    memcpy(rows + done % slots * bytes + offset, data, size);
    if (offset + size == bytes) done++;
    return UCS_OK;
}

static ucs_status_t on_ack(void *argument, const void *head, size_t head_size, void *data, size_t size, const ucp_am_recv_param_t *param) {
    (void)argument, (void)head_size, (void)data, (void)size, (void)param;
    memcpy(&acknowledged, head, sizeof acknowledged);
    return UCS_OK;
}

static void on_error(void *argument, ucp_ep_h ep, ucs_status_t status) {
    (void)argument, (void)ep;
    must(status, "connection");
}

static void on_request(ucp_conn_request_h request, void *argument) { *(ucp_conn_request_h *)argument = request; }

static void set_up(unsigned kind, ucp_am_recv_callback_t callback) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    ucp_worker_params_t how = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = kind,
        .flags = UCP_AM_FLAG_WHOLE_MSG, .cb = callback};
    ucp_context_h context;
    must(ucp_init(&params, NULL, &context), "ucp_init");
    must(ucp_worker_create(context, &how, &worker), "worker");
    must(ucp_worker_set_am_recv_handler(worker, &handler), "handler");
}

static void open_peer(ucp_ep_params_t *params) {
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_error;
    must(ucp_ep_create(worker, params, &peer), "endpoint");
}

static void work(int port, size_t pool, size_t ahead, size_t part) {
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_up(ACK, on_ack);
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR, .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                              .sockaddr = {(struct sockaddr *)&where, sizeof where}};
    open_peer(&params);
    char *from = memory(bytes * pool), *kept = memory(bytes * ahead);
    for (uint64_t i = 0;; i++) {
        while (i - acknowledged >= ahead) ucp_worker_progress(worker);
        char *piece = kept + i % ahead * bytes;
        memcpy(piece, from + i % pool * bytes, bytes);
        for (uint64_t offset = 0; offset < bytes; offset += part) {
            while (in_flight >= AT_ONCE) ucp_worker_progress(worker);
            post(DATA, &offset, piece + offset, bytes - offset < part ? bytes - offset : part);
        }
        if (i % AT_ONCE == 0) ucp_worker_progress(worker);
    }
}

int main(int count, char **word) {
    if (count != 7) return 2;
    bytes = atoll(word[1]), slots = atoll(word[4]);
    size_t pool = atoll(word[2]), ahead = atoll(word[3]), part = atoll(word[5]);
    double seconds = atof(word[6]);
    int ports[2];
    if (pipe(ports) != 0) return 1;
    pid_t child = fork(); /* before either has anything of UCX's */
    if (child == 0) {
        int port;
        if (read(ports[0], &port, sizeof port) != sizeof port) return 1;
        work(port, pool, ahead, part);
    }
    rows = memory(bytes * slots);
    set_up(DATA, on_data);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_conn_request_h request = NULL;
    ucp_listener_params_t params = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                    .sockaddr = {(struct sockaddr *)&any, sizeof any}, .conn_handler = {on_request, &request}};
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucp_listener_h listener;
    must(ucp_listener_create(worker, &params, &listener), "listener");
    must(ucp_listener_query(listener, &attr), "listener");
    int port = ntohs(((struct sockaddr_in *)&attr.sockaddr)->sin_port);
    if (write(ports[1], &port, sizeof port) != sizeof port) return 1;
    while (request == NULL) ucp_worker_progress(worker);
    ucp_ep_params_t of_request = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    open_peer(&of_request);
    uint64_t told = 0, counted = 0;
    double begin = 0, end = 1e300;
    for (unsigned turn = 0;; turn++) {
        unsigned some = ucp_worker_progress(worker);
        if (done > told && (some == 0 || (done - told) * bytes >= ACK_BYTES)) {
            told = done;
            post(ACK, &told, NULL, 0);
        }
        if (turn % 16) continue;
        double t = now();
        if (begin == 0 && done > 0) begin = t + 0.2, end = begin + seconds; /* the first lap touches pages */
        if (t < begin) counted = done;
        if (t >= end) break;
    }
    printf("%g\n", (double)(done - counted) * (double)bytes / seconds);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
