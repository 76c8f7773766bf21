// A few threads of our own that wait for work, and work that they share. A thread that waits looks about for some
// microseconds and then sleeps in the kernel, so that a busy neighbour gets the processor at once; and nobody waits for a
// thread that has not begun: where a neighbour holds a core, those that run do its part.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include <unistd.h>

#include "vec.h"

constexpr int SPINS = 400;  // looks before a thread goes to sleep; a pause takes 10 to 50 ns

// Wait until done(flag); whoever makes it so calls wake(flag).
template <class Done> void wait_until(const std::atomic<int>& flag, const Done& done) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (done(flag.load(std::memory_order_acquire))) return;
        relax();
    }
    for (int seen; !done(seen = flag.load(std::memory_order_acquire));) {
#if defined(__cpp_lib_atomic_wait)
        flag.wait(seen, std::memory_order_acquire);
#else
        usleep(20);
#endif
    }
}
inline void wake(std::atomic<int>& flag) {
#if defined(__cpp_lib_atomic_wait)
    flag.notify_all();
#endif
}

// One piece of work that threads take parts of as they come to it: one that has a neighbour on its core, or starts late,
// takes less of it. It ends when all parts are done, not when all threads have come by: a thread that the kernel has put
// aside between two works holds nobody up (a barrier made passes 20 times as slow beside one busy process).
struct Shares {
    alignas(64) std::atomic<int> next{0};
    alignas(64) std::atomic<int> done{0};
    // each(begin, end) for parts of 0 .. count, every one taken by a single thread, large parts first, in whole `unit`s;
    // returns when all parts are done, whoever did them.
    template <class Each> void take(int count, int unit, int threads, const Each& each) {
        for (int begin = next.load(std::memory_order_relaxed); begin < count;) {
            const int units = (count - begin) / (2 * threads * unit), part = (units > 1 ? units : 1) * unit;
            const int end = threads > 1 && begin + part < count ? begin + part : count;
            if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
            each(begin, end);
            if (done.fetch_add(end - begin, std::memory_order_acq_rel) + end - begin == count) wake(done);
            begin = next.load(std::memory_order_relaxed);
        }
        wait_until(done, [count](int now) { return now >= count; });
    }
    template <class Each> void each_of(int count, int threads, const Each& each) {  // each(i)
        take(count, 1, threads, [&](int begin, int end) {
            for (int i = begin; i < end; i++) each(i);
        });
    }
};

// One job at a time, on the caller's thread and on as many workers as come by while it runs: the job must be such that
// any of them may come late, or not at all (Shares). Each thread that calls has a pool to itself, so that passes of two
// threads run side by side; when a thread ends, the next one takes over its pool. Workers live as long as the process.
class Pool {
  public:
    static Pool& own() {
        static thread_local Lease lease;
        return *lease.pool;
    }
    // job() on up to `threads` threads at a time; returns when the caller's has ended and nobody is inside.
    template <class Job> void run(int threads, const Job& job) {
        if (threads <= 1) return job();
        threads = threads < MOST_THREADS ? threads : MOST_THREADS - 1;
        if (process_ != getpid()) workers_ = 0, inside_.store(0), process_ = getpid();  // a forked child has no workers
        while (workers_ < threads - 1) std::thread(&Pool::work, this, ++workers_).detach();
        job_ = [](const void* what) { (*static_cast<const Job*>(what))(); };
        what_ = &job;
        inside_.store(OPEN, std::memory_order_release);
        state_.store((state_.load(std::memory_order_relaxed) / MOST_THREADS + 1) % (1 << 20) * MOST_THREADS + threads,
                     std::memory_order_release);
        wake(state_);
        job();
        inside_.fetch_sub(OPEN, std::memory_order_acq_rel);
        wait_until(inside_, [](int now) { return now == 0; });
    }

  private:
    void work(int me) {
        for (int seen = 0;;) {
            wait_until(state_, [seen](int now) { return now != seen; });
            seen = state_.load(std::memory_order_acquire);
            if (me >= seen % MOST_THREADS || !join()) continue;
            job_(what_);
            if (inside_.fetch_sub(1, std::memory_order_acq_rel) == 1) wake(inside_);
        }
    }
    bool join() {  // unless the job has ended
        for (int now = inside_.load(std::memory_order_acquire); now >= OPEN;)
            if (inside_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
        return false;
    }
    struct Lease {
        Lease() {
            const std::lock_guard<std::mutex> one_at_a_time(mutex());
            if (pool_list().empty()) pool_list().push_back(new Pool);  // never destroyed: workers may outlive static objects
            pool = pool_list().back();
            pool_list().pop_back();
        }
        ~Lease() {
            const std::lock_guard<std::mutex> one_at_a_time(mutex());
            pool_list().push_back(pool);
        }
        Pool* pool;
    };
    static std::mutex& mutex() {
        static std::mutex* one = new std::mutex;
        return *one;
    }
    static std::vector<Pool*>& pool_list() {  // of those that nobody uses
        static std::vector<Pool*>* list = new std::vector<Pool*>;
        return *list;
    }
    static constexpr int MOST_THREADS = 1 << 10;
    static constexpr int OPEN = 1 << 20;
    std::atomic<int> state_{0};   // number of the job * MOST_THREADS + its threads: what workers wait for
    std::atomic<int> inside_{0};  // workers that are at it, and OPEN while others may join
    int workers_ = 0;
    pid_t process_ = 0;
    void (*job_)(const void*) = nullptr;
    const void* what_ = nullptr;
};
