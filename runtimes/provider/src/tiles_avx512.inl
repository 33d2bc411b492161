// Products with many vectors. Included by kernels_avx512.cpp. Rows are unpacked once for all vectors, a tile at a time. A register of
// a tile has four numbers of each of 16 rows, or one in float32, so each lane accumulates one row, without horizontal sums.

namespace t2r::provider {

namespace {

constexpr std::size_t few = 3;                 // least number of vectors for tiles
constexpr int lanes = 16, panels = tile_rows / lanes;
constexpr std::size_t tile_columns = 1024;     // 32 KiB per tile, which fits the L1 cache

struct Tile {
    __m512i numbers[panels][tile_columns / 4];  // 4 bits: four even numbers of each row, then four odd ones
    __m512 scales[panels][tile_columns / 16];   // per block
    __m512i zeros[panels][tile_columns / 16];   // per block, negated, if there are any
    __mmask16 rows[panels];                     // mask of rows that the matrix has
    std::size_t first_row, first_block, blocks;
    const char *ahead;                          // the next tile's numbers: each block of this one prefetches `lines` cache lines of them
    std::size_t lines;
};

// Transposes 16 bytes of each of 16 rows to four registers: to[i] has 32-bit number i of each row. `wanted` masks
// the 16-bit numbers.
inline void transpose(const void *begin, const std::size_t *rows, __mmask8 wanted, __m512i *to) {
    __m512i fours[4];  // 128-bit lane L of register j: row 4 L + j
    for (int j = 0; j < 4; j++) {
        const auto row = [&](int lane) { return _mm_maskz_loadu_epi16(wanted, static_cast<const char *>(begin) + rows[4 * lane + j]); };
        const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1);
        const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row(2)), row(3), 1);
        fours[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    const __m512i a = _mm512_unpacklo_epi32(fours[0], fours[1]), b = _mm512_unpacklo_epi32(fours[2], fours[3]);
    const __m512i c = _mm512_unpackhi_epi32(fours[0], fours[1]), d = _mm512_unpackhi_epi32(fours[2], fours[3]);
    to[0] = _mm512_unpacklo_epi64(a, b), to[1] = _mm512_unpackhi_epi64(a, b);
    to[2] = _mm512_unpacklo_epi64(c, d), to[3] = _mm512_unpackhi_epi64(c, d);
}

// The mask of the first `count` of four 32-bit numbers.
inline __mmask8 first_of_four(std::size_t count) { return static_cast<__mmask8>((1u << 2 * count) - 1); }

// Byte offsets of 16 rows of `bytes` bytes, clamped to the last row. Returns the mask of those before `last`.
inline __mmask16 rows_of(std::size_t begin, std::size_t last, std::size_t bytes, std::size_t *rows) {
    for (int i = 0; i < lanes; i++) rows[i] = (begin + i < last ? begin + i : last - 1) * bytes;
    return static_cast<__mmask16>(begin + lanes <= last ? 0xffff : begin < last ? (1u << (last - begin)) - 1 : 0);
}

template <int bits> void unpack(const QuantizedMatrix &w, Tile &tile, int panel, std::size_t last) {
    const std::size_t of_block = w.block * bits / 8, begin = tile.first_row + panel * lanes;
    std::size_t rows[lanes], of_numbers[lanes], of_scales[lanes];
    tile.rows[panel] = rows_of(begin, last, 1, rows);
    for (int i = 0; i < lanes; i++) of_numbers[i] = rows[i] * w.blocks * of_block, of_scales[i] = rows[i] * w.blocks * w.scale_bytes();
    const std::uint8_t *from = w.numbers + tile.first_block * of_block;
    const __m512i low = _mm512_set1_epi8(15);
    __m512i *to = tile.numbers[panel];
    for (std::size_t at = 0, end = tile.blocks * of_block; at < end; at += 16) {
        __m512i packed[4];
        transpose(from + at, of_numbers, first_of_four(end - at < 16 ? 2 : 4), packed);  // 8 bytes are left of an odd block of 16 numbers
        for (const __m512i numbers : packed) {
            *to++ = bits == 4 ? _mm512_and_si512(numbers, low) : numbers;
            if (bits == 4) *to++ = _mm512_and_si512(_mm512_srli_epi16(numbers, 4), low);
        }
    }
    const std::size_t at_a_time = 16 / w.scale_bytes();
    for (std::size_t block = 0; block < tile.blocks; block += at_a_time) {
        const std::size_t count = tile.blocks - block < at_a_time ? tile.blocks - block : at_a_time;
        const char *const scales = static_cast<const char *>(w.scales) + (tile.first_block + block) * w.scale_bytes();
        const char *const next = scales + tile_rows * w.blocks * w.scale_bytes();
        for (int i = 0; i < lanes && block % (4 * at_a_time) == 0; i++) _mm_prefetch(next + of_scales[i], _MM_HINT_T1);
        __m512i found[4];
        transpose(scales, of_scales, w.has_halves ? static_cast<__mmask8>((1u << count) - 1) : first_of_four(count), found);
        for (std::size_t i = 0; i < count; i++) {
            __m512 &to = tile.scales[panel][block + i];
            if (w.has_halves)
                to = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(i % 2 ? _mm512_srli_epi32(found[i / 2], 16) : found[i / 2]));
            else
                to = _mm512_castsi512_ps(found[i]);
        }
    }
    for (std::size_t block = 0; block < tile.blocks && w.zeros; block++) {
        alignas(64) std::int32_t zeros[lanes];
        for (int i = 0; i < lanes; i++) zeros[i] = -zero_of(w, rows[i], tile.first_block + block);
        tile.zeros[panel][block] = _mm512_load_si512(zeros);
    }
}

