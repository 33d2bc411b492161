#include "ort.hpp"

#include <cstdlib>
#include <mutex>
#include <optional>

#include "cores.hpp"
#include "error.hpp"
#include "log.hpp"

namespace t2r {

namespace {

constexpr int max_threads = 4096;

std::mutex mutex;             // guards both
std::optional<int> shared;    // number of threads shared by all graphs
bool is_made = false;         // whether the environment exists, which fixes `shared`

// The environment without the events of its builds for Windows.
Ort::Env *silent(Ort::Env *env) {
#ifdef _WIN32
    env->DisableTelemetryEvents();
#endif
    return env;
}

const Ort::Env *make_env() {
    const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (!api)
        fail(T2R_PROVIDER, "an ONNX Runtime of the interface " + number(ORT_API_VERSION) + " or later",
             printable(OrtGetApiBase()->GetVersionString()), "put a newer library in its place");
    Ort::InitApi(api);
    const std::lock_guard<std::mutex> lock(mutex);
#ifndef _WIN32
    // ONNX Runtime's own builds of 1.29 and later send events to Microsoft unless this is set before their environment
    // is made
    setenv("ORT_DISABLE_TELEMETRY", "1", 0);
#endif
    if (!shared) {
        const auto *made = silent(new Ort::Env(ORT_LOGGING_LEVEL_WARNING, "t2r", log_message, nullptr));
        is_made = true;
        return made;
    }
    Ort::ThreadingOptions threads;
    threads.SetGlobalIntraOpNumThreads(*shared ? *shared : usable_threads());
    threads.SetGlobalInterOpNumThreads(1);
    const auto *made = silent(new Ort::Env(threads, log_message, nullptr, ORT_LOGGING_LEVEL_WARNING, "t2r"));
    is_made = true;
    return made;
}

}  // namespace

const Ort::Env &ort_env() {
    static const Ort::Env *const env = make_env();  // never deleted: sessions may outlive main
    return *env;
}

void require_threads(int threads) {
    if (threads < 0 || threads > max_threads)
        fail(T2R_PROVIDER, "a number of threads from 1 to 4096", number(threads), "leave it 0 for one a core");
}

void share_threads(int threads) {
    require_threads(threads);
    const std::lock_guard<std::mutex> lock(mutex);
    if (is_made) fail(T2R_STATE, "a call before the first graph is opened", "one after it", "make it when the program starts");
    shared = threads;
}

std::optional<int> shared_threads() {
    const std::lock_guard<std::mutex> lock(mutex);
    return shared;
}

}  // namespace t2r
