// Producers fill slots and consumers check them, without a break.
//
//   ipc_ring_stress [seconds per scenario]
//
// Forbidden: a slot that mixes two rollouts; a slot of two holders; numbers that do not rise; with the policy "block" a rollout that nobody
// took, or without kills one that was taken twice; no room, or nothing to take, for ever.
#include "../../src/echo_ipc/_native/ring.hpp"
#include "ipc_stress.hpp"

constexpr uint64_t kMostCounted = 1 << 22;

// What all processes note down.
struct Tally {
    std::atomic<uint64_t> taken;
    std::atomic<uint8_t> seen[kMostCounted];  // how often each number was taken
};

static std::atomic<uint64_t> *words(const Ring &ring, uint64_t slot) {
    return reinterpret_cast<std::atomic<uint64_t> *>(reinterpret_cast<char *>(ring.header()) + ring.start(slot));
}

static void produce(Ring ring, uint64_t bytes, uint64_t producer, const std::function<bool()> &over) {
    const uint64_t pid = uint64_t(getpid());
    const int64_t started = start_of(getpid());
    for (uint64_t count = 0; !over() && ring.figures().written.load() + 64 < kMostCounted; ++count) {
        Held held;
        const uint32_t seen = ring.header()->freed.look();
        if (ring.claim(pid, started, &held) != kDone) {
            ring.header()->freed.sleep(seen, 5'000'000);
            continue;
        }
        const uint64_t content = (producer + 1) << 56 | pid << 32 | count;
        for (uint64_t i = 0; i < bytes / 8; ++i) words(ring, held.slot)[i].store(content, std::memory_order_relaxed);
        if (count % 7 == 3) {
            if (ring.abort(pid, held) != kDone) forbidden("a claim was taken away from a living process");
            continue;
        }
        Outcome outcome;
        while ((outcome = ring.commit(pid, &held)) == kLater) {}
        if (outcome != kDone) forbidden("a claim was taken away from a living process");
    }
}

static void consume(Ring ring, uint64_t bytes, Tally *tally, const std::function<bool()> &over) {
    const uint64_t pid = uint64_t(getpid());
    const int64_t started = start_of(getpid());
    while (!over()) {
        Held held;
        const uint32_t seen = ring.header()->changed.look();
        if (ring.take(pid, started, &held) != kDone) {
            ring.header()->changed.sleep(seen, 5'000'000);
            continue;
        }
        const uint64_t content = words(ring, held.slot)[0].load(std::memory_order_relaxed);
        for (uint64_t i = 0; i < bytes / 8; ++i)
            if (words(ring, held.slot)[i].load(std::memory_order_relaxed) != content) forbidden("mixed", content, words(ring, held.slot)[i].load());
        if (held.number >= kMostCounted) forbidden("a number that was never given", held.number);
        tally->seen[held.number].fetch_add(1, std::memory_order_relaxed);
        tally->taken.fetch_add(1, std::memory_order_relaxed);
        if (ring.release(pid, held) != kDone) forbidden("a slot was taken away from a living process");
    }
}

static void play(Policy policy, uint64_t bytes, double seconds, bool kills) {
    const uint64_t slots = 4, physical = slots + 4;
    const Segment where = segment(Ring::bytes(0, physical, bytes), kRing, {slots, physical, bytes, policy, 2, 2});
    Ring ring(where);
    auto *tally = reinterpret_cast<Tally *>(shared(sizeof(Tally)));
    uint64_t dead = 0;
    if (kills) {
        const auto never = [] { return false; };
        dead = slaughter(seconds, {[&] { produce(ring, bytes, 0, never); }, [&] { produce(ring, bytes, 1, never); }, [&] { consume(ring, bytes, tally, never); },
                                   [&] { consume(ring, bytes, tally, never); }});
    } else {
        const double end = now() + seconds;
        const auto over = [end] { return now() > end; };
        std::vector<std::thread> threads;
        for (uint64_t i = 0; i < 2; ++i) threads.emplace_back([&, i] { produce(ring, bytes, i, over); });
        for (int i = 0; i < 2; ++i) threads.emplace_back([&] { consume(ring, bytes, tally, over); });
        for (auto &thread : threads) thread.join();
    }
    // Everybody is gone. What is left can be taken, also what dead consumers had.
    usleep(30'000);
    const double limit = now() + 20;
    Ring last(where);
    consume(last, bytes, tally, [&] { return last.available() == 0 && (last.look(), last.available() == 0); });
    if (now() > limit) forbidden("the rest could not be taken");
    // And all slots can be had again.
    Held held;
    usleep(30'000);
    last.look();
    for (uint64_t i = 0; i < (policy == kBlock || policy == kError ? slots : physical); ++i)
        if (last.claim(uint64_t(getpid()), start_of(getpid()), &held) != kDone) forbidden("a slot is lost for ever", i);
    const RingControl &figures = ring.figures();
    const uint64_t written = figures.written.load();
    uint64_t missing = 0, twice = 0;
    for (uint64_t i = 0; i < written; ++i) missing += tally->seen[i] == 0, twice += tally->seen[i] > 1;
    printf("policy %d, %llu bytes%s: %llu written, %llu taken, %llu missing, %llu lost, %llu twice, %llu abandoned, %llu returned, %llu kills, %llu repairs\n", int(policy),
           Number(bytes), kills ? ", killed" : "", Number(written), Number(tally->taken.load()), Number(missing), Number(figures.lost.load()), Number(twice),
           Number(figures.abandoned.load()), Number(figures.returned.load()), Number(dead), Number(ring.header()->lock.repairs()));
    if (written == 0) forbidden("nothing was written");
    if (policy == kBlock && missing) forbidden("lost with the policy to block", missing);
    if (!kills && twice) forbidden("taken twice", twice);
    if (!kills && policy == kDropOldest && missing != figures.lost.load()) forbidden("the count of losses is wrong", missing, figures.lost.load());
    if (twice > figures.returned.load()) forbidden("taken twice without being returned", twice, figures.returned.load());
    munmap(tally, sizeof(Tally));
    unmap(where);
}

int main(int count, char **word) {
    const double seconds = count > 1 ? atof(word[1]) : 1.0;
    for (const bool kills : {false, true})
        for (const Policy policy : {kDropOldest, kBlock, kDropNewest})
            for (const uint64_t bytes : {uint64_t(64), uint64_t(100'000)})
                if (!kills || kProcesses) play(policy, bytes, seconds, kills);
    printf("no forbidden outcome\n");
    return 0;
}
