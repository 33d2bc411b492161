// Initializes ONNX Runtime's C++ API when the first graph is opened. A library older than its headers is then an error
// instead of a call of a null pointer before main.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <optional>

namespace t2r {

// Throws Error of the kind provider if the library is older than the headers of the build.
const Ort::Env &ort_env();

// Throws Error of the kind provider if threads is too large or negative.
void require_threads(int threads);

// Share one set of threads among all graphs without a number of their own. Throws Error of the kind state after the first
// graph was opened, or of the kind provider.
void share_threads(int threads);
std::optional<int> shared_threads();

}  // namespace t2r
