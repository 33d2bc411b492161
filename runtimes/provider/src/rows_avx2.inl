// Products of rows of weights in 4 and 8 bits and vectors in 8 bits with registers of 32 bytes: with AVX-VNNI by vpdpbusd, else by
// vpmaddubsw. Included by kernels_avx2.cpp and kernels_avxvnni.cpp.

namespace t2r::provider {

namespace {

constexpr std::size_t ahead = 4096;  // prefetch distance in bytes of numbers

// dots += products of four unsigned and four signed bytes in each lane.
inline __m256i dots_of_4_bits(__m256i dots, __m256i even, __m256i even_of_x, __m256i odd, __m256i odd_of_x) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(dots, even, even_of_x), odd, odd_of_x);
#else
    const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(even, even_of_x), _mm256_maddubs_epi16(odd, odd_of_x));
    return _mm256_add_epi32(dots, _mm256_madd_epi16(both, _mm256_set1_epi16(1)));
#endif
}

// Two products, of a number up to 255 and one of x up to 127, do not fit 16 bits together.
inline __m256i dots_of_8_bits(__m256i dots, __m256i numbers, __m256i x) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(dots, numbers, x);
#else
    const __m256i ones = _mm256_set1_epi16(1), second = _mm256_set1_epi16(static_cast<short>(0xff00));
    const __m256i of_first = _mm256_maddubs_epi16(numbers, _mm256_andnot_si256(second, x));
    const __m256i of_second = _mm256_maddubs_epi16(numbers, _mm256_and_si256(second, x));
    return _mm256_add_epi32(dots, _mm256_add_epi32(_mm256_madd_epi16(of_first, ones), _mm256_madd_epi16(of_second, ones)));
#endif
}

// The first `count` numbers of four, 1, 2 or 4; the others are any.
template <int count> inline __m128 loaded(const float *from) {
    if (count == 1) return _mm_load_ss(from);
    return count == 4 ? _mm_loadu_ps(from) : _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from)));
}

template <int count> inline __m128 loaded(const Half *from) {
    long long halves = 0;
    __builtin_memcpy(&halves, from, count * sizeof *from);
    return _mm_cvtph_ps(_mm_cvtsi64_si128(halves));
}

// The scales of a register's blocks, each in the lanes of its block. `scales`: number of blocks in a register, 1, 2 or 4.
template <int scales, class Scale> inline __m256 by_lane(const Scale *from) {
    const __m128 all = loaded<scales>(from);
    if (scales == 1) return _mm256_broadcastss_ps(all);
    if (scales == 4) return _mm256_set_m128(_mm_unpackhi_ps(all, all), _mm_unpacklo_ps(all, all));
    return _mm256_set_m128(_mm_shuffle_ps(all, all, 0x55), _mm_shuffle_ps(all, all, 0x00));
}

inline float total_of(__m256 sum) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

constexpr std::size_t most_registers = 256;  // of a row at a time; a multiple of a block's

