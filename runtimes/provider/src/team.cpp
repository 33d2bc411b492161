#include "team.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#ifdef __linux__
#include <sched.h>
#endif
#ifndef _WIN32
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace t2r::provider {

namespace {

constexpr int looks = 1 << 12;                            // spins before a thread yields its core
constexpr auto patience = std::chrono::milliseconds(2);   // before it sleeps: steps follow each other closely

inline void breathe() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

long this_process() {
#ifdef _WIN32
    return 0;  // no fork
#else
    return static_cast<long>(getpid());
#endif
}

template <class Condition> void look_until(Condition holds) {
    for (int look = 0; !holds(); look++) {
        if (look < looks)
            breathe();
        else
            std::this_thread::yield();
    }
}

// Cores of a quota of CPU time in a period, at most `most`; "max" and -1, which is no quota, change nothing.
int cores_of(std::istream &&quota, std::istream &&period, int most) {
    double time = 0, each = 0;
    if (!(quota >> time) || !(period >> each) || time <= 0 || each <= 0 || time >= each * most) return most;
    return std::max(1, static_cast<int>(std::ceil(time / each)));
}

// The least of the process's control groups of version 2 (0::PATH) and 1 (NUMBER:cpu,cpuacct:PATH), and of those that contain them.
int cores_of_groups(const std::string &root, int most) {
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const std::size_t end = line.find(':'), path = line.find(':', end + 1);
        if (end == line.npos || path == line.npos) continue;
        const std::string kinds = "," + line.substr(end + 1, path - end - 1) + ",";
        const bool is_second = kinds == ",,";
        if (!is_second && kinds.find(",cpu,") == kinds.npos) continue;
        for (std::string group = line.substr(path + 1);; group.resize(group.rfind('/'))) {
            const std::string folder = root + "/sys/fs/cgroup" + (is_second ? "" : "/cpu") + group;
            if (is_second) {
                std::ifstream limit(folder + "/cpu.max");
                std::string quota, period;
                limit >> quota >> period;
                most = cores_of(std::istringstream(quota), std::istringstream(period), most);
            } else {
                most = cores_of(std::ifstream(folder + "/cpu.cfs_quota_us"), std::ifstream(folder + "/cpu.cfs_period_us"), most);
            }
            if (group.find('/') == group.npos) break;
        }
    }
    return most;
}

// The number of cores that this process may use; 0 where the system does not say.
int cores_of_process() {
#ifdef __linux__
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
    return 0;
}

}  // namespace

void Team::Meeting::meet() {
    if (threads == 1) return;
    const std::uint32_t now = round.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
        arrived.store(0, std::memory_order_relaxed);
        round.store(now + 1, std::memory_order_release);
        return;
    }
    look_until([&] { return round.load(std::memory_order_acquire) != now; });
}

Team::Team(int threads) : threads(threads), process(this_process()) {
    try {
        for (int thread = 1; thread < threads; thread++) others.emplace_back([this, thread] { wait_for_work(thread); });
    } catch (...) {  // the system allows no more threads; no destructor follows
        end();
        throw;
    }
}

Team::~Team() { end(); }

void Team::end() {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        ends = true;
    }
    called.notify_all();
    for (std::thread &other : others) other.join();
}

bool Team::is_of_parent() const { return process != this_process(); }

void Team::run(void (*work)(void *, int, int, Meeting &), void *data) {
    const std::unique_lock<std::mutex> alone(running, std::try_to_lock);
    if (threads == 1 || !alone) {
        Meeting nobody(1);
        return work(data, 0, 1, nobody);
    }
    Meeting meeting(threads);
    task = {work, data, &meeting};
    unfinished = threads - 1;
    calls.fetch_add(1);  // seq_cst, like asleep: a thread that goes to sleep either sees the call or is seen here
    if (asleep.load() != 0) {
        { const std::lock_guard<std::mutex> lock(mutex); }
        called.notify_all();
    }
    work(data, 0, threads, meeting);
    look_until([&] { return unfinished.load(std::memory_order_acquire) == 0; });
}

void Team::wait_for_work(int thread) {
    std::uint32_t seen = 0;
    for (;;) {
        const auto until = std::chrono::steady_clock::now() + patience;
        bool is_called = false;
        for (int look = 1; !(is_called = calls.load() != seen) && !ends; look++) {
            breathe();
            if (look % 64 == 0 && std::chrono::steady_clock::now() > until) break;
        }
        if (!is_called) {
            std::unique_lock<std::mutex> lock(mutex);
            asleep.fetch_add(1);
            called.wait(lock, [&] { return ends || calls.load() != seen; });
            asleep.fetch_sub(1);
            if (calls.load() == seen) return;
        }
        seen++;
        task.work(task.data, thread, threads, *task.meeting);
        unfinished.fetch_sub(1, std::memory_order_release);
    }
}

std::shared_ptr<Team> team_of(int threads) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<Team>> teams;
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<Team> team = teams[threads].lock();
    if (!team || team->is_of_parent()) {
        // a parent's team is leaked in the child: its threads cannot be joined, nor its condition variable destroyed
        team = std::shared_ptr<Team>(new Team(threads), [](Team *each) { if (!each->is_of_parent()) delete each; });
        teams[threads] = team;
    }
    return team;
}

int usable_cores(const std::string &root) {
    if (const int cores = cores_of_process()) return cores_of_groups(root, cores);
    const unsigned cores_of_machine = std::thread::hardware_concurrency();
    return cores_of_machine ? static_cast<int>(cores_of_machine) : 1;
}

}  // namespace t2r::provider
