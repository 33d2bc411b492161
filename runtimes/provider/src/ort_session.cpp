#include "ort_session.hpp"

#include <chrono>
#include <condition_variable>
#include <cstring>

namespace t2r::provider {

namespace {

constexpr auto patience = std::chrono::milliseconds(50);

struct Arrivals {
    const int most;
    const std::chrono::steady_clock::time_point end = std::chrono::steady_clock::now() + patience;
    int count = 0;
    bool is_over = false;
    std::mutex mutex{};
    std::condition_variable all{};

    // Holds the thread that calls it, so that it does not come twice.
    void arrive() {
        std::unique_lock<std::mutex> lock(mutex);
        if (is_over) return;
        count++;
        all.notify_all();
        all.wait_until(lock, end, [&] { return count == most || is_over; });
        is_over = true;
    }
};

// y = Identity(x), of one float32
constexpr char model[] =
    "\x08\x08"                                            // format version 8
    "\x3a\x2f"                                            // the graph: a node, a name, an input, an output
    "\x0a\x10\x0a\x01x\x12\x01y\x22\x08Identity"
    "\x12\x01g"
    "\x5a\x0b\x0a\x01x\x12\x06\x0a\x04\x08\x01\x12\x00"
    "\x62\x0b\x0a\x01y\x12\x06\x0a\x04\x08\x01\x12\x00"
    "\x42\x02\x10\x0d";                                   // opset 13

}  // namespace

int pool_threads(const Ort::KernelContext &context, int most) {
    if (most < 2) return most;
    Arrivals arrivals{most};
    const auto count = static_cast<std::size_t>(most);
    context.ParallelFor([](void *data, std::size_t) { static_cast<Arrivals *>(data)->arrive(); }, count, count, &arrivals);
    return arrivals.count;
}

bool Termination::is_wanted(const OrtRunOptions *options) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!session) {
            env = Ort::Env(ORT_LOGGING_LEVEL_FATAL, "t2r");  // the process has one; this counts its use
            Ort::SessionOptions plain;
            plain.SetIntraOpNumThreads(1).SetGraphOptimizationLevel(ORT_DISABLE_ALL).SetLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);
            session = Ort::Session(env, model, sizeof model - 1, plain);
        }
    }
    float number = 0;
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const Ort::Value x = Ort::Value::CreateTensor(memory, &number, 1, nullptr, 0);
    const char *const from = "x", *const to = "y";
    const OrtValue *const input = x;
    OrtValue *output = nullptr;
    const Ort::Status status(Ort::GetApi().Run(session, options, &from, &input, 1, &to, 1, &output));
    if (output) Ort::GetApi().ReleaseValue(output);
    return !status.IsOK() && std::strstr(status.GetErrorMessage().c_str(), "terminate");
}

}  // namespace t2r::provider
