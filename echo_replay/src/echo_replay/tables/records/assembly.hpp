// How chunks become records. A client's chunks come in order, but several clients' chunks alternate, so each client has a buffer for the record that
// it is sending. The buffer belongs to the client, not to its connection: if the connection is lost, the client goes on in the middle of the record.
// Not thread-safe: the mutex of Records guards it.
//
// Lengths come from the worker. They are checked before memory is allocated, and every chunk has to fit into what they promise.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <unordered_map>
#include <vector>

#include "record_layout.hpp"

namespace echo::replay {

// A complete record that is not in the table yet.
struct WholeRecord {
    RecordHeader header;
    uint64_t size = 0;  // of the bytes behind the header
    std::unique_ptr<char[]> bytes;
};

class Assembly {
public:
    explicit Assembly(const RecordLayout &layout) : layout_(layout) {}

    uint64_t limit = UINT64_MAX;  // bytes of the half-sent records of all clients together
    uint64_t incomplete = 0;  // records whose end never came
    uint64_t refused = 0;     // records whose lengths are not possible, or do not agree with their bytes

    size_t open() const { return open_; }
    uint64_t held() const { return held_; }

    // Whether a record begins here and ends within these n chunks, which lie side by side. Then it can be copied from them without a buffer, once
    // came_whole() was called. Returns the number of its chunks, or 0. All of them are full but the last one, so their heads need not be read again.
    // Changes nothing, so it needs no lock.
    uint32_t whole_within(const char *chunks, uint32_t n, RecordHeader *header, uint64_t *size, uint64_t *client) const {
        const ChunkHead begin = head(chunks);
        if (!(begin.flags & RECORD_BEGINS) || begin.used < sizeof *header) return 0;
        read(header, chunks + sizeof(ChunkHead));
        if (!layout_.fits(header->lengths)) return 0;
        *size = layout_.bytes_of(header->lengths), *client = client_of(begin);
        uint64_t left = sizeof *header + *size;
        for (uint32_t i = 0; i < n; ++i) {
            const ChunkHead at = i ? head(chunks + i * CHUNK_BYTES) : begin;
            const bool last = left <= CHUNK_PAYLOAD;
            if (at.flags != ((i ? 0 : RECORD_BEGINS) | (last ? RECORD_ENDS : 0u)) || at.used != (last ? left : CHUNK_PAYLOAD) ||
                at.stream != (begin.stream & ~uint64_t(0xFFFF) | uint16_t(number_of(begin) + i)))
                return 0;
            if (last) return i + 1;
            left -= CHUNK_PAYLOAD;
        }
        return 0;
    }
    static bool begins(const char *chunk) { return head(chunk).flags & RECORD_BEGINS; }
    // A record of this client came as a whole: one that it had begun before never ends.
    void came_whole(uint64_t client) {
        const auto found = clients_.find(client);
        if (found == clients_.end()) return;
        if (found->second.bytes) lose(&found->second);
        found->second.skipping = false;
    }

    // Adds one chunk. Returns true if it completes a record, which is then in *out.
    bool add(const char *chunk, WholeRecord *out) {
        const ChunkHead at = head(chunk);
        const char *from = chunk + sizeof(ChunkHead);
        uint64_t used = at.used;
        if (used > CHUNK_PAYLOAD || (at.flags & ~(RECORD_BEGINS | RECORD_ENDS))) return refuse(&clients_[client_of(at)]);
        Open &client = clients_[client_of(at)];
        if (at.flags & RECORD_BEGINS) {
            if (client.bytes) lose(&client);
            client.skipping = false;
            if (used < sizeof client.header) return refuse(&client);
            read(&client.header, from);
            if (!layout_.fits(client.header.lengths)) return refuse(&client);
            client.size = layout_.bytes_of(client.header.lengths), client.filled = 0;
            if (client.size > limit - std::min(limit, held_)) return refuse(&client);
            client.bytes.reset(new (std::nothrow) char[client.size ? client.size : 1]);
            if (!client.bytes) return refuse(&client);
            ++open_, held_ += client.size;
            from += sizeof client.header, used -= sizeof client.header;
        } else if (!client.bytes) {  // its beginning is lost, or was refused: it is counted once
            if (!client.skipping) ++incomplete;
            client.skipping = !(at.flags & RECORD_ENDS);
            return false;
        } else if (number_of(at) != client.next) {  // chunks in between are lost: what follows is not joined to what came before
            lose(&client);
            client.skipping = !(at.flags & RECORD_ENDS);
            return false;
        }
        client.next = uint16_t(number_of(at) + 1);
        if (used > client.size - client.filled) return refuse(&client, at.flags & RECORD_ENDS);
        std::memcpy(client.bytes.get() + client.filled, from, used);
        client.filled += used;
        if (!(at.flags & RECORD_ENDS)) return false;
        if (client.filled != client.size) return refuse(&client, true);
        out->header = client.header, out->size = client.size, out->bytes = std::move(client.bytes);
        --open_, held_ -= client.size;
        return true;
    }

    // The client is given up. Returns whether it had sent a part of a record.
    bool forget(uint64_t client) {
        const auto found = clients_.find(client);
        if (found == clients_.end()) return false;
        const bool had = found->second.bytes != nullptr;
        if (had) lose(&found->second);
        clients_.erase(found);
        return had;
    }
    std::vector<uint64_t> clients() const {
        std::vector<uint64_t> out;
        for (const auto &[client, open] : clients_) out.push_back(client);
        return out;
    }

private:
    struct Open {
        RecordHeader header;
        uint64_t size = 0, filled = 0;
        std::unique_ptr<char[]> bytes;  // null: no record is open
        uint16_t next = 0;              // the number of the chunk that comes next
        bool skipping = false;          // until the next beginning, because this record was counted as lost or refused already
    };

    // Workers of other processes may be able to write to the chunks. So what is checked and used is a copy, which the compiler may not read anew.
    template <class T>
    static void read(T *to, const char *from) {
        std::memcpy(to, from, sizeof *to);
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    static ChunkHead head(const char *chunk) {
        ChunkHead out;
        read(&out, chunk);
        return out;
    }
    void close(Open *client) {
        if (!client->bytes) return;
        client->bytes.reset();
        --open_, held_ -= client->size;
    }
    void lose(Open *client) { close(client), ++incomplete; }
    bool refuse(Open *client, bool ended = false) {
        close(client);
        if (!client->skipping) ++refused;
        client->skipping = !ended;
        return false;
    }

    const RecordLayout layout_;
    std::unordered_map<uint64_t, Open> clients_;
    size_t open_ = 0;
    uint64_t held_ = 0;
};

}  // namespace echo::replay
