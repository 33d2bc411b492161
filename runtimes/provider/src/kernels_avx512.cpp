// AVX-512 with VNNI: products with 4- and 8-bit weights by vpdpbusd, at memory speed; with many vectors by tiles.
#define T2R_OWN_QUANTIZED_PRODUCT
#define T2R_OWN_QUANTIZE
#define T2R_OWN_ROW_PRODUCTS
#include "kernels.inl"

#include "tiles_avx512.inl"

namespace t2r::provider {

namespace {

// Bit-identical to the plain loops of products.inl.
template <std::size_t size> void quantize_in_units(const float *x, const QuantizedMatrix &w, const QuantizedVector &y) {
    const std::size_t whole = padded(w), lanes = size * w.bits / 32;
    std::memset(y.offsets, 0, whole / size * lanes * sizeof *y.offsets);
    std::memset(y.even, 0, w.bits == 4 ? whole / 2 : whole);
    if (w.bits == 4) std::memset(y.odd, 0, whole / 2);
    for (std::size_t block = 0; block < w.blocks; block++) {
        const std::size_t begin = block * w.block, end = begin + w.block < w.columns ? begin + w.block : w.columns;
        const auto sixteen = [&](std::size_t at) {
            const std::size_t count = at < end ? end - at : 0;
            return _mm512_maskz_loadu_ps(static_cast<__mmask16>(count < 16 ? (1u << count) - 1 : 0xffff), x + at);
        };
        __m512i most = _mm512_setzero_si512();  // bits of max |x|: absolute values compare as their bits do
        for (std::size_t at = begin; at < end; at += 16)
            most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(sixteen(at)), _mm512_set1_epi32(0x7fffffff)));
        const std::int32_t most_bits = _mm512_reduce_max_epi32(most);
        __builtin_memcpy(&y.scales[block], &most_bits, sizeof most_bits);
        y.scales[block] /= 127.0f;
        const __m512 inverse = _mm512_set1_ps(y.scales[block] != 0 ? 1.0f / y.scales[block] : 0.0f);
        std::int32_t total = 0;
        for (std::size_t at = begin; at < end; at += size) {
            const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(sixteen(at), inverse));
            const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(sixteen(at + 16), inverse));
            const __m256i numbers = _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
            if (size == 16 && w.bits == 8) {
                _mm_storeu_si128(reinterpret_cast<__m128i *>(y.even + at), _mm256_castsi256_si128(numbers));
            } else if (size == 16) {
                const __m128i pairs = _mm256_castsi256_si128(numbers);
                _mm_storel_epi64(reinterpret_cast<__m128i *>(y.even + at / 2), _mm_cvtepi16_epi8(pairs));
                _mm_storel_epi64(reinterpret_cast<__m128i *>(y.odd + at / 2), _mm_cvtepi16_epi8(_mm_srli_epi16(pairs, 8)));
            } else if (w.bits == 8) {
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(y.even + at), numbers);
            } else {
                _mm_storeu_si128(reinterpret_cast<__m128i *>(y.even + at / 2), _mm256_cvtepi16_epi8(numbers));
                _mm_storeu_si128(reinterpret_cast<__m128i *>(y.odd + at / 2), _mm256_cvtepi16_epi8(_mm256_srli_epi16(numbers, 8)));
            }
            const std::int32_t of_unit = _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
            y.offsets[at / size * lanes] = -(1 << (w.bits - 1)) * of_unit;
            total += of_unit;
        }
        y.sums[block] = total;
    }
}

void quantize(const float *x, const QuantizedMatrix &w, const QuantizedVector &y) {
    (w.block == 16 ? quantize_in_units<16> : quantize_in_units<32>)(x, w, y);
}

// Prefetch distance in bytes of numbers; that of scales follows from it. Rows are read one after another, in memory order: on a Zen 5,
// four rows at a time take 1.1 times as long, rows without prefetching 1.5 times, and those of 4 bits without their scales' 1.3.
constexpr std::size_t ahead = 8192;

inline __m256 blocks_of(__mmask8 blocks, const float *scales) { return _mm256_maskz_loadu_ps(blocks, scales); }
inline __m256 blocks_of(__mmask8 blocks, const Half *scales) { return _mm256_cvtph_ps(_mm_maskz_loadu_epi16(blocks, scales)); }

