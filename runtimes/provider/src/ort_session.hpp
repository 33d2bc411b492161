// Settings of a session that ONNX Runtime has no function to read.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <memory>
#include <mutex>

namespace t2r::provider {

// Number of threads of the session's pool, counting the caller, and at most `most`: those that arrive within 50 ms.
int pool_threads(const Ort::KernelContext &context, int most);

// Whether a run is to end, by its options' terminate flag. A session of one node is run with the same options: it fails if so.
// That takes some microseconds, and the session is made when it is first asked for.
class Termination {
public:
    bool is_wanted(const OrtRunOptions *options);

private:
    std::mutex mutex;
    Ort::Env env{nullptr};
    Ort::Session session{nullptr};
};

}  // namespace t2r::provider
