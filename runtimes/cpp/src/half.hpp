// float32 to float16, rounding to nearest, ties to even: for initial values of float16 states.
#pragma once

#include <cstdint>
#include <cstring>

namespace t2r {

inline std::uint16_t half_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
    const std::uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude >= 0x47800000) return sign | 0x7C00;  // 65536 and more, which the metadata checks refuse
    int shift = 13;
    std::uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
    int exponent = static_cast<int>(magnitude >> 23) - 112;
    if (exponent <= 0) {  // a subnormal
        shift += 1 - exponent;
        exponent = 0;
        if (shift > 24) return sign;
    }
    const std::uint32_t half = std::uint32_t{1} << (shift - 1), rest = significand & (2 * half - 1);
    std::uint32_t rounded = significand >> shift;
    if (rest > half || (rest == half && (rounded & 1))) rounded++;
    return static_cast<std::uint16_t>(sign | (exponent ? ((exponent - 1) << 10) + rounded : rounded));
}

}  // namespace t2r
