#include "kernels.hpp"

#include <cstdlib>
#include <string>

#ifdef T2R_X86
#include <cpuid.h>
#elif defined(T2R_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(T2R_ARM64) && defined(_WIN32)
#include <windows.h>
#elif defined(T2R_ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace t2r::provider {

namespace {

#ifdef T2R_X86

bool has_avx2() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_half = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    return has_half && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avxvnni() {  // compilers of 2022 do not know this name
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

#elif defined(T2R_ARM64)

bool has_dotprod() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(43);  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
#else
    return true;  // all of Apple's
#endif
}

bool has_i8mm() {
#if defined(__linux__)
    return has_dotprod() && getauxval(AT_HWCAP2) >> 13 & 1;  // HWCAP2_I8MM
#elif defined(_WIN32)
    return has_dotprod() && IsProcessorFeaturePresent(66);  // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
#elif defined(__APPLE__)
    int has = 0;
    std::size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) == 0 && has;
#else
    return false;
#endif
}

#endif

// Of the sets, the asked one, or the best that follows it.
const Kernels &best() {
#ifdef T2R_WASM
    return wasm_kernels;
#else
    const char *const given = std::getenv("T2R_KERNELS");
    const std::string asked = given ? given : "";
#ifdef T2R_X86
    bool may = asked.empty() || asked == "avx512";
    if (may && has_avx512()) return avx512_kernels;
    if ((may |= asked == "avxvnni") && has_avxvnni()) return avxvnni_kernels;
    if (asked != "base" && has_avx2()) return avx2_kernels;
#elif defined(T2R_ARM64)
    bool may = asked.empty() || asked == "i8mm";
    if (may && has_i8mm()) return i8mm_kernels;
    if ((may |= asked == "dotprod") && has_dotprod()) return dotprod_kernels;
    if (asked != "base") return neon_kernels;
#endif
    return base_kernels;
#endif
}

}  // namespace

const Kernels &kernels() {
    static const Kernels &chosen = best();
    return chosen;
}

}  // namespace t2r::provider
