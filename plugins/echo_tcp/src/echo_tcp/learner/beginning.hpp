// How a connection of the original protocol is told from a client of a later protocol that came to the wrong learner.
//
// A worker of the original protocol begins with the bytes of a sample, which may be any bytes. A client of a later protocol
// begins with a HELLO (echo_net/handshake/messages.py): a header of 12 bytes, then a JSON object. A few bytes can
// be the beginning of either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace echo_tcp::learner {

enum class Beginning { sample, hello, either };

inline Beginning beginning(const char *at, std::size_t have) noexcept {
    constexpr std::size_t header_bytes = 12, version_at = 4, length_at = 8;
    constexpr std::uint32_t most_json = 4 << 10;
    constexpr char header[] = {'E', 'C', 'H', 'O', 0, 1, 0, 0}, json[] = {'{', '"'};
    for (std::size_t i = 0; i < have && i < sizeof header; ++i)
        if (i == version_at ? static_cast<unsigned char>(at[i]) < 2 : at[i] != header[i]) return Beginning::sample;
    if (have < header_bytes) return Beginning::either;
    std::uint32_t length;
    std::memcpy(&length, at + length_at, sizeof length);
    if (length > most_json) return Beginning::sample;
    for (std::size_t i = 0; i < sizeof json; ++i) {
        if (header_bytes + i == have) return Beginning::either;
        if (at[header_bytes + i] != json[i]) return Beginning::sample;
    }
    return Beginning::hello;
}

}  // namespace echo_tcp::learner