template <int bits, int n>
void times_tile(const QuantizedMatrix &w, Tile &tile, const QuantizedVector *x, float *y, std::size_t stride) {
    constexpr std::int32_t middle = 1 << (bits - 1), halves = bits == 4 ? 2 : 1;
    const std::size_t of_block = w.block * bits / 8;
    const std::size_t odd = bits == 4 ? static_cast<std::size_t>(x->odd - x->even) : 0;  // the same for every vector
    const std::int8_t *from[n];
    __m512 sums[panels][n];
    for (int v = 0; v < n; v++) {
        from[v] = x[v].even + tile.first_block * of_block;
        for (int p = 0; p < panels; p++) {
            float *to = y + v * stride + p * lanes;
            __builtin_prefetch(to, 1);  // rows of y may be far apart
            sums[p][v] = tile.first_block ? _mm512_maskz_loadu_ps(tile.rows[p], to) : _mm512_setzero_ps();
        }
    }
    std::size_t at = 0, number = 0;
    for (std::size_t block = 0; block < tile.blocks; block++) {
        for (std::size_t line = 0; line < tile.lines; line++, tile.ahead += 64) _mm_prefetch(tile.ahead, _MM_HINT_T1);
        __m512i dots[panels][n];
        for (int v = 0; v < n; v++) {
            const std::int32_t sum = x[v].sums[tile.first_block + block];
            for (int p = 0; p < panels; p++)
                dots[p][v] = w.zeros ? _mm512_mullo_epi32(tile.zeros[p][block], _mm512_set1_epi32(sum)) : _mm512_set1_epi32(-middle * sum);
        }
        const std::size_t end = at + of_block;
#pragma GCC unroll 4
        for (; at < end; at += 4) {
            for (int half = 0; half < halves; half++, number++) {
                for (int v = 0; v < n; v++) {
                    std::int32_t four;
                    __builtin_memcpy(&four, from[v] + at + half * odd, sizeof four);
                    for (int p = 0; p < panels; p++)
                        dots[p][v] = _mm512_dpbusd_epi32(dots[p][v], tile.numbers[p][number], _mm512_set1_epi32(four));
                }
            }
        }
        for (int v = 0; v < n; v++) {
            const __m512 scale = _mm512_set1_ps(x[v].scales[tile.first_block + block]);
            for (int p = 0; p < panels; p++)
                sums[p][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[p][v]), _mm512_mul_ps(tile.scales[p][block], scale), sums[p][v]);
        }
    }
    for (int v = 0; v < n; v++)
        for (int p = 0; p < panels; p++) _mm512_mask_storeu_ps(y + v * stride + p * lanes, tile.rows[p], sums[p][v]);
}

