// A sample that is larger than one message of the lanes comes in parts. They are stored in its slot from the first part on, unless no slot is free or
// the parts come slowly. Part of intake.hpp.
#pragma once


namespace echo_rdma {

inline ucp::status Intake::part(Peer &peer, const Head &head, const char *data, size_t length, uint64_t attributes, std::string &broken) {
    if (attributes & ucp::MessageParam::RENDEZVOUS || length == 0 || head.limit + length > sample_bytes_ || head.limit + length < length)
        broken = "a part of " + std::to_string(length) + " bytes from " + std::to_string(head.limit);
    else if (head.limit != partial_.bytes || (head.limit > 0 && head.number != partial_.number))
        broken = "parts out of order";
    else if (head.number > ack_.limit() || head.number == 0 || head.number > next_)
        broken = "sample " + std::to_string(head.number) + ", with credit up to " + std::to_string(ack_.limit());
    else if (again(head.number, head.number + 1))
        broken = "sample " + std::to_string(head.number) + " again";
    if (!broken.empty()) return ucp::OK;
    bytes_ += length + sizeof head;
    if (head.limit == 0) {
        partial_.number = head.number;
        partial_.known = head.number < next_;
        partial_.since = peer.engine->now();
        partial_.in_run = !partial_.known && parked_.empty() && claim(1, partial_.run);
        messages_++;
    }
    if (!partial_.in_run && !partial_.known) {
        if (!partial_.memory) partial_.memory = allocate(sample_bytes_);
        if (!partial_.memory) {
            broken = "no memory for what it sent";
            return ucp::OK;
        }
        memcpy(partial_.memory.get() + head.limit, data, length);
    } else if (partial_.in_run)
        through_leaves(head.limit, length, [&](char *slot, size_t size) {
            memcpy(slot, data, size);
            data += size;
        });
    partial_.bytes += length;
    if (partial_.bytes == sample_bytes_) whole();
    return ucp::OK;
}

// The last part of the sample has come.
inline void Intake::whole() {
    Partial all = std::move(partial_);
    partial_ = {};
    if (all.known) {
        duplicates_++;
        ack_.owe();
    } else if (all.in_run) {
        api_->commit(store_, &all.run);
        next_++;
        count_in(1);
        bring_in();
    } else {
        Parked one{};
        one.first = all.number;
        one.count = 1;
        one.bytes = sample_bytes_;
        one.state = HERE;
        one.memory = std::move(all.memory);
        one.rows = one.memory.get();
        place(std::move(one));
    }
}

inline void Intake::move_out(Peer &peer) {
    partial_.memory = allocate(sample_bytes_);
    if (!partial_.memory) {
        peer.engine->give_up(peer, "no memory for what it sent");
        return;
    }
    char *to = partial_.memory.get();
    through_leaves(0, partial_.bytes, [&](char *slot, size_t size) {
        memcpy(to, slot, size);
        to += size;
    });
    api_->abort(store_, &partial_.run);
    partial_.in_run = false;
}

// Calls `each` for the stretches of the partial sample's slot that hold its bytes from `offset` on.
template <class Each> void Intake::through_leaves(uint64_t offset, uint64_t length, Each each) {
    for (uint32_t leaf = 0; length > 0; leaf++) {
        uint64_t size = leaves_[leaf];
        if (offset >= size) {
            offset -= size;
            continue;
        }
        uint64_t some = std::min(size - offset, length);
        each(static_cast<char *>(api_->leaf(store_, &partial_.run, leaf)) + offset, some);
        offset = 0;
        length -= some;
    }
}

} // namespace echo_rdma
