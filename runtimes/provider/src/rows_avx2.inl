// Products of rows of weights in 4 and 8 bits and vectors in 8 bits with registers of 32 bytes: with AVX-VNNI by vpdpbusd, else by
// vpmaddubsw. Included by kernels_avx2.cpp and kernels_avxvnni.cpp.

namespace t2r::provider {

namespace {

constexpr std::size_t ahead = 4096;  // prefetch distance in bytes of numbers

// dots += products of four unsigned and four signed bytes in each lane. In 8 bits, two products do not fit 16 bits together: a number
// is at most 255, and one of x at most 127.
template <int bits> inline __m256i dot(__m256i dots, __m256i numbers, __m256i x) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(dots, numbers, x);
#else
    const __m256i ones = _mm256_set1_epi16(1);
    if (bits == 4) return _mm256_add_epi32(dots, _mm256_madd_epi16(_mm256_maddubs_epi16(numbers, x), ones));
    const __m256i second = _mm256_set1_epi16(static_cast<short>(0xff00));
    const __m256i of_first = _mm256_maddubs_epi16(numbers, _mm256_andnot_si256(second, x));
    const __m256i of_second = _mm256_maddubs_epi16(numbers, _mm256_and_si256(second, x));
    return _mm256_add_epi32(dots, _mm256_add_epi32(_mm256_madd_epi16(of_first, ones), _mm256_madd_epi16(of_second, ones)));
#endif
}

// Dot product of a row and a vector, register by register. `scales`: number of blocks in a register, 1, 2 or 4.
template <int bits, int scales> struct RowTimesVector {
    const QuantizedVector &x;
    __m256 sum = _mm256_setzero_ps();

    // Adds register `at`; `scale` and `scale_of_x` are its blocks'.
    void add(const std::uint8_t *from, const float *scale, const float *scale_of_x, std::size_t at) {
        const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)), low = _mm256_set1_epi8(15);
        const auto load = [at](const void *numbers) { return _mm256_loadu_si256(static_cast<const __m256i *>(numbers) + at); };
        __m256i dots = dot<bits>(load(x.offsets), bits == 4 ? _mm256_and_si256(weights, low) : weights, load(x.even));
        if (bits == 4) dots = dot<bits>(dots, _mm256_and_si256(_mm256_srli_epi16(weights, 4), low), load(x.odd));
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), by_lane(scale, scale_of_x), sum);
    }

    // Products of the scales, each in the lanes of its block.
    static __m256 by_lane(const float *a, const float *b) {
        if (scales == 1) return _mm256_set1_ps(a[0] * b[0]);
        if (scales == 2) {
            const auto two = [](const float *from) { return _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))); };
            const __m128 both = _mm_mul_ps(two(a), two(b));
            return _mm256_set_m128(_mm_shuffle_ps(both, both, 0x55), _mm_shuffle_ps(both, both, 0x00));
        }
        const __m128 all = _mm_mul_ps(_mm_loadu_ps(a), _mm_loadu_ps(b));
        return _mm256_set_m128(_mm_unpackhi_ps(all, all), _mm_unpacklo_ps(all, all));
    }

    float total() const {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
};

template <int bits, int scales>
void by_quantized_rows(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                       std::size_t stride) {
    const std::size_t bytes = w.blocks * w.block * bits / 8, whole = bytes / 32, rest = bytes % 32;
    const std::size_t of_block = scales == 1 ? w.block * bits / 256 : 1;  // registers that share a scale
    for (std::size_t row = first; row < last; row++) {
        const std::uint8_t *const numbers = w.numbers + row * bytes;
        const float *const scale = w.scales + row * w.blocks;
        for (std::size_t v = 0; v < vectors; v++) {
            RowTimesVector<bits, scales> product{x[v]};
            std::size_t at = 0, block = 0;
            for (; at + of_block <= whole; block += scales) {
                __builtin_prefetch(scale + block + ahead / 32 * scales / of_block);
                for (const std::size_t end = at + of_block; at < end; at++) {
                    __builtin_prefetch(numbers + at * 32 + ahead);
                    product.add(numbers + at * 32, scale + block, x[v].scales + block, at);
                }
            }
            if (rest) {
                std::uint8_t last_numbers[32] = {};
                float last_scales[2][4] = {};
                const std::size_t left = (w.blocks - block) * sizeof(float);
                std::memcpy(last_numbers, numbers + at * 32, rest);
                std::memcpy(last_scales[0], scale + block, left), std::memcpy(last_scales[1], x[v].scales + block, left);
                product.add(last_numbers, last_scales[0], last_scales[1], at);
            }
            y[v * stride + row] = product.total() + of_zeros(w, x[v], row);
        }
    }
}

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                       std::size_t stride) {
    const auto product = w.bits == 8     ? (w.block == 16 ? by_quantized_rows<8, 2> : by_quantized_rows<8, 1>)
                         : w.block == 16 ? by_quantized_rows<4, 4>
                         : w.block == 32 ? by_quantized_rows<4, 2>
                                         : by_quantized_rows<4, 1>;
    product(w, x, vectors, first, last, y, stride);
}

}  // namespace

}  // namespace t2r::provider
