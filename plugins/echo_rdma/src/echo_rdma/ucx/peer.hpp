// One connection: an endpoint, the bytes that arrived on it, and the stage of its end.
//
// The engine's lock guards the endpoint and its state. The `Inbox`, on which callers sleep, has a lock of its own, which is taken inside the engine's.
#pragma once

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "library.hpp"
#include "message.hpp"

namespace echo_rdma {

struct Free {
    void operator()(char *memory) const { free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

// Returns nullptr if there is no memory. Then only this peer is given up.
inline Memory allocate(size_t bytes) { return Memory(static_cast<char *>(malloc(bytes ? bytes : 1))); }

struct Piece {
    Memory data;
    size_t size = 0;
    bool whole = false;
};

// The stream's bytes in order, for one reader, which sleeps until there are any.
class Inbox {
  public:
    // Takes a piece. Pieces may overtake each other (a rendezvous takes longer than a copy). False if the other end has sent more than it may.
    bool arrived(uint64_t index, Piece piece) {
        std::lock_guard hold(lock_);
        unread_ += piece.size + sizeof(Piece);
        if (index < next_ || unread_ > 4 * STREAM_CREDIT) return false;
        early_.emplace(index, std::move(piece));
        for (auto at = early_.find(next_); at != early_.end(); at = early_.find(next_)) {
            boundary_ = at->second.whole;
            ready_.push_back(std::move(at->second));
            early_.erase(at);
            next_++;
        }
        changed_.notify_all();
        return true;
    }

    // Inserts bytes between two sends of the other end, as if it had sent them. False in the middle of a send, because they would tear a frame.
    bool insert(const void *data, size_t size) {
        std::lock_guard hold(lock_);
        if (!boundary_ || over_) return false;
        Piece piece{allocate(size), size, true};
        if (!piece.data) return false;
        memcpy(piece.data.get(), data, size);
        inserted_ += size;
        unread_ += size + sizeof(Piece);
        ready_.push_back(std::move(piece));
        changed_.notify_all();
        return true;
    }

    // The other end has sent `pieces` pieces in total. True if all of them are here; the reader then finds the end behind them.
    bool ends(uint64_t pieces) {
        std::lock_guard hold(lock_);
        if (next_ < pieces) return false;
        ended_ = true;
        changed_.notify_all();
        return true;
    }

    // Ends reading and writing. `why` is an error text, or "" for the normal end of the stream. The first reason stays.
    void stop(const std::string &why) {
        std::lock_guard hold(lock_);
        if (!over_) why_ = why;
        over_ = true;
        changed_.notify_all();
    }

    // Waits for the next bytes. An empty piece is the end; `why` is then an error text if it was not a normal end.
    Piece take(std::string &why) {
        std::unique_lock hold(lock_);
        changed_.wait(hold, [&] { return over_ || ended_ || !ready_.empty(); });
        // Bytes that came before the other end was lost are read first. They may give the reason, as a refusal does.
        if (!ready_.empty() && (!over_ || !why_.empty())) {
            Piece piece = std::move(ready_.front());
            ready_.pop_front();
            read_ += piece.size;
            unread_ -= piece.size + sizeof(Piece);
            return piece;
        }
        if (over_) why = why_;
        return {};
    }

    // The number of bytes of the other end that were read since the last report; 0 until they are worth a message.
    uint64_t to_report() {
        std::lock_guard hold(lock_);
        uint64_t theirs = read_ > inserted_ ? read_ - inserted_ : 0;
        if (theirs < reported_ + STREAM_CREDIT / 4) return 0;
        return reported_ = theirs;
    }

    void credit(uint64_t read) {
        std::lock_guard hold(lock_);
        read_there_ = read > read_there_ ? read : read_there_;
        changed_.notify_all();
    }

    // Waits until `bytes` more may be sent. False if the connection has ended; `why` gives the reason.
    bool wait_credit(uint64_t bytes, std::string &why) {
        std::unique_lock hold(lock_);
        changed_.wait(hold, [&] { return over_ || ended_ || sent_ + bytes <= read_there_ + STREAM_CREDIT; });
        if (over_ || ended_) {
            why = reason();
            return false;
        }
        sent_ += bytes;
        return true;
    }

    // Why nothing more can be sent, as an error text.
    std::string why_ended() {
        std::lock_guard hold(lock_);
        return reason();
    }

    bool over() {
        std::lock_guard hold(lock_);
        return over_;
    }

  private:
    std::string reason() const { return over_ && !why_.empty() ? why_ : "the connection is closed"; }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<Piece> ready_;
    std::map<uint64_t, Piece> early_;
    uint64_t next_ = 0, read_ = 0, unread_ = 0, inserted_ = 0, reported_ = 0, sent_ = 0, read_there_ = 0;
    bool boundary_ = true, ended_ = false, over_ = false;
    std::string why_;
};

class Peer;

// The traffic beside the stream: samples. All calls are made with the engine's lock held.
struct Flow {
    virtual ~Flow() = default;
    // Takes an eager message, or a rendezvous (`data` is then its descriptor). Returns what a UCX callback returns; a text in `broken` says how the
    // message breaks the protocol.
    virtual ucp::status message(Peer &, const Head &, void *data, size_t length, uint64_t attributes, std::string &broken) = 0;
    // Does all work that can be done now; true if there was some.
    virtual bool turn(Peer &) = 0;
    // The engine is about to sleep. Arranges that `eventfd` is written when `turn` has work again. False if it has work now.
    virtual bool sleeps(Peer &, int eventfd) = 0;
    // True if `turn` has to be called again soon, no matter what happens.
    virtual bool hurries() const { return false; }
    // The endpoint cannot be used any more. When `Peer::in_flight` is 0, no request is outstanding.
    virtual void lost(Peer &) = 0;
};

enum class Stage {
    OPEN,
    LEAVING, // END was sent; its answer is awaited for a short time
    CLOSING, // the forced close has begun
    GONE,
};

class Engine;

class Peer {
  public:
    explicit Peer(Engine *engine) : engine(engine) {}

    Engine *const engine;
    Inbox inbox;
    ucp::Endpoint *ep = nullptr;
    std::string address; // address of the other end, for people
    bool dialled = false;
    bool spoke = false;         // a message has come from it
    Stage stage = Stage::OPEN;
    bool failed = false;        // the endpoint is broken, so nothing more can be sent
    bool end_received = false;  // END came and waits for pieces that it has overtaken
    bool end_answered = false;
    bool released = false;      // its owner needs it no longer
    uint64_t end_at = 0;        // the number of pieces in END
    uint64_t pieces = 0;        // pieces of the stream that were sent
    int64_t leave_until = 0;    // ns
    int64_t heard = 0, said = 0; // ns
    void *close_request = nullptr;
    size_t in_flight = 0;       // requests of UCX that refer to memory of this process
    std::shared_ptr<Flow> flow;
    uint64_t bytes_in = 0, bytes_out = 0;

    void fail(const std::string &why) {
        failed = true;
        inbox.stop(why);
    }
};

} // namespace echo_rdma
