// Products of rows of weights in 4 and 8 bits and vectors in 8 bits with Arm's registers of 16 bytes: by sdot where processors have it,
// else by smull. Included by kernels_neon.cpp and kernels_dotprod.cpp.
#include <arm_neon.h>

namespace t2r::provider {

namespace {

constexpr std::size_t ahead = 2048;  // prefetch distance in bytes of numbers

inline float32x4_t four_of(const float *from) { return vld1q_f32(from); }
inline float32x4_t four_of(const Half *from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits))); }

// dots += products of four signed bytes each in each lane
inline int32x4_t dot(int32x4_t dots, int8x16_t numbers, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(dots, numbers, x);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(numbers), vget_low_s8(x)), high = vmull_s8(vget_high_s8(numbers), vget_high_s8(x));
    return vaddq_s32(dots, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

// dots += products of the 16 bytes at `at` of a row, less 2^(bits - 1) each, and of their numbers of x. In 4 bits, offsets subtract it.
template <int bits> inline int32x4_t times(int32x4_t dots, const std::uint8_t *from, const QuantizedVector &x, std::size_t at) {
    const uint8x16_t bytes = vld1q_u8(from);
    if (bits == 8) return dot(dots, vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128))), vld1q_s8(x.even + at));
    dots = vaddq_s32(dots, vld1q_s32(x.offsets + at / 4));
    dots = dot(dots, vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), vld1q_s8(x.even + at));
    return dot(dots, vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)), vld1q_s8(x.odd + at));
}

// The sum of a block's products, by lane. `registers`: of a block, or 0: as many as it has.
template <int bits, int registers>
inline float32x4_t of_block(const std::uint8_t *numbers, const QuantizedMatrix &w, const QuantizedVector &x, std::size_t block) {
    const std::size_t count = registers ? registers : w.block * bits / 128;
    int32x4_t dots = vdupq_n_s32(0);
    for (std::size_t i = 0; i < count; i++) dots = times<bits>(dots, numbers + (block * count + i) * 16, x, (block * count + i) * 16);
    return vcvtq_f32_s32(dots);
}

template <class Scale, int bits, int registers>
float row_times_vector(const std::uint8_t *numbers, const Scale *scale, const QuantizedMatrix &w, const QuantizedVector &x) {
    const std::size_t bytes = w.block * bits / 8;
    float32x4_t sum = vdupq_n_f32(0), other = sum;  // two, since a sum waits for the one before
    std::size_t block = 0;
    for (; block + 4 <= w.blocks; block += 4) {
        __builtin_prefetch(scale + block + ahead / bytes);
        for (std::size_t at = 0; at < 4 * bytes; at += 64) __builtin_prefetch(numbers + block * bytes + at + ahead);
        const float32x4_t scales = vmulq_f32(four_of(scale + block), vld1q_f32(x.scales + block));
        const auto one = [&](std::size_t i) { return of_block<bits, registers>(numbers, w, x, block + i); };
        sum = vfmaq_laneq_f32(vfmaq_laneq_f32(sum, one(0), scales, 0), one(2), scales, 2);
        other = vfmaq_laneq_f32(vfmaq_laneq_f32(other, one(1), scales, 1), one(3), scales, 3);
    }
    for (; block < w.blocks; block++) sum = vfmaq_n_f32(sum, of_block<bits, registers>(numbers, w, x, block), number_of(scale[block]) * x.scales[block]);
    return vaddvq_f32(vaddq_f32(sum, other));
}

// Blocks of 16 numbers in 4 bits, two in a register.
template <class Scale> float row_of_halves(const std::uint8_t *numbers, const Scale *scale, const QuantizedMatrix &w, const QuantizedVector &x) {
    float32x4_t sum = vdupq_n_f32(0);
    for (std::size_t block = 0; block < w.blocks; block += 2) {
        const bool has_both = block + 1 < w.blocks;
        std::uint8_t rest[16] = {};  // what follows the last block is not read
        if (!has_both) std::memcpy(rest, numbers + block * 8, 8);
        const float first = number_of(scale[block]) * x.scales[block], second = has_both ? number_of(scale[block + 1]) * x.scales[block + 1] : 0;
        __builtin_prefetch(numbers + block * 8 + ahead), __builtin_prefetch(scale + block + ahead / 8);
        const int32x4_t dots = times<4>(vdupq_n_s32(0), has_both ? numbers + block * 8 : rest, x, block * 8);
        sum = vfmaq_f32(sum, vcvtq_f32_s32(dots), vcombine_f32(vdup_n_f32(first), vdup_n_f32(second)));
    }
    return vaddvq_f32(sum);
}

template <class Scale>
void product_of(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                std::size_t stride) {
    const auto product = w.bits == 8     ? (w.block == 16   ? row_times_vector<Scale, 8, 1>
                                            : w.block == 32 ? row_times_vector<Scale, 8, 2>
                                                            : row_times_vector<Scale, 8, 0>)
                         : w.block == 16 ? row_of_halves<Scale>
                         : w.block == 32 ? row_times_vector<Scale, 4, 1>
                                         : row_times_vector<Scale, 4, 0>;
    const std::size_t bytes = w.blocks * w.block * w.bits / 8;
    for (std::size_t row = first; row < last; row++)
        for (std::size_t v = 0; v < vectors; v++)
            y[v * stride + row] = product(w.numbers + row * bytes, w.scales_of<Scale>(row), w, x[v]) + of_zeros(w, x[v], row);
}

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                       std::size_t stride) {
    (w.has_halves ? product_of<Half> : product_of<float>)(w, x, vectors, first, last, y, stride);
}

}  // namespace

}  // namespace t2r::provider
