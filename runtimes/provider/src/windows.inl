// Scores and sums over the stored rows of a window, which are read once for several queries. Included by kernels.inl.

namespace t2r::provider {

namespace {

constexpr std::size_t queries_together = 4;  // whose sums stay in registers
constexpr std::size_t ahead_of_scores = 4096, rows_ahead = 32;  // bytes, and rows of a sum, that are prefetched: those after them in memory

inline Wide at(const std::int8_t *x) {
#if defined(__AVX512F__)
    return (Wide)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(x))));
#elif defined(__AVX2__)
    return (Wide)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(x))));
#else
    return Wide{static_cast<float>(x[0]), static_cast<float>(x[1]), static_cast<float>(x[2]), static_cast<float>(x[3])};
#endif
}

// The scores of n queries. A row is rotated by a row of `same` and of `other`, as in `rotate`, unless they are null.
template <std::size_t n, class Number>
void scores_of(const StoredRows &rows, const float *same, const float *other, const float *q, float *y, std::size_t stride) {
    const Number *x = static_cast<const Number *>(rows.numbers);
    const std::size_t size = rows.size, half = size / 2;
    for (std::size_t row = 0; row < rows.count; row++, x += size) {
        Wide sums[n] = {};
        float rest[n] = {};
        for (std::size_t at = 0; at < size * sizeof(Number); at += 64) __builtin_prefetch(reinterpret_cast<const char *>(x) + ahead_of_scores + at);
        std::size_t i = 0;
        if (same) {
            for (; i + wide <= half; i += wide) {
                const Wide a = at(x + i), b = at(x + half + i);
                const Wide left = a * at(same + i) + b * at(other + i), right = b * at(same + half + i) + a * at(other + half + i);
                for (std::size_t v = 0; v < n; v++) sums[v] += left * at(q + v * size + i) + right * at(q + v * size + half + i);
            }
            for (; i < half; i++) {
                const float a = static_cast<float>(x[i]), b = static_cast<float>(x[half + i]);
                const float left = a * same[i] + b * other[i], right = b * same[half + i] + a * other[half + i];
                for (std::size_t v = 0; v < n; v++) rest[v] += left * q[v * size + i] + right * q[v * size + half + i];
            }
            same += size, other += size;
        } else {
            for (; i + wide <= size; i += wide) {
                const Wide a = at(x + i);
                for (std::size_t v = 0; v < n; v++) sums[v] += a * at(q + v * size + i);
            }
            for (; i < size; i++)
                for (std::size_t v = 0; v < n; v++) rest[v] += static_cast<float>(x[i]) * q[v * size + i];
        }
        const float scale = rows.scales ? rows.scales[row] : 1.0f;
        for (std::size_t v = 0; v < n; v++) y[v * stride + row] = (total(sums[v]) + rest[v]) * scale;
    }
}

template <std::size_t n, class Number>
void scores_of_all(const StoredRows &rows, const float *same, const float *other, const float *q, std::size_t queries, float *y,
                   std::size_t stride) {
    for (; queries >= n; queries -= n, q += n * rows.size, y += n * stride) scores_of<n, Number>(rows, same, other, q, y, stride);
    if constexpr (n > 1)
        if (queries) scores_of_all<n - 1, Number>(rows, same, other, q, queries, y, stride);
}

void row_scores(const StoredRows &rows, const float *same, const float *other, const float *q, std::size_t queries, float *y,
                std::size_t stride) {
    const auto each = rows.scales ? scores_of_all<queries_together, std::int8_t> : scores_of_all<queries_together, float>;
    each(rows, same, other, q, queries, y, stride);
}

// `registers` registers of columns, from column `first` on.
template <std::size_t n, std::size_t registers, class Number>
void add_registers(const StoredRows &rows, const float *weights, std::size_t stride, float *y, std::size_t first) {
    const Number *x = static_cast<const Number *>(rows.numbers) + first;
    Wide sums[n][registers];
    for (std::size_t v = 0; v < n; v++)
        for (std::size_t i = 0; i < registers; i++) sums[v][i] = at(y + v * rows.size + first + i * wide);
    for (std::size_t row = 0; row < rows.count; row++, x += rows.size) {
        for (std::size_t i = 0; i < registers * wide * sizeof(Number); i += 64)
            __builtin_prefetch(reinterpret_cast<const char *>(x + rows_ahead * rows.size) + i);
        Wide from[registers];
        for (std::size_t i = 0; i < registers; i++) from[i] = rows.scales ? at(x + i * wide) * rows.scales[row] : at(x + i * wide);
        for (std::size_t v = 0; v < n; v++)
            for (std::size_t i = 0; i < registers; i++) sums[v][i] += weights[v * stride + row] * from[i];
    }
    for (std::size_t v = 0; v < n; v++)
        for (std::size_t i = 0; i < registers; i++) *reinterpret_cast<Wide *>(y + v * rows.size + first + i * wide) = sums[v][i];
}

template <std::size_t n, class Number>
void add_rows_of(const StoredRows &rows, const float *weights, std::size_t queries, std::size_t stride, float *y, std::size_t first,
                 std::size_t last) {
    for (; queries >= n; queries -= n, weights += n * stride, y += n * rows.size) {
        std::size_t column = first;
        for (; column + 2 * wide <= last; column += 2 * wide) add_registers<n, 2, Number>(rows, weights, stride, y, column);
        for (; column + wide <= last; column += wide) add_registers<n, 1, Number>(rows, weights, stride, y, column);
        for (std::size_t row = 0; row < rows.count && column < last; row++) {
            const Number *x = static_cast<const Number *>(rows.numbers) + row * rows.size;
            const float scale = rows.scales ? rows.scales[row] : 1.0f;
            for (std::size_t v = 0; v < n; v++)
                for (std::size_t i = column; i < last; i++) y[v * rows.size + i] += weights[v * stride + row] * (static_cast<float>(x[i]) * scale);
        }
    }
    if constexpr (n > 1)
        if (queries) add_rows_of<n - 1, Number>(rows, weights, queries, stride, y, first, last);
}

void add_rows(const StoredRows &rows, const float *weights, std::size_t queries, std::size_t stride, float *y, std::size_t first,
              std::size_t last) {
    const auto each = rows.scales ? add_rows_of<queries_together, std::int8_t> : add_rows_of<queries_together, float>;
    each(rows, weights, queries, stride, y, first, last);
}

}  // namespace

}  // namespace t2r::provider
