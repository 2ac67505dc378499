// Messages that arrive at an engine: finds their sender and their receiver. All functions run with the engine's lock held, most as callbacks of UCX.
#pragma once


namespace echo_rdma {

inline ucp::status Engine::on_message(void *argument, const void *header, size_t header_length, void *data, size_t length, const ucp::MessageParam *param) {
    auto *engine = static_cast<Engine *>(argument);
    Peer *peer = engine->sender(param);
    if (peer == nullptr || peer->stage != Stage::OPEN) {
        if (peer != nullptr && peer->stage == Stage::LEAVING && header_length == sizeof(Head)) engine->late(*peer, header);
        return ucp::OK;
    }
    Head head;
    if (header_length != sizeof head) {
        engine->give_up(*peer, "it sent a message of another protocol");
        return ucp::OK;
    }
    memcpy(&head, header, sizeof head);
    peer->heard = engine->now_;
    peer->spoke = true;
    peer->bytes_in += length + sizeof head;
    std::string broken;
    ucp::status answer = ucp::OK;
    if (head.kind == STREAM)
        answer = engine->stream(*peer, head, data, length, param->attributes, broken);
    else if (head.kind == SAMPLES || head.kind == SHOWN || head.kind == PART || head.kind == ACK || head.kind == KEY) {
        if (peer->flow)
            answer = peer->flow->message(*peer, head, data, length, param->attributes, broken);
        else
            broken = "it sent samples before its handshake was done";
    } else
        engine->small(*peer, head, broken);
    if (!broken.empty()) engine->give_up(*peer, "it broke the protocol: " + broken);
    return answer;
}

inline Peer *Engine::sender(const ucp::MessageParam *param) {
    if ((param->attributes & param->REPLY_EP) == 0) return listener_ == nullptr && peers_.size() == 1 ? peers_[0].get() : nullptr;
    auto found = by_endpoint_.find(param->reply);
    return found == by_endpoint_.end() ? nullptr : found->second;
}

// Messages for a peer that is leaving: it still answers END, and takes the answer to its own END.
inline void Engine::late(Peer &peer, const void *header) {
    Head head;
    memcpy(&head, header, sizeof head);
    if (head.kind == ENDED) peer.leave_until = 0;
    if (head.kind == END && !peer.failed) post(peer, Head{.kind = ENDED});
    changed_ = true;
}

inline void Engine::small(Peer &peer, const Head &head, std::string &broken) {
    if (head.kind == CREDIT)
        peer.inbox.credit(head.number);
    else if (head.kind == END) {
        peer.end_received = true;
        peer.end_at = head.number;
        changed_ = true;
    } else if (head.kind != BEAT && head.kind != ENDED)
        broken = "a message of unknown kind " + std::to_string(head.kind);
}

inline ucp::status Engine::stream(Peer &peer, const Head &head, void *data, size_t length, uint64_t attributes, std::string &broken) {
    if (length > PIECE_BYTES) {
        broken = "a piece of " + std::to_string(length) + " bytes";
        return ucp::OK;
    }
    Piece piece{allocate(length), length, (head.flags & WHOLE) != 0};
    if (!piece.data) {
        broken = "no memory for what it sent";
        return ucp::OK;
    }
    if (attributes & ucp::MessageParam::RENDEZVOUS) {
        auto self = std::find_if(peers_.begin(), peers_.end(), [&](auto &p) { return p.get() == &peer; });
        waiting_.push_back({data, new Rendezvous{*self, head.number, std::move(piece), this}});
        return ucp::INPROGRESS;
    }
    memcpy(piece.data.get(), data, length);
    if (!peer.inbox.arrived(head.number, std::move(piece))) broken = "more than it was allowed to send";
    return ucp::OK;
}

// Begins rendezvous that were announced. This happens outside of the callback that announces them.
inline bool Engine::begin_rendezvous() {
    bool any = !waiting_.empty();
    while (!waiting_.empty()) {
        auto [descriptor, wanted] = waiting_.front();
        waiting_.pop_front();
        ucp::RequestParam param{};
        param.mask = param.CALLBACK | param.USER_DATA;
        param.callback.receive = &Engine::on_piece;
        param.user_data = wanted;
        wanted->peer->in_flight++;
        void *answer = ucx_.am_recv_data_nbx(worker_, descriptor, wanted->piece.data.get(), wanted->piece.size, &param);
        if (!ucp::pending(answer)) finish(wanted, ucp::status_of(answer));
    }
    return any;
}

inline void Engine::on_piece(void *request, ucp::status status, size_t, void *argument) {
    finish(static_cast<Rendezvous *>(argument), status);
    library().request_free(request);
}

inline void Engine::finish(Rendezvous *wanted, ucp::status status) {
    wanted->peer->in_flight--;
    wanted->engine->changed_ = true;
    if (status != ucp::OK)
        wanted->engine->give_up(*wanted->peer, text_of(status));
    else if (!wanted->peer->inbox.arrived(wanted->index, std::move(wanted->piece)))
        wanted->engine->give_up(*wanted->peer, "it broke the protocol: more than it was allowed to send");
    delete wanted;
}

} // namespace echo_rdma
