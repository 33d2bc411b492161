#include "cores.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace t2r {

namespace {

std::string text_of(const std::string &path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// `most`, or as many cores as a quota ("TIME PERIOD") has, if they are fewer; "max" and -1 are no quota.
int within(const std::string &quota, int most) {
    std::istringstream numbers(quota);
    double time = 0, period = 0;
    if (!(numbers >> time >> period) || time <= 0 || time >= period * most) return most;
    return static_cast<int>(std::ceil(time / period));
}

// The same for this process's control groups of version 2 (0::PATH) and 1 (NUMBER:cpu,cpuacct:PATH), and all that contain them.
int within_groups(const std::string &root, int most) {
    std::istringstream groups(text_of(root + "/proc/self/cgroup"));
    for (std::string line; std::getline(groups, line);) {
        const std::size_t end = line.find(':'), path = line.find(':', end + 1);
        if (end == line.npos || path == line.npos) continue;
        const std::string kinds = "," + line.substr(end + 1, path - end - 1) + ",";
        const bool is_second = kinds == ",,";
        if (!is_second && kinds.find(",cpu,") == kinds.npos) continue;
        for (std::string group = line.substr(path + 1);; group.resize(group.rfind('/'))) {
            const std::string folder = root + "/sys/fs/cgroup" + (is_second ? "" : "/cpu") + group;
            most = within(is_second ? text_of(folder + "/cpu.max") : text_of(folder + "/cpu.cfs_quota_us") + text_of(folder + "/cpu.cfs_period_us"), most);
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

int usable_threads(const std::string &root) {
    const int usable = within_groups(root, cores_of_process());
    return usable < static_cast<int>(std::thread::hardware_concurrency()) ? usable : 0;
}

}  // namespace t2r
