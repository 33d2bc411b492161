#include "kernels.hpp"

#include <cstdlib>
#include <string>

#ifdef T2R_X86
#include <cpuid.h>
#endif

namespace t2r::provider {

namespace {

#ifdef T2R_X86

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avxvnni() {  // compilers of 2022 do not know this name
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

#endif

const Kernels &best() {
#ifdef T2R_X86
    const char *const given = std::getenv("T2R_KERNELS");
    const std::string asked = given ? given : "";
    bool may = asked.empty() || asked == "avx512";  // of the sets, the asked one or the best that follows it
    if (may && has_avx512()) return avx512_kernels;
    if ((may |= asked == "avxvnni") && has_avxvnni()) return avxvnni_kernels;
    if (asked != "base" && has_avx2()) return avx2_kernels;
#endif
    return base_kernels;
}

}  // namespace

const Kernels &kernels() {
    static const Kernels &chosen = best();
    return chosen;
}

}  // namespace t2r::provider
