// The end of a call that another thread asks for: seen by us between two runs, and by ONNX Runtime within one.
#pragma once

#include <atomic>
#include <mutex>

#include "ort.hpp"

namespace t2r {

class Cancellation {
public:
    // As long as a call lasts. Before it and after it there is nothing to end.
    class Call {
    public:
        explicit Call(Cancellation &of) : of(of) {
            const std::lock_guard<std::mutex> lock(of.mutex);
            of.running = true;
        }
        ~Call() {
            const std::lock_guard<std::mutex> lock(of.mutex);
            of.running = false;
            if (of.wanted.exchange(false)) of.options.UnsetTerminate();
        }
        Call(const Call &) = delete;
        Call &operator=(const Call &) = delete;

    private:
        Cancellation &of;
    };

    // From any thread: end the call that is running, if one is.
    void cancel() {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!running) return;
        wanted = true;
        options.SetTerminate();
    }

    // Run a graph, as `body` does with these options. Throws Error: of the kind cancelled, or of the kind runtime: `expected`
    // was to be, and ONNX Runtime says otherwise.
    template <class F> auto run(const char *expected, F body) {
        try {
            if (wanted) cancelled();
            return body(options);
        } catch (const Ort::Exception &error) {
            if (wanted) cancelled();
            failed(expected, error);
        }
    }

private:
    [[noreturn]] static void cancelled();
    [[noreturn]] static void failed(const char *expected, const Ort::Exception &error);

    std::mutex mutex;  // of `running`, and of what is done because of it
    bool running = false;
    std::atomic<bool> wanted{false};
    Ort::RunOptions options;
};

}  // namespace t2r
