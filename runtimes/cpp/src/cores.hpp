// How many cores this process may use.
#pragma once

#include <string>

namespace t2r {

// Those of its affinity, or as many as the CPU time of its control groups, rounded up, if they are fewer; 0: all. ONNX Runtime
// counts the machine's cores, and too many threads would wait for each other. Only in tests, `root` is where /proc and /sys are.
int usable_threads(const std::string &root = "");

}  // namespace t2r
