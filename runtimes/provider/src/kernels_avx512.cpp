// AVX-512 with VNNI: products of 4 and 8 bits by vpdpbusd, as fast as memory brings the weights.
#define T2R_OWN_QUANTIZED_PRODUCT
#include "kernels.inl"

#include <immintrin.h>

namespace t2r::provider {

namespace {

// Rows are read one after the other, as they lie, and this far ahead of where they are needed: measured on a Zen 5, where four
// rows at a time take 1.1 times as long, and without reading ahead 1.5 times.
constexpr std::size_t ahead = 8192;

// A row times n vectors, register by register; `scales` of a register: of 1, 2 or 4 blocks. The vectors share what is read and
// unpacked of the row, and each has the sums that it would have alone.
template <int bits, int scales, int n> struct RowTimesVectors {
    const std::uint8_t *numbers;
    const float *scale;
    const QuantizedVector *x;
    __m512 sums[n] = {};

    // The register `at`, whose first number is of the block `block`; of the last one maybe a part.
    template <bool is_whole> void add(std::size_t at, std::size_t block, __mmask64 bytes, __mmask8 blocks) {
        constexpr __mmask8 all = (1 << scales) - 1;
        const std::uint8_t *from = numbers + at * 64;
        _mm_prefetch(reinterpret_cast<const char *>(from) + ahead, _MM_HINT_T0);
        const __m512i weights = is_whole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(bytes, from);
        const __m512i low = _mm512_set1_epi8(15), even = bits == 4 ? _mm512_and_si512(weights, low) : weights;
        [[maybe_unused]] const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(weights, 4), low);
        const __mmask8 present = is_whole ? all : blocks;
        const __m128 of_row = _mm_maskz_loadu_ps(present, scale + block);
        for (int v = 0; v < n; v++) {
            __m512i dots = _mm512_dpbusd_epi32(_mm512_loadu_si512(x[v].offsets + at * 16), even, _mm512_loadu_si512(x[v].even + at * 64));
            if constexpr (bits == 4) dots = _mm512_dpbusd_epi32(dots, odd, _mm512_loadu_si512(x[v].odd + at * 64));
            const __m128 both = _mm_mul_ps(_mm_maskz_loadu_ps(present, x[v].scales + block), of_row);
            sums[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), by_lane(both), sums[v]);
        }
    }

    static __m512 by_lane(__m128 of_blocks) {
        if constexpr (scales == 1) return _mm512_broadcastss_ps(of_blocks);
        constexpr int wide = 16 / scales;
        const __m512i lanes = _mm512_setr_epi32(0, 1 / wide, 2 / wide, 3 / wide, 4 / wide, 5 / wide, 6 / wide, 7 / wide,
                                                8 / wide, 9 / wide, 10 / wide, 11 / wide, 12 / wide, 13 / wide, 14 / wide, 15 / wide);
        return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(of_blocks));
    }
};

template <int bits, int scales, int n>
void times(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t row, float *y, std::size_t stride) {
    const std::size_t bytes = w.blocks * w.block * bits / 8, whole = bytes / 64, rest = bytes % 64;
    const std::size_t of_block = scales == 1 ? w.block * bits / 512 : 1;  // registers that share a scale
    RowTimesVectors<bits, scales, n> product{w.numbers + row * bytes, w.scales + row * w.blocks, x};
    std::size_t at = 0, block = 0;
    for (; at + of_block <= whole; block += scales)
        for (const std::size_t end = at + of_block; at < end; at++) product.template add<true>(at, block, 0, 0);
    if (rest) product.template add<false>(at, block, (__mmask64{1} << rest) - 1, static_cast<__mmask8>((1u << (w.blocks - block)) - 1));
    for (int v = 0; v < n; v++) y[v * stride + row] = _mm512_reduce_add_ps(product.sums[v]) + of_zeros(w, x[v], row);
}

template <int bits, int scales>
void all_times(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
               std::size_t stride) {
    constexpr std::size_t together = 8;
    for (std::size_t row = first; row < last; row++) {
        std::size_t v = 0;
        for (; v + together <= vectors; v += together) times<bits, scales, together>(w, x + v, row, y + v * stride, stride);
        for (; v < vectors; v++) times<bits, scales, 1>(w, x + v, row, y + v * stride, stride);
    }
}

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first,
                       std::size_t last, float *y, std::size_t stride) {
    const auto product = w.bits == 8   ? (w.block == 32 ? all_times<8, 2> : all_times<8, 1>)
                         : w.block == 32 ? all_times<4, 4>
                         : w.block == 64 ? all_times<4, 2>
                                         : all_times<4, 1>;
    product(w, x, vectors, first, last, y, stride);
}

}  // namespace

extern const Kernels avx512_kernels{"avx512", unary, binary, sum, max, product, rotate, update, quantize, quantized_product};

}  // namespace t2r::provider
