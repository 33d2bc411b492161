// ONNX Runtime's C++ API, which is bound when the first graph is opened: a library older than its headers is then an
// error of ours, and no call of a null pointer before main.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

namespace t2r {

// Throws Error of the kind provider: the library is older than the headers that this was built with.
const Ort::Env &ort_env();

}  // namespace t2r