template <int bits>
void by_tiles(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
              std::size_t stride) {
    constexpr std::size_t together = 6;  // 24 of the 32 registers are sums
    constexpr decltype(&times_tile<bits, 1>) times[together]{times_tile<bits, 1>, times_tile<bits, 2>, times_tile<bits, 3>,
                                                             times_tile<bits, 4>, times_tile<bits, 5>, times_tile<bits, 6>};
    const std::size_t groups = (vectors + together - 1) / together, of_block = w.block * bits / 8, most = tile_columns / w.block;
    Tile tile;
    tile.lines = (tile_rows * of_block + 64 * groups - 1) / (64 * groups);
    for (std::size_t row = first; row < last; row += tile_rows) {
        tile.first_row = row;
        tile.ahead = reinterpret_cast<const char *>(w.numbers + (row + tile_rows) * w.blocks * of_block);
        for (std::size_t block = 0; block < w.blocks; block += tile.blocks) {
            tile.first_block = block, tile.blocks = w.blocks - block < most ? w.blocks - block : most;
            for (int panel = 0; panel < panels; panel++) unpack<bits>(w, tile, panel, last);
            for (std::size_t group = 0; group < groups; group++) {
                const std::size_t begin = vectors * group / groups, end = vectors * (group + 1) / groups;
                times[end - begin - 1](w, tile, x + begin, y + begin * stride + row, stride);
            }
        }
    }
}

// The same for float32: a register has one number of each of 16 rows.
struct FloatTile {
    __m512 numbers[panels][256];
    __mmask16 rows[panels];
    std::size_t first, columns;
    const char *ahead;
    std::size_t lines;  // cache lines per four columns
};

template <int n> void times_tile(FloatTile &tile, const float *x, std::size_t inner, float *y, std::size_t stride) {
    __m512 sums[panels][n];
    for (int v = 0; v < n; v++) {
        for (int p = 0; p < panels; p++) {
            float *to = y + v * stride + p * lanes;
            __builtin_prefetch(to, 1);
            sums[p][v] = tile.first ? _mm512_maskz_loadu_ps(tile.rows[p], to) : _mm512_setzero_ps();
        }
    }
    for (std::size_t column = 0; column < tile.columns; column++) {
        if (column % 4 == 0)
            for (std::size_t line = 0; line < tile.lines; line++, tile.ahead += 64) _mm_prefetch(tile.ahead, _MM_HINT_T1);
        for (int v = 0; v < n; v++) {
            const __m512 number = _mm512_set1_ps(x[v * inner + tile.first + column]);
            for (int p = 0; p < panels; p++) sums[p][v] = _mm512_fmadd_ps(tile.numbers[p][column], number, sums[p][v]);
        }
    }
    for (int v = 0; v < n; v++)
        for (int p = 0; p < panels; p++) _mm512_mask_storeu_ps(y + v * stride + p * lanes, tile.rows[p], sums[p][v]);
}

// Number j of the result is the sum of register j. Registers are added in pairs, lane by lane.
inline __m512 totals(const __m512 *sums) {
    __m512 pairs[8], fours[4];
    for (int i = 0; i < 8; i++) pairs[i] = _mm512_unpacklo_ps(sums[2 * i], sums[2 * i + 1]) + _mm512_unpackhi_ps(sums[2 * i], sums[2 * i + 1]);
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    const auto halved = [](__m512 a, __m512 b) { return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd); };
    return halved(halved(fours[0], fours[1]), halved(fours[2], fours[3]));
}

