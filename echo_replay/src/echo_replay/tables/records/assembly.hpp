// How chunks become records. A client's chunks come in order, but several clients' chunks alternate, so each client has a buffer for the record that
// it is sending. The buffer belongs to the client, not to its connection: if the connection is lost, the client goes on in the middle of the record.
// Not thread-safe: the mutex of Records guards it.
//
// Lengths come from the worker. They are checked before memory is allocated, and every chunk has to fit into what they promise.
#pragma once

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

    uint64_t incomplete = 0;  // records whose end never came
    uint64_t refused = 0;     // records whose lengths are not possible, or do not agree with their bytes

    size_t open() const { return open_; }
    uint64_t held() const { return held_; }

    // Whether a record begins here and ends within these n chunks, all of one client. Then nothing is kept: the caller takes it from the chunks.
    // Returns the number of its chunks, or 0.
    uint32_t whole_within(const char *const *chunks, uint32_t n, RecordHeader *header, uint64_t *size) {
        const ChunkHead begin = head(chunks[0]);
        if (!(begin.flags & RECORD_BEGINS) || begin.used < sizeof *header) return 0;
        std::memcpy(header, chunks[0] + sizeof(ChunkHead), sizeof *header);
        if (!layout_.fits(header->lengths)) return 0;
        *size = layout_.bytes_of(header->lengths);
        uint64_t used = 0;
        for (uint32_t i = 0; i < n; ++i) {
            const ChunkHead at = head(chunks[i]);
            if (at.used > CHUNK_PAYLOAD || client_of(at) != client_of(begin) || number_of(at) != uint16_t(number_of(begin) + i)) return 0;
            if (i && (at.flags & RECORD_BEGINS)) return 0;
            used += at.used;
            if (!(at.flags & RECORD_ENDS)) continue;
            if (used != sizeof *header + *size) return 0;
            if (const auto found = clients_.find(client_of(begin)); found != clients_.end()) {
                if (found->second.bytes) lose(&found->second);
                found->second.skipping = false;
            }
            return i + 1;
        }
        return 0;
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
            std::memcpy(&client.header, from, sizeof client.header);
            if (!layout_.fits(client.header.lengths)) return refuse(&client);
            client.size = layout_.bytes_of(client.header.lengths), client.filled = 0;
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

    static ChunkHead head(const char *chunk) {
        ChunkHead out;
        std::memcpy(&out, chunk, sizeof out);
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
