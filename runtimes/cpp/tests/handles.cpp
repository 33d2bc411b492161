// Two threads close one handle at once: one of them does, and the other gets an error, also where it found the handle open.
#include "handles.hpp"

#include <cstdio>
#include <thread>

struct Handle;

int main() {
    t2r::Handles<int, Handle> handles("number");
    for (int round = 0; round < 10000; round++) {
        Handle *const handle = handles.add(std::make_unique<int>(round));
        std::atomic<int> ready{0}, closed{0};
        const auto close = [&] {
            for (ready++; ready < 2;) std::this_thread::yield();
            try {
                handles.close(handle);
                closed++;
            } catch (const t2r::Error &) {
            }
        };
        std::thread other(close);
        close();
        other.join();
        if (closed != 1) return std::printf("closed %d times in round %d\n", closed.load(), round), 1;
    }
    return std::puts("good") < 0;
}
