// Products of rows of weights in 4 and 8 bits and vectors in 8 bits with Arm's registers of 16 bytes: by sdot where processors have it,
// else by smull; of two and more vectors by smmla. Included by kernels_neon.cpp, kernels_dotprod.cpp and kernels_i8mm.cpp.
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

#ifdef __ARM_FEATURE_MATMUL_INT8

// Products of 2 · rows rows with 2 · pairs vectors, whose numbers are unpacked once: one smmla sums eight products of each of two rows and two
// vectors.
template <class Scale, int bits, int rows, int pairs> struct Pairs {
    const QuantizedMatrix &w;
    const QuantizedVector *x;
    const std::size_t bytes = w.blocks * w.block * bits / 8, registers = w.block * bits / 128;

    // Eight bytes of each of two registers: the first ones and the last.
    struct Halves {
        int8x16_t first, last;

        Halves(uint8x16_t a, uint8x16_t b)
            : first(vreinterpretq_s8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)))),
              last(vreinterpretq_s8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)))) {}
    };

    // Adds the products of 16 numbers of each row, which `unpack` takes from their bytes, and of each vector.
    template <class Unpack>
    void add(int32x4_t (&dots)[rows][pairs], const uint8x16_t (&from)[2 * rows], std::int8_t *QuantizedVector::*numbers, std::size_t at, Unpack unpack) const {
        for (int pair = 0; pair < pairs; pair++) {
            const auto of = [&](int v) { return vreinterpretq_u8_s8(vld1q_s8(x[v].*numbers + at)); };
            const Halves vectors(of(2 * pair), of(2 * pair + 1));
            for (int row = 0; row < rows; row++) {
                const Halves two(unpack(from[2 * row]), unpack(from[2 * row + 1]));
                dots[row][pair] = vmmlaq_s32(vmmlaq_s32(dots[row][pair], two.first, vectors.first), two.last, vectors.last);
            }
        }
    }

    void run(std::size_t begin, float *y, std::size_t stride) const {
        const std::uint8_t *const numbers = w.numbers + begin * bytes;
        const Scale *const scales = w.scales_of<Scale>(begin);
        float32x4_t sums[rows][pairs] = {};  // of the first row and both vectors, then of the second
        for (std::size_t block = 0; block < w.blocks; block++) {
            int32x4_t dots[rows][pairs];
            for (int pair = 0; pair < pairs; pair++) {
                const std::int32_t less[2]{-8 * x[2 * pair].sums[block], -8 * x[2 * pair + 1].sums[block]};
                for (int row = 0; row < rows; row++) dots[row][pair] = bits == 4 ? vcombine_s32(vld1_s32(less), vld1_s32(less)) : vdupq_n_s32(0);
            }
            for (std::size_t at = block * registers * 16; at < (block + 1) * registers * 16; at += 16) {
                uint8x16_t from[2 * rows];
                for (int row = 0; row < 2 * rows; row++) from[row] = vld1q_u8(numbers + row * bytes + at);
                if (bits == 8) add(dots, from, &QuantizedVector::even, at, [](uint8x16_t all) { return veorq_u8(all, vdupq_n_u8(128)); });
                if (bits == 4) add(dots, from, &QuantizedVector::even, at, [](uint8x16_t all) { return vandq_u8(all, vdupq_n_u8(15)); });
                if (bits == 4) add(dots, from, &QuantizedVector::odd, at, [](uint8x16_t all) { return vshrq_n_u8(all, 4); });
            }
            for (int pair = 0; pair < pairs; pair++) {
                const float both[2]{x[2 * pair].scales[block], x[2 * pair + 1].scales[block]};
                const float32x4_t of_vectors = vcombine_f32(vld1_f32(both), vld1_f32(both));
                for (int row = 0; row < rows; row++) {
                    const auto of = [&](int each) { return vdup_n_f32(number_of(scales[each * w.blocks + block])); };
                    const float32x4_t scale = vmulq_f32(vcombine_f32(of(2 * row), of(2 * row + 1)), of_vectors);
                    sums[row][pair] = vfmaq_f32(sums[row][pair], vcvtq_f32_s32(dots[row][pair]), scale);
                }
            }
        }
        for (std::size_t row = 0; row < 2 * rows; row++)
            for (std::size_t v = 0; v < 2 * pairs; v++)
                y[v * stride + begin + row] = sums[row / 2][v / 2][row % 2 * 2 + v % 2] + of_zeros(w, x[v], begin + row);
    }
};

// Products with as many pairs of the vectors as there are, of rows by fours and twos; returns the number of those vectors.
template <class Scale, int bits, int pairs>
std::size_t by_pairs(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                     std::size_t stride) {
    std::size_t v = 0;
    for (; v + 2 * pairs <= vectors; v += 2 * pairs) {
        std::size_t row = first;
        for (; row + 4 <= last; row += 4) Pairs<Scale, bits, 2, pairs>{w, x + v}.run(row, y + v * stride, stride);
        for (; row + 2 <= last; row += 2) Pairs<Scale, bits, 1, pairs>{w, x + v}.run(row, y + v * stride, stride);
    }
    if constexpr (pairs > 1) v += by_pairs<Scale, bits, pairs - 1>(w, x + v, vectors - v, first, last, y + v * stride, stride);
    return v;
}

#endif

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
    std::size_t paired = 0;  // vectors of which all rows but an odd last one are done
#ifdef __ARM_FEATURE_MATMUL_INT8
    const std::size_t even = last - (last - first) % 2;
    if (w.bits == 8 || w.block > 16) paired = (w.bits == 8 ? by_pairs<Scale, 8, 3> : by_pairs<Scale, 4, 3>)(w, x, vectors, first, even, y, stride);
#else
    const std::size_t even = first;
#endif
    for (std::size_t row = first; row < last; row++)
        for (std::size_t v = row < even ? paired : 0; v < vectors; v++)
            y[v * stride + row] = product(w.numbers + row * bytes, w.scales_of<Scale>(row), w, x[v]) + of_zeros(w, x[v], row);
}

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                       std::size_t stride) {
    (w.has_halves ? product_of<Half> : product_of<float>)(w, x, vectors, first, last, y, stride);
}

}  // namespace

}  // namespace t2r::provider
