// ONNX Runtime's C++ API, which is bound when the first graph is opened: a library older than its headers is then an
// error of ours, and no call of a null pointer before main.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

namespace t2r {

// Throws Error of the kind provider: the library is older than the headers that this was built with.
const Ort::Env &ort_env();

// ONNX Runtime counts the machine's cores: threads of a process that may use fewer would wait for each other. 0: all.
int usable_threads();

// Throws Error of the kind provider: too many, or fewer than none.
void require_threads(int threads);

// One set of threads for all graphs that ask for no number of their own. Throws Error: of the kind state, after the first
// graph was opened, and provider.
void share_threads(int threads);
bool are_threads_shared();

}  // namespace t2r
