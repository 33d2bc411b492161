// Execution providers in plugin libraries, which ONNX Runtime opens by path since 1.22.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ort.hpp"

namespace t2r {

// Whether a provider is a library's path: ONNX Runtime's names have no separator.
bool is_plugin(const std::string &provider);

// Whether a provider is the library of our own one, of a version that takes the options of states in place: an older one ignores them.
bool keeps_in_place(const std::string &provider);

// Options of a run of our own provider, for states in place, which are bound as inputs and outputs: the tokens in caches, and those that
// windows have read since their rows were in order.
inline constexpr const char *rows_option = "ep.t2rexecutionprovider.rows", *windows_option = "ep.t2rexecutionprovider.windows";
// In its error where a state is no window that it can keep in place.
inline constexpr const char *no_window = "that is no window in place";

// Run a session's graph on the first device of the library; `threads` is for our own provider, 0 for one a core. Throws Error of the kind provider if ONNX Runtime is older, or
// refuses the library; Ort::Exception if an option is invalid.
void append_plugin(const std::string &path, const std::vector<std::pair<std::string, std::string>> &provider_options, int threads,
                   Ort::SessionOptions &options);

}  // namespace t2r
