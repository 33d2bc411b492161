// A step allocates nothing of ours after warm-up: operator new and malloc are replaced, and whatever does not come out of
// ONNX Runtime is counted.
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "t2r.h"

extern "C" void *__libc_malloc(std::size_t size);

namespace {

bool counting = false, inside = false;
long counted = 0;

bool from_onnxruntime() {
    void *frames[64];
    const int depth = backtrace(frames, 64);
    for (int i = 0; i < depth; i++) {
        Dl_info found;
        if (dladdr(frames[i], &found) && found.dli_fname && std::strstr(found.dli_fname, "libonnxruntime")) return true;
    }
    return false;
}

void *allocate(std::size_t size) {
    if (counting && !inside) {
        inside = true;
        if (!from_onnxruntime()) counted++;
        inside = false;
    }
    return __libc_malloc(size);
}

}  // namespace

extern "C" void *malloc(std::size_t size) { return allocate(size); }
void *operator new(std::size_t size) { return allocate(size); }
void *operator new[](std::size_t size) { return allocate(size); }
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void *memory, std::size_t) noexcept { std::free(memory); }
void *operator new(std::size_t size, std::align_val_t edge) {
    void *memory = nullptr;
    if (counting) counted++;
    return posix_memalign(&memory, static_cast<std::size_t>(edge), size) ? throw std::bad_alloc() : memory;
}
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

// allocations GRAPH BATCH STEPS [counts]: how many there were in so many steps; with a fourth argument, that one is seen.
int main(int count, char **arguments) {
    t2r_decoder *decoder;
    void *frames[4];
    backtrace(frames, 4);  // which allocates once
    if (count < 4 || t2r_open(arguments[1], nullptr, &decoder)) return std::fprintf(stderr, "%s\n", t2r_error()), 2;
    const auto batch = static_cast<std::size_t>(std::atoi(arguments[2]));
    std::int64_t tokens[64] = {};
    const float *logits;
    if (t2r_reset(decoder, batch)) return 2;
    for (int step = -8; step < std::atoi(arguments[3]); step++) {
        counting = step >= 0;
        for (std::size_t row = 0; row < batch; row++) tokens[row] = (step + 8 + static_cast<std::int64_t>(row)) % 17;
        if (t2r_step(decoder, tokens, batch, &logits)) return 2;
        if (count > 4 && step == 0) delete new int;
    }
    counting = false;
    std::printf("%ld\n", counted);
    return t2r_close(decoder);
}
