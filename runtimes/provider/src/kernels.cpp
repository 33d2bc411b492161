#include "kernels.hpp"

#include <cstdlib>
#include <cstring>

namespace t2r::provider {

namespace {

const Kernels &best() {
#ifdef T2R_X86
    const char *asked = std::getenv("T2R_KERNELS");
    const bool any = !asked || !*asked;
    if (any ? true : !std::strcmp(asked, "avx512"))
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
            return avx512_kernels;
    if (any || std::strcmp(asked, "base"))
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernels;
#endif
    return base_kernels;
}

}  // namespace

const Kernels &kernels() {
    static const Kernels &chosen = best();
    return chosen;
}

}  // namespace t2r::provider
