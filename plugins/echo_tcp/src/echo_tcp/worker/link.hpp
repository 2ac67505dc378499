// Questions about one TCP connection that only the kernel can answer.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>

namespace echo_tcp::worker {

// Has the peer fallen silent although it owes us an answer? TCP_USER_TIMEOUT would ask the same,
// but it also ends connections to a peer that is alive and merely slow: one whose window has been
// closed for that long. A live peer confirms every probe of its closed window, so there are no
// unanswered ones, and everything it had room for is confirmed.
inline bool silent(int fd, std::uint32_t limit_ms) noexcept {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;  // not TCP
    bool owes = info.tcpi_unacked > 0 || info.tcpi_probes >= 3;
    return owes && info.tcpi_last_ack_recv > limit_ms;
}

}  // namespace echo_tcp::worker
