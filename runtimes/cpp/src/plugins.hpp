// Execution providers in libraries of their own, which ONNX Runtime opens by path since 1.22.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ort.hpp"

namespace t2r {

// Whether an execution provider's name is the path of a library: no name of ONNX Runtime has a separator.
bool is_plugin(const std::string &provider);

// Run a session's graph on the first device of the library. Throws Error of the kind provider: ONNX Runtime is older, or the
// library is none that it takes; Ort::Exception: its options.
void append_plugin(const std::string &path, const std::vector<std::pair<std::string, std::string>> &provider_options,
                   Ort::SessionOptions &options);

}  // namespace t2r
