// Loops in C over bare TCP sockets: the ceiling of what any library can move over them. See sockets.py.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST_AHEAD = 64 };

// ---- the learner: every sample lands in a row of its own, and `take` hands over rows until the next call

struct peer {
    int fd;
    size_t got;           // bytes of rows[0]
    int rows[MOST_AHEAD]; // where its next samples go
};

struct learner {
    int epoll, batch, ahead, unused_count, whole_count, out_count;
    size_t size;
    char *memory;
    int *unused, *whole, *out;
};

struct learner *sockets_learner(size_t size, int batch, int peers, int ahead, char *memory, int rows) {
    struct learner *self = calloc(1, sizeof *self);
    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    self->size = size, self->batch = batch, self->memory = memory;
    self->ahead = ahead < MOST_AHEAD ? ahead : MOST_AHEAD;
    self->unused = malloc(sizeof(int) * rows), self->whole = malloc(sizeof(int) * rows), self->out = malloc(sizeof(int) * rows);
    while (self->unused_count < rows) self->unused[self->unused_count] = self->unused_count, self->unused_count++;
    (void)peers;
    return self;
}

void sockets_welcome(struct learner *self, int fd) {
    struct peer *peer = calloc(1, sizeof *peer);
    peer->fd = fd;
    for (int i = 0; i < self->ahead; i++) peer->rows[i] = self->unused[--self->unused_count];
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event);
}

static int receive(struct learner *self, struct peer *peer) {
    struct iovec pieces[MOST_AHEAD];
    for (int i = 0; i < self->ahead; i++) pieces[i] = (struct iovec){self->memory + peer->rows[i] * self->size, self->size};
    pieces[0].iov_base = (char *)pieces[0].iov_base + peer->got, pieces[0].iov_len -= peer->got;
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = self->ahead};
    ssize_t some = recvmsg(peer->fd, &message, MSG_DONTWAIT);
    if (some <= 0) return some < 0 && errno == EAGAIN ? 0 : -1;
    peer->got += some;
    int done = peer->got / self->size;
    peer->got %= self->size;
    for (int i = 0; i < done; i++) self->whole[self->whole_count++] = peer->rows[i];
    memmove(peer->rows, peer->rows + done, sizeof(int) * (self->ahead - done));
    for (int i = self->ahead - done; i < self->ahead; i++) peer->rows[i] = self->unused[--self->unused_count];
    return 0;
}

// The rows of the next batch, into `out`; those of the last one are used again. -1: a worker has left.
int sockets_take(struct learner *self, int *out) {
    for (int i = 0; i < self->out_count; i++) self->unused[self->unused_count++] = self->out[i];
    self->out_count = 0;
    while (self->whole_count < self->batch) {
        struct epoll_event events[64];
        int ready = epoll_wait(self->epoll, events, 64, -1);
        for (int i = 0; i < ready; i++)
            if (self->unused_count >= self->ahead && receive(self, events[i].data.ptr) < 0) return -1;
    }
    memcpy(out, self->whole, sizeof(int) * self->batch);
    memcpy(self->out, self->whole, sizeof(int) * self->batch);
    self->out_count = self->batch;
    self->whole_count -= self->batch;
    memmove(self->whole, self->whole + self->batch, sizeof(int) * self->whole_count);
    return 0;
}

// ---- the worker

static int put(int fd, struct iovec *pieces, int count) {
    while (count > 0) {
        ssize_t some = writev(fd, pieces, count < 1024 ? count : 1024);
        if (some < 0) return -1;
        while (count > 0 && (size_t)some >= pieces->iov_len) some -= pieces->iov_len, pieces++, count--;
        if (count > 0) pieces->iov_base = (char *)pieces->iov_base + some, pieces->iov_len -= some;
    }
    return 0;
}

// Send `samples` of `leaves` arrays each, `rounds` times (negative: until the connection breaks), about `frame` bytes to a call. With a
// `window`, each sample is copied there first, as whoever wants to send again what a lost connection did not deliver has to.
int sockets_flood(int fd, void **arrays, const size_t *sizes, int leaves, int samples, long rounds, size_t frame, char *window, size_t window_bytes) {
    size_t size = 0, head = 0, tail = 0;
    for (int i = 0; i < leaves; i++) size += sizes[i];
    int together = frame / (size ? size : 1) > 1 ? frame / size : 1, count = 0;
    struct iovec *pieces = malloc(sizeof *pieces * (size_t)(together * leaves + 1));
    int failed = 0;
    for (long round = 0; !failed && (rounds < 0 || round < rounds); round++)
        for (int sample = 0; !failed && sample < samples; sample++) {
            int last = rounds >= 0 && round == rounds - 1 && sample == samples - 1;
            if (window && head + size > window_bytes) { // `tail` was sent to the end
                pieces[0] = (struct iovec){window + tail, head - tail};
                failed = put(fd, pieces, head > tail);
                head = tail = 0;
            }
            for (int i = 0; i < leaves; i++) {
                void *array = arrays[sample * leaves + i];
                if (window)
                    memcpy(window + head, array, sizes[i]), head += sizes[i];
                else
                    pieces[count++] = (struct iovec){array, sizes[i]};
            }
            if (window ? head - tail >= together * size || last : count == together * leaves || last) {
                if (window) pieces[0] = (struct iovec){window + tail, head - tail}, count = 1, tail = head;
                failed = put(fd, pieces, count);
                count = 0;
            }
        }
    free(pieces);
    return failed;
}
