// Team of threads that run a step together. They synchronize after every stage, some hundred times in two milliseconds, so they
// spin on a counter instead of blocking in the operating system.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace t2r::provider {

using Mutex = std::mutex;

class Team {
public:
    // Spin barrier: each of `threads` threads calls meet() between the parts of its work.
    class Meeting {
    public:
        explicit Meeting(int threads) : threads(threads) {}
        void meet();

    private:
        const int threads;
        std::atomic<int> arrived{0};
        std::atomic<std::uint32_t> round{0};
    };

    // Throws std::system_error if the system allows no more threads.
    explicit Team(int threads);
    ~Team();
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    // Runs work(data, thread, threads, meeting) on all threads, or on the caller's alone while another call is running.
    // `work` does not throw.
    void run(void (*work)(void *, int, int, Meeting &), void *data);

    // Whether its threads are of another process, which forked this one: only the thread that calls fork() is copied.
    bool is_of_parent() const;

private:
    struct Task {
        void (*work)(void *, int, int, Meeting &);
        void *data;
        Meeting *meeting;
    };

    void wait_for_work(int thread);
    void end();

    const int threads;
    const long process;
    std::vector<std::thread> others;
    std::mutex running;   // held by the call that the other threads work for
    Task task{};
    std::atomic<std::uint32_t> calls{0};
    std::atomic<int> unfinished{0};
    std::atomic<int> asleep{0};
    std::atomic<bool> ends{false};
    std::mutex mutex;     // for sleeping threads
    std::condition_variable called;
};

// The team of this process with this number of threads, shared by all callers.
std::shared_ptr<Team> team_of(int threads);

// Cores that this process may use: those of its affinity, and as many as the CPU time of its control groups, rounded up. The
// groups' files are under `root`, which is not / in tests alone.
int usable_cores(const std::string &root = "");

}  // namespace t2r::provider
