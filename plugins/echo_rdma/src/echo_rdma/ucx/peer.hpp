// One connection: an endpoint, the bytes that arrived on it, and how far it is with leaving.
//
// What is behind the endpoint belongs to the engine's lock. What callers sleep on (`Inbox`) has a lock of its own, taken inside that one.
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

// nullptr when there is no memory: the peer is given up, nobody else notices.
inline Memory allocate(size_t bytes) { return Memory(static_cast<char *>(malloc(bytes ? bytes : 1))); }

struct Piece {
    Memory data;
    size_t size = 0;
    bool whole = false;
};

// The stream's bytes in order, for one reader that sleeps until there are any.
class Inbox {
  public:
    // Pieces may overtake each other on their way (a rendezvous takes longer than a copy). False: more than the other end may send.
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

    // Put in between two sends of the other end, as if it had sent it. False in the middle of one, where it would tear a frame.
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

    // The other end has sent `pieces` in all. True once they are here, and then reading comes to an end.
    bool ends(uint64_t pieces) {
        std::lock_guard hold(lock_);
        if (next_ < pieces) return false;
        ended_ = true;
        changed_.notify_all();
        return true;
    }

    // No more is read or written: `why` is an error text, "" the end of the stream. The first reason stays.
    void stop(const std::string &why) {
        std::lock_guard hold(lock_);
        if (!over_) why_ = why;
        over_ = true;
        changed_.notify_all();
    }

    // The next bytes, waited for. An empty piece: the end; `why` then says if it was none in order.
    Piece take(std::string &why) {
        std::unique_lock hold(lock_);
        changed_.wait(hold, [&] { return over_ || ended_ || !ready_.empty(); });
        // What came before the other end was lost is read first: it may say why, as a refusal does.
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

    // Bytes of the other end that were read since the last report, once they are worth a message.
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

    // Wait until `bytes` more may be sent. False: it is over, and why.
    bool wait_credit(uint64_t bytes, std::string &why) {
        std::unique_lock hold(lock_);
        changed_.wait(hold, [&] { return over_ || ended_ || sent_ + bytes <= read_there_ + STREAM_CREDIT; });
        if (over_ || ended_) {
            why = over_ && !why_.empty() ? why_ : "the connection is closed";
            return false;
        }
        sent_ += bytes;
        return true;
    }

    bool over() {
        std::lock_guard hold(lock_);
        return over_;
    }

  private:
    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<Piece> ready_;
    std::map<uint64_t, Piece> early_;
    uint64_t next_ = 0, read_ = 0, unread_ = 0, inserted_ = 0, reported_ = 0, sent_ = 0, read_there_ = 0;
    bool boundary_ = true, ended_ = false, over_ = false;
    std::string why_;
};

class Peer;

// What flows beside the stream: samples. Every call with the engine's lock held.
struct Flow {
    virtual ~Flow() = default;
    // An eager message, or a rendezvous (`data` is then its descriptor). Answers as a UCX callback does; false in `good` breaks the protocol.
    virtual ucp::status message(Peer &, const Head &, void *data, size_t length, uint64_t attributes, std::string &broken) = 0;
    // What can be done now is done; true if something was.
    virtual bool turn(Peer &) = 0;
    // About to sleep: have `eventfd` written when `turn` has something to do again. False: it has, now.
    virtual bool sleeps(Peer &, int eventfd) = 0;
    // `turn` has to be called again soon, whatever happens.
    virtual bool hurries() const { return false; }
    // The endpoint is of no more use; nothing is on its way any longer once `Peer::in_flight` is 0.
    virtual void lost(Peer &) = 0;
};

enum class Stage {
    OPEN,
    LEAVING, // END is said; its answer is awaited, not for long
    CLOSING, // the forced close is under way
    GONE,
};

class Engine;

class Peer {
  public:
    explicit Peer(Engine *engine) : engine(engine) {}

    Engine *const engine;
    Inbox inbox;
    ucp::Endpoint *ep = nullptr;
    std::string address; // of the other end, for people
    bool dialled = false;
    bool spoke = false;         // something has come from it
    Stage stage = Stage::OPEN;
    bool failed = false;        // the endpoint is broken: nothing more can be sent
    bool end_received = false;  // END came, and waits for pieces it has overtaken
    bool end_answered = false;
    bool released = false;      // its owner needs it no longer
    uint64_t end_at = 0;        // pieces, as END says
    uint64_t pieces = 0;        // of the stream, sent
    int64_t leave_until = 0;    // ns
    int64_t heard = 0, said = 0; // ns
    void *close_request = nullptr;
    size_t in_flight = 0;       // requests of UCX that refer to memory of ours
    std::shared_ptr<Flow> flow;
    uint64_t bytes_in = 0, bytes_out = 0;

    void fail(const std::string &why) {
        failed = true;
        inbox.stop(why);
    }
};

} // namespace echo_rdma
