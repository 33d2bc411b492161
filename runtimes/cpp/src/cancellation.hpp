// Cancels a call from another thread: we check between two runs, ONNX Runtime during a run.
#pragma once

#include <atomic>
#include <mutex>

#include "ort.hpp"

namespace t2r {

class Cancellation {
public:
    // Marks a call as running during its lifetime. Throws Ort::Exception, and the next call can be made.
    class Call {
    public:
        explicit Call(Cancellation &of) : of(of) {
            const std::lock_guard<std::mutex> lock(of.mutex);
            if (of.terminated) of.options.UnsetTerminate();
            of.terminated = false;
            of.running = true;
        }
        ~Call() {
            const std::lock_guard<std::mutex> lock(of.mutex);
            of.running = false;
            if (of.wanted.exchange(false)) of.terminated = true;
        }
        Call(const Call &) = delete;
        Call &operator=(const Call &) = delete;

    private:
        Cancellation &of;
    };

    // Has `cancel` end runs with these options too, during its lifetime.
    class Others {
    public:
        Others(Cancellation &of, Ort::RunOptions &options) : of(of) {
            const std::lock_guard<std::mutex> lock(of.mutex);
            of.others = &options;
            if (of.wanted) options.SetTerminate();
        }
        ~Others() {
            const std::lock_guard<std::mutex> lock(of.mutex);
            of.others = nullptr;
        }
        Others(const Others &) = delete;
        Others &operator=(const Others &) = delete;

    private:
        Cancellation &of;
    };

    // From any thread: end the call that is running, if one is.
    void cancel() {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!running) return;
        wanted = true;
        options.SetTerminate();
        if (others) others->SetTerminate();
    }

    // Call `body` with these options, to run a graph. Throws Error of the kind cancelled, or of the kind runtime if ONNX Runtime
    // fails; `expected` is the message's first part.
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

    std::mutex mutex;  // guards `running` and actions that depend on it
    bool running = false, terminated = false;  // terminated: the options still end every run, until the next call
    std::atomic<bool> wanted{false};
    Ort::RunOptions options, *others = nullptr;
};

}  // namespace t2r
