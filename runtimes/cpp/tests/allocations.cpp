// After warm-up, a step allocates none of our memory: operator new and malloc are replaced, and count the allocations that
// ONNX Runtime did not make.
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "t2r.h"

extern "C" void *__libc_malloc(std::size_t size);

namespace {

bool counting = false, inside = false;
long counted = 0;
std::size_t largest = 0;

void count(std::size_t size) {
    counted++;
    largest = std::max(largest, size);
}

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
        if (!from_onnxruntime()) count(size);
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
    if (counting) count(size);
    return posix_memalign(&memory, static_cast<std::size_t>(edge), size) ? throw std::bad_alloc() : memory;
}
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

int go_on(std::int64_t, void *) { return 1; }

// allocations GRAPH BATCH STEPS [WHAT [PLUGIN]]: prints the number of allocations in STEPS steps, and the bytes of the largest. WHAT:
// "one" makes one allocation, to be counted; "stay" calls t2r_reorder with rows that keep their places; "greedy" calls
// t2r_generate for one token at a time.
int main(int count, char **arguments) {
    t2r_decoder *decoder;
    void *frames[4];
    backtrace(frames, 4);  // its first call allocates
    t2r_options options;
    const char *const plugin = count > 5 ? arguments[5] : nullptr;
    t2r_defaults(&options, sizeof options);
    if (plugin) options.provider = &plugin, options.provider_count = options.threads = 1;  // other threads are not watched
    if (count < 4 || t2r_open(arguments[1], &options, &decoder)) return std::fprintf(stderr, "%s\n", t2r_error()), 2;
    const auto batch = static_cast<std::size_t>(std::atoi(arguments[2]));
    const std::string what = count > 4 ? arguments[4] : "";
    std::int64_t tokens[64] = {}, rows[64];
    const std::int64_t *written;
    std::size_t length;
    const float *logits;
    t2r_sampling sampling;
    if (t2r_sampling_defaults(decoder, &sampling, sizeof sampling) || t2r_reset(decoder, batch)) return 2;
    sampling.temperature = 0;
    for (std::size_t row = 0; row < batch; row++) rows[row] = static_cast<std::int64_t>(row);
    for (int step = -8; step < std::atoi(arguments[3]); step++) {
        for (std::size_t row = 0; row < batch; row++) tokens[row] = (step + 8 + static_cast<std::int64_t>(row)) % 17;
        counting = step >= 0;
        const t2r_kind kind = what == "stay"     ? t2r_reorder(decoder, rows, batch)
                              : what == "greedy" ? t2r_generate(decoder, tokens, 1, 1, &sampling, go_on, nullptr, &written, &length)
                                                 : t2r_step(decoder, tokens, batch, &logits);
        if (what == "one" && step == 0) delete new int;
        counting = false;
        if (kind) return std::fprintf(stderr, "%s\n", t2r_error()), 2;
    }
    std::printf("%ld %zu\n", counted, largest);
    return t2r_close(decoder);
}
