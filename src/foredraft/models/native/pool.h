// A few threads of our own that wait for work, and a barrier for those that share a pass. Waiting threads look for work
// for some microseconds and then sleep in the kernel, so that a busy neighbour gets the processor at once.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include <unistd.h>

#include "vec.h"

constexpr int SPINS = 400;  // looks before a thread goes to sleep; a pause takes 10 to 50 ns

// Wait until `flag` is no longer `old`.
inline void wait_while(const std::atomic<int>& flag, int old) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (flag.load(std::memory_order_acquire) != old) return;
        relax();
    }
    while (flag.load(std::memory_order_acquire) == old) {
#if defined(__cpp_lib_atomic_wait)
        flag.wait(old, std::memory_order_acquire);
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

// Where each thread of a pass waits for all.
struct Barrier {
    int threads;
    std::atomic<int> arrived{0}, round{0};
    void wait() {
        if (threads == 1) return;
        const int now = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) < threads - 1) return wait_while(round, now);
        arrived.store(0, std::memory_order_relaxed);
        round.store(now + 1, std::memory_order_release);
        wake(round);
    }
};

// Work that threads share as they come to it: one that has a neighbour on its core, or starts late, takes less of it.
struct Shares {
    std::atomic<int> next{0};
    // each(begin, end) for parts of 0 .. count, every one taken by a single thread: large parts first, in whole `unit`s.
    template <class Each> void take(int count, int unit, int threads, const Each& each) {
        for (int begin = next.load(std::memory_order_relaxed); begin < count;) {
            const int units = (count - begin) / (2 * threads * unit), part = (units > 1 ? units : 1) * unit;
            const int end = threads > 1 && begin + part < count ? begin + part : count;
            if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
            each(begin, end);
            begin = next.load(std::memory_order_relaxed);
        }
    }
};

// One job at a time, on the caller's thread and as many workers as the job asks for. Each thread that calls has a pool to
// itself, so that passes of two threads run side by side; when a thread ends, the next one takes over its pool. Workers
// live as long as the process.
class Pool {
  public:
    static Pool& own() {
        static thread_local Lease lease;
        return *lease.pool;
    }
    // job(i) for i in 0 .. threads, each on a thread of its own.
    template <class Job> void run(int threads, const Job& job) {
        if (threads <= 1) return job(0);
        threads = threads < MOST_THREADS ? threads : MOST_THREADS - 1;
        if (process_ != getpid()) workers_ = 0, process_ = getpid();  // a forked child has none of its parent's threads
        while (workers_ < threads - 1) std::thread(&Pool::work, this, ++workers_).detach();
        job_ = [](const void* what, int me) { (*static_cast<const Job*>(what))(me); };
        what_ = &job;
        left_.store(threads - 1, std::memory_order_relaxed);
        state_.store((state_.load(std::memory_order_relaxed) / MOST_THREADS + 1) % (1 << 20) * MOST_THREADS + threads,
                     std::memory_order_release);
        wake(state_);
        job(0);
        for (int left; (left = left_.load(std::memory_order_acquire)) > 0;) wait_while(left_, left);
    }

  private:
    void work(int me) {
        for (int seen = 0;;) {
            wait_while(state_, seen);
            seen = state_.load(std::memory_order_acquire);
            if (me >= seen % MOST_THREADS) continue;
            job_(what_, me);
            if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) wake(left_);
        }
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
    std::atomic<int> state_{0};  // number of the job * MOST_THREADS + its threads: read at once, so that none is taken twice
    std::atomic<int> left_{0};   // workers that have not finished it
    int workers_ = 0;
    pid_t process_ = 0;
    void (*job_)(const void*, int) = nullptr;
    const void* what_ = nullptr;
};
