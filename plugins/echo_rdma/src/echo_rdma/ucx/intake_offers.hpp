// Large messages that are offered by rendezvous. They are received straight into slots if the lanes allow it, otherwise into memory of their own. Part of
// intake.hpp.
#pragma once


namespace echo_rdma {

// Begins to receive the offered messages, in order.
inline void Intake::begin(Peer &peer) {
    size_t under_way = 0;
    for (auto &one : parked_) {
        if (one->state == ARRIVING) under_way++;
        if (one->state != OFFERED) continue;
        if (under_way >= AT_ONCE || peer.failed) return;
        ucp::RequestParam param{};
        param.mask = param.CALLBACK | param.USER_DATA;
        param.callback.receive = &Intake::on_received;
        param.user_data = one.get();
        void *to;
        size_t count;
        if (direct_ && one->first > committed_ && only_slots_before(one.get())) {
            if (!claim_all(*one)) return; // there is no space, or not in one run: see claim_all
        }
        if (one->in_run) {
            param.mask |= param.DATATYPE;
            param.datatype = one->pieces.size() == 1 ? ucp::CONTIGUOUS : ucp::IOV;
            to = one->pieces.size() == 1 ? one->pieces[0].buffer : one->pieces.data();
            count = one->pieces.size() == 1 ? one->bytes : one->pieces.size();
        } else {
            one->memory = allocate(one->bytes);
            if (!one->memory) {
                one->state = FAILED;
                return;
            }
            to = one->memory.get();
            count = one->bytes;
        }
        one->intake = this;
        one->peer = &peer;
        one->keep = peer.flow;
        one->state = ARRIVING;
        peer.in_flight++;
        under_way++;
        void *descriptor = one->descriptor;
        one->descriptor = nullptr; // it belongs to UCX from now on
        void *answer = library().am_recv_data_nbx(peer.engine->worker(), descriptor, to, count, &param);
        if (!ucp::pending(answer)) received(one.get(), ucp::status_of(answer));
    }
}

// Slots are claimed in the order of the samples: a message claims only after all messages before it have their slots.
inline bool Intake::only_slots_before(const Parked *one) const {
    for (auto &other : parked_) {
        if (other.get() == one) return true;
        if (!other->in_run) return false;
    }
    return true;
}

// False if there is no space now. A run that is too short is given back, and the message is then received into memory of its own.
inline bool Intake::claim_all(Parked &one) {
    full_ = false;
    if (!claim(one.count, one.run, true)) return false;
    if (one.run.count < one.count || uint64_t(one.count) * leaves_.size() > 64) {
        api_->abort(store_, &one.run);
        return true;
    }
    one.in_run = true;
    for (uint32_t i = 0; i < one.count; i++)
        for (uint32_t leaf = 0; leaf < leaves_.size(); leaf++)
            if (leaves_[leaf]) one.pieces.push_back({static_cast<char *>(api_->leaf(store_, &one.run, leaf)) + i * leaves_[leaf], leaves_[leaf]});
    return true;
}

inline void Intake::on_received(void *request, ucp::status status, size_t, void *argument) {
    received(static_cast<Parked *>(argument), status);
    library().request_free(request);
}

inline void Intake::received(Parked *one, ucp::status status) {
    Intake &intake = *one->intake;
    auto keep = std::move(one->keep);
    one->peer->in_flight--;
    if (intake.stopped_) {
        if (one->in_run) intake.hold(*one);
        std::erase_if(intake.parked_, [&](auto &other) { return other.get() == one; });
        intake.give_back();
        return;
    }
    if (status != ucp::OK) {
        one->state = FAILED; // the worker will be given up
    } else if (one->in_run) {
        one->state = IN_SLOTS;
    } else {
        one->rows = one->memory.get();
        one->state = HERE;
    }
}

} // namespace echo_rdma