// Dot product of a row and a vector, register by register. `scales`: number of blocks in a register, 1, 2, 4 or 8.
template <class Scale, int bits, int scales> struct RowTimesVector {
    const std::uint8_t *numbers;
    const Scale *scale;
    const QuantizedVector &x;
    __m512 sum = _mm512_setzero_ps();

    // Adds a row of w; `of_block`: registers that share a scale.
    void add_row(const QuantizedMatrix &w, std::size_t of_block) {
        const std::size_t bytes = w.blocks * w.block * bits / 8, whole = bytes / 64, rest = bytes % 64;
        std::size_t at = 0, block = 0;
        for (; at + of_block <= whole; block += scales)
            for (const std::size_t end = at + of_block; at < end; at++) add<true>(at, block, 0, 0);
        const auto left = static_cast<__mmask8>((1u << (w.blocks - block)) - 1);
        if (rest) add<false>(at, block, (__mmask64{1} << rest) - 1, left);
    }

    // Adds register `at`, whose first number is in block `block`; the last register may be partial.
    template <bool is_whole> void add(std::size_t at, std::size_t block, __mmask64 bytes, __mmask8 blocks) {
        constexpr auto all = static_cast<__mmask8>((1 << scales) - 1);
        const std::uint8_t *from = numbers + at * 64;
        _mm_prefetch(reinterpret_cast<const char *>(from) + ahead, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char *>(scale + block) + ahead / (64 / sizeof(Scale) / scales), _MM_HINT_T0);
        const __m512i weights = is_whole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(bytes, from);
        const __m512i low = _mm512_set1_epi8(15), even = bits == 4 ? _mm512_and_si512(weights, low) : weights;
        const __mmask8 present = is_whole ? all : blocks;
        __m512i dots = _mm512_dpbusd_epi32(_mm512_loadu_si512(x.offsets + at * 16), even, _mm512_loadu_si512(x.even + at * 64));
        if constexpr (bits == 4) {
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(weights, 4), low);
            dots = _mm512_dpbusd_epi32(dots, odd, _mm512_loadu_si512(x.odd + at * 64));
        }
        const __m256 both = _mm256_mul_ps(blocks_of(present, x.scales + block), blocks_of(present, scale + block));
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), by_lane(both), sum);
    }

    static __m512 by_lane(__m256 of_blocks) {
        if constexpr (scales == 1) return _mm512_broadcastss_ps(_mm256_castps256_ps128(of_blocks));
        constexpr int wide = 16 / scales;
        const __m512i lanes = _mm512_setr_epi32(0, 1 / wide, 2 / wide, 3 / wide, 4 / wide, 5 / wide, 6 / wide, 7 / wide,
                                                8 / wide, 9 / wide, 10 / wide, 11 / wide, 12 / wide, 13 / wide, 14 / wide, 15 / wide);
        return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(of_blocks));
    }
};

// The product of each vector with `count` rows, at most 16, from row `row` on: for short rows, where the sum across the lanes of a
// register takes longer than the products.
template <class Scale, int bits, int scales>
void rows_together(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t row, std::size_t count, float *y,
                   std::size_t stride) {
    const std::size_t bytes = w.blocks * w.block * bits / 8;
    for (std::size_t v = 0; v < vectors; v++) {
        __m512 sums[lanes];
        for (std::size_t j = 0; j < lanes; j++) {
            const std::size_t each = row + (j < count ? j : count - 1);
            RowTimesVector<Scale, bits, scales> product{w.numbers + each * bytes, w.scales_of<Scale>(each), x[v]};
            product.add_row(w, 1);
            sums[j] = product.sum;
        }
        const auto present = static_cast<__mmask16>((1u << count) - 1);
        _mm512_mask_storeu_ps(y + v * stride + row, present, totals(sums));
        for (std::size_t j = 0; j < count && w.zeros; j++) y[v * stride + row + j] += of_zeros(w, x[v], row + j);
    }
}

template <class Scale, int bits, int scales>
void by_rows(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
             std::size_t stride) {
    const std::size_t bytes = w.blocks * w.block * bits / 8;
    const std::size_t of_block = scales == 1 ? w.block * bits / 512 : 1;  // registers that share a scale
    constexpr std::size_t short_row = 2;  // registers
    for (; bytes <= short_row * 64 && of_block <= 1 && first < last; first += lanes)
        rows_together<Scale, bits, scales>(w, x, vectors, first, last - first < lanes ? last - first : lanes, y, stride);
    for (std::size_t row = first; row < last; row++) {
        for (std::size_t v = 0; v < vectors; v++) {
            RowTimesVector<Scale, bits, scales> product{w.numbers + row * bytes, w.scales_of<Scale>(row), x[v]};
            product.add_row(w, of_block);
            y[v * stride + row] = _mm512_reduce_add_ps(product.sum) + of_zeros(w, x[v], row);
        }
    }
}

template <class Scale>
void product_of(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                std::size_t stride) {
    const auto product = w.bits == 8     ? (w.block == 16 ? by_rows<Scale, 8, 4> : w.block == 32 ? by_rows<Scale, 8, 2> : by_rows<Scale, 8, 1>)
                         : w.block == 16 ? by_rows<Scale, 4, 8>
                         : w.block == 32 ? by_rows<Scale, 4, 4>
                         : w.block == 64 ? by_rows<Scale, 4, 2>
                                         : by_rows<Scale, 4, 1>;
    product(w, x, vectors, first, last, y, stride);
}

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first,
                       std::size_t last, float *y, std::size_t stride) {
    const bool is_tiled = vectors >= few && w.block <= tile_columns;
    const auto product = is_tiled ? (w.bits == 8 ? by_tiles<8> : by_tiles<4>) : (w.has_halves ? product_of<Half> : product_of<float>);
    product(w, x, vectors, first, last, y, stride);
}

}  // namespace

T2R_KERNELS_OF(avx512);

}  // namespace t2r::provider
