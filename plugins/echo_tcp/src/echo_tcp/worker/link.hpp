// Questions about one TCP connection that only the kernel can answer.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

namespace echo_tcp::worker {

// True if the peer is silent although it owes an answer. TCP_USER_TIMEOUT would do the same, but it
// also ends connections to a peer that is alive and only slow, when its receive window has been closed
// for that long. A live peer confirms every probe of its closed window and all bytes for which it had
// room. So it has no unanswered probes here and no unconfirmed bytes.
inline bool silent(int fd, std::uint32_t limit_ms) noexcept {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;  // not TCP
    bool owes = info.tcpi_unacked > 0 || info.tcpi_probes >= 3;
    return owes && info.tcpi_last_ack_recv > limit_ms;
}

// True if both ends are on this machine, because they have the same address.
inline bool near(int fd) noexcept {
    sockaddr_storage ours{}, theirs{};
    socklen_t size = sizeof ours, other = sizeof theirs;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &size) != 0) return false;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &other) != 0) return false;
    if (ours.ss_family != theirs.ss_family) return false;
    if (ours.ss_family == AF_INET) {
        return reinterpret_cast<sockaddr_in&>(ours).sin_addr.s_addr ==
               reinterpret_cast<sockaddr_in&>(theirs).sin_addr.s_addr;
    }
    return ours.ss_family == AF_INET6 &&
           std::memcmp(&reinterpret_cast<sockaddr_in6&>(ours).sin6_addr,
                       &reinterpret_cast<sockaddr_in6&>(theirs).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace echo_tcp::worker
