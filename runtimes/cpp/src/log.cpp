#include "log.hpp"

#include <mutex>

#include "error.hpp"

namespace t2r {

namespace {

// Locked during a call of the hook, so that the old hook is not called after set_log returns.
std::mutex &mutex() {
    static std::mutex *const made = new std::mutex;  // never deleted: ONNX Runtime may log after main
    return *made;
}

t2r_log hook = nullptr;
void *user = nullptr;
OrtLoggingLevel least = ORT_LOGGING_LEVEL_FATAL;
thread_local bool inside = false;

}  // namespace

void set_log(t2r_log given, void *its, OrtLoggingLevel level) {
    if (inside) fail(T2R_STATE, "another place to change the log", "a call from inside of it", "return from it first");
    const std::lock_guard<std::mutex> lock(mutex());
    hook = given;
    user = its;
    least = given ? level : ORT_LOGGING_LEVEL_FATAL;
}

OrtLoggingLevel log_level() {
    if (inside) return ORT_LOGGING_LEVEL_FATAL;
    const std::lock_guard<std::mutex> lock(mutex());
    return least;
}

void ORT_API_CALL log_message(void *, OrtLoggingLevel level, const char *, const char *, const char *, const char *message) {
    if (inside) return;  // a message caused by the hook itself
    const std::lock_guard<std::mutex> lock(mutex());
    if (!hook || level < least) return;
    inside = true;
    hook(static_cast<int32_t>(level), message, user);
    inside = false;
}

}  // namespace t2r