constexpr std::size_t short_ahead = 8192;  // bytes that are prefetched: without it, reading from memory takes twice as long
constexpr std::size_t short_row = 128;  // as the keys of a head: sixteen rows are a small part of memory

// Few vectors and short rows: a sum across the lanes of a register takes longer than the products.
void by_short_rows(const float *b, std::size_t inner, const float *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                   std::size_t stride) {
    alignas(64) float rest[lanes * short_row];
    for (std::size_t row = first; row < last; row += lanes) {
        const std::size_t count = last - row < lanes ? last - row : lanes;
        const float *from = b + row * inner;
        if (count < lanes) {
            std::memset(rest, 0, lanes * inner * sizeof(float));
            std::memcpy(rest, from, count * inner * sizeof(float));
            from = rest;
        }
        const auto next = reinterpret_cast<const char *>(b + row * inner) + short_ahead;
        for (std::size_t at = 0; at < lanes * inner * sizeof(float); at += 64) _mm_prefetch(next + at, _MM_HINT_T0);
        for (std::size_t v = 0; v < vectors; v++) {
            __m512 sums[lanes];
            for (std::size_t j = 0; j < lanes; j++) sums[j] = _mm512_setzero_ps();
            for (std::size_t i = 0; i < inner; i += 16) {
                const auto mask = static_cast<__mmask16>(inner - i < 16 ? (1u << (inner - i)) - 1 : 0xffff);
                const __m512 factor = _mm512_maskz_loadu_ps(mask, x + v * inner + i);
                for (std::size_t j = 0; j < lanes; j++)
                    sums[j] = _mm512_fmadd_ps(factor, _mm512_maskz_loadu_ps(mask, from + j * inner + i), sums[j]);
            }
            _mm512_mask_storeu_ps(y + v * stride + row, static_cast<__mmask16>((1u << count) - 1), totals(sums));
        }
    }
}

void row_products(const float *b, std::size_t inner, const float *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                  std::size_t stride) {
    constexpr std::size_t few_floats = 5;  // below, memory is the limit, and rows in memory order are read faster
    if (vectors < few_floats) return (inner <= short_row ? by_short_rows : by_rows)(b, inner, x, vectors, first, last, y, stride);
    constexpr std::size_t together = 8;
    constexpr decltype(&times_tile<1>) times[together]{times_tile<1>, times_tile<2>, times_tile<3>, times_tile<4>,
                                                       times_tile<5>, times_tile<6>, times_tile<7>, times_tile<8>};
    const std::size_t groups = (vectors + together - 1) / together;
    FloatTile tile;
    tile.lines = (tile_rows * 4 * sizeof(float) + 64 * groups - 1) / (64 * groups);
    for (std::size_t row = first; row < last; row += tile_rows) {
        tile.ahead = reinterpret_cast<const char *>(b + (row + tile_rows) * inner);
        for (tile.first = 0; tile.first < inner; tile.first += tile.columns) {
            const std::size_t most = sizeof tile.numbers[0] / sizeof tile.numbers[0][0];
            tile.columns = inner - tile.first < most ? inner - tile.first : most;
            for (int p = 0; p < panels; p++) {
                std::size_t rows[lanes];
                tile.rows[p] = rows_of(row + p * lanes, last, inner * sizeof(float), rows);
                for (std::size_t column = 0; column < tile.columns; column += 4) {
                    const std::size_t count = tile.columns - column < 4 ? tile.columns - column : 4;
                    __m512i four[4];
                    transpose(b + tile.first + column, rows, first_of_four(count), four);
                    for (std::size_t i = 0; i < count; i++) tile.numbers[p][column + i] = _mm512_castsi512_ps(four[i]);
                }
            }
            for (std::size_t group = 0; group < groups; group++) {
                const std::size_t begin = vectors * group / groups, end = vectors * (group + 1) / groups;
                times[end - begin - 1](tile, x + begin * inner, inner, y + begin * stride + row, stride);
            }
        }
    }
}

}  // namespace

}  // namespace t2r::provider