// Products of rows with n vectors in registers [begin, end) of a row: weights are unpacked once for all of them.
template <class Scale, int bits, int scales, int n> struct RowsTimesVectors {
    const QuantizedMatrix &w;
    const QuantizedVector *x;
    const std::size_t begin, end, bytes = w.blocks * w.block * bits / 8, whole = end < bytes / 32 ? end : bytes / 32;
    const std::size_t of_block = scales == 1 ? w.block * bits / 256 : 1;  // registers that share a scale
    const std::size_t first_block = begin / of_block * scales, blocks_ahead = ahead / 32 * scales / of_block;
    __m256 scales_of_x[n][most_registers];

    RowsTimesVectors(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t begin, std::size_t end) : w(w), x(x), begin(begin), end(end) {
        for (int v = 0; v < n; v++) {
            std::size_t at = 0;
            for (const float *scale = x[v].scales + first_block; at < whole - begin; scale += scales)
                for (const std::size_t next = at + of_block; at < next; at++) scales_of_x[v][at] = by_lane<scales>(scale);
            if (whole < end) scales_of_x[v][at] = last_lanes(x[v].scales);
        }
    }

    // Of a row's last register, which has fewer blocks than others.
    template <class Any> __m256 last_lanes(const Any *row_scales) const {
        Any last[4] = {};
        const std::size_t block = whole * scales;
        std::memcpy(last, row_scales + block, (w.blocks - block) * sizeof *last);
        return by_lane<scales>(last);
    }

    void add(__m256 *sums, __m256i weights, __m256 scale, std::size_t at) const {
        const __m256i low = _mm256_set1_epi8(15);
        const __m256i even = bits == 4 ? _mm256_and_si256(weights, low) : weights;
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(weights, 4), low);
        for (int v = 0; v < n; v++) {
            const auto load = [at](const void *numbers) { return _mm256_loadu_si256(static_cast<const __m256i *>(numbers) + at); };
            const __m256i offsets = load(x[v].offsets);
            const __m256i dots = bits == 4 ? dots_of_4_bits(offsets, even, load(x[v].even), odd, load(x[v].odd)) : dots_of_8_bits(offsets, even, load(x[v].even));
            sums[v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(scale, scales_of_x[v][at - begin]), sums[v]);
        }
    }

    void run(std::size_t row, float *y, std::size_t stride) const {
        const std::uint8_t *const numbers = w.numbers + row * bytes;
        const Scale *const row_scales = w.scales_of<Scale>(row);
        __m256 sums[n];
        for (int v = 0; v < n; v++) sums[v] = _mm256_setzero_ps();
        std::size_t at = begin;
        for (const Scale *scale = row_scales + first_block; at < whole; scale += scales) {
            __builtin_prefetch(scale + blocks_ahead);
            const __m256 lanes = by_lane<scales>(scale);
            for (const std::size_t next = at + of_block; at < next; at++) {
                __builtin_prefetch(numbers + at * 32 + ahead);
                add(sums, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(numbers) + at), lanes, at);
            }
        }
        if (whole < end) {
            std::uint8_t last[32] = {};
            std::memcpy(last, numbers + whole * 32, bytes - whole * 32);
            add(sums, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(last)), last_lanes(row_scales), whole);
        }
        for (int v = 0; v < n; v++) y[v * stride + row] = total_of(sums[v]) + (begin ? y[v * stride + row] : of_zeros(w, x[v], row));
    }
};

template <class Scale, int bits, int scales, int n>
void by_quantized_rows(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                       std::size_t stride) {
    const std::size_t registers = (w.blocks * w.block * bits / 8 + 31) / 32;
    for (; vectors >= n; vectors -= n, x += n, y += n * stride)
        for (std::size_t begin = 0; begin < registers; begin += most_registers) {
            const RowsTimesVectors<Scale, bits, scales, n> products(w, x, begin, registers - begin < most_registers ? registers : begin + most_registers);
            for (std::size_t row = first; row < last; row++) products.run(row, y, stride);
        }
    if constexpr (n > 1)
        if (vectors) by_quantized_rows<Scale, bits, scales, n - 1>(w, x, vectors, first, last, y, stride);
}

template <class Scale>
void product_of(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                std::size_t stride) {
    constexpr int most = 4;  // vectors, whose sums stay in registers
    const auto product = w.bits == 8     ? (w.block == 16 ? by_quantized_rows<Scale, 8, 2, most> : by_quantized_rows<Scale, 8, 1, most>)
                         : w.block == 16 ? by_quantized_rows<Scale, 4, 4, most>
                         : w.block == 32 ? by_quantized_rows<Scale, 4, 2, most>
                                         : by_quantized_rows<Scale, 4, 1, most>;
    product(w, x, vectors, first, last, y, stride);
}

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                       std::size_t stride) {
    (w.has_halves ? product_of<Half> : product_of<float>)(w, x, vectors, first, last, y, stride);
}

}  // namespace

}  // namespace t2r::provider
