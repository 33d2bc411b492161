// Matrix products, rotations, state updates, and quantization of vectors to 8 bits. Included by kernels.inl.

namespace t2r::provider {

namespace {

constexpr std::size_t ahead_of_few = 2048;  // floats that are prefetched for few rows, whose products take less time than reading b

// Register tile of y: n rows of `registers` registers each.
template <std::size_t n, std::size_t registers, bool are_few>
void product_tile(const float *a, const float *b, float *y, std::size_t inner, std::size_t columns) {
    Wide sums[n][registers] = {};
    for (std::size_t k = 0; k < inner; k++) {
        Wide from[registers];
        for (std::size_t i = 0; i < registers; i++) from[i] = at(b + k * columns + i * wide);
        for (std::size_t i = 0; are_few && i < registers * wide; i += 16) __builtin_prefetch(b + k * columns + i + ahead_of_few);
        for (std::size_t row = 0; row < n; row++)
            for (std::size_t i = 0; i < registers; i++) sums[row][i] += a[row * inner + k] * from[i];
    }
    for (std::size_t row = 0; row < n; row++)
        for (std::size_t i = 0; i < registers; i++) *reinterpret_cast<Wide *>(y + row * columns + i * wide) = sums[row][i];
}

template <std::size_t n, std::size_t registers, bool are_few = false>
void product_rows(const float *a, const float *b, float *y, std::size_t rows, std::size_t inner, std::size_t columns) {
    std::size_t row = 0;
    for (; row + n <= rows; row += n) product_tile<n, registers, are_few>(a + row * inner, b, y + row * columns, inner, columns);
    if constexpr (n > 1) product_rows<n - 1, registers, are_few>(a + row * inner, b, y + row * columns, rows - row, inner, columns);
}

// Fewer columns than a register has: zero-padded to a register if b has few rows.
void product_rest(const float *a, const float *b, float *y, std::size_t rows, std::size_t inner, std::size_t columns, std::size_t count) {
    constexpr std::size_t most = 256;
    if (inner > most) {
        for (std::size_t row = 0; row < rows; row++, a += inner, y += columns) {
            float one[wide] = {};
            for (std::size_t k = 0; k < inner; k++)
                for (std::size_t i = 0; i < count; i++) one[i] += a[k] * b[k * columns + i];
            for (std::size_t i = 0; i < count; i++) y[i] = one[i];
        }
        return;
    }
    float packed[most * wide], sums[together * wide];
    std::memset(packed, 0, inner * wide * sizeof(float));
    for (std::size_t k = 0; k < inner; k++)
        for (std::size_t i = 0; i < count; i++) packed[k * wide + i] = b[k * columns + i];
    for (std::size_t row = 0; row < rows; row += together) {
        const std::size_t n = rows - row < together ? rows - row : together;
        product_rows<together, 1>(a + row * inner, packed, sums, n, inner, wide);
        for (std::size_t i = 0; i < n; i++)
            for (std::size_t j = 0; j < count; j++) y[(row + i) * columns + j] = sums[i * wide + j];
    }
}

// One dot product per row if there is one column; b in memory order if there are few rows and many columns; else register tiles.
void product(const float *a, const float *b, float *y, std::size_t rows, std::size_t inner, std::size_t columns,
             std::size_t first, std::size_t last) {
    for (std::size_t row = 0; row < rows && columns == 1; row++) y[row] = dot(a + row * inner, b, inner);
    if (columns == 1) return;
    for (std::size_t row = 0; row < rows && rows < 4 && last - first > 256; row++, a += inner, y += columns) {
        for (std::size_t i = first; i < last; i++) y[i] = a[0] * b[i];
        for (std::size_t k = 1; k < inner; k++) {
            const float factor = a[k], *from = b + k * columns;
            for (std::size_t i = first; i < last; i++) y[i] += factor * from[i];
        }
    }
    if (rows < 4 && last - first > 256) return;
    std::size_t column = first;
    // with few rows, wider tiles: a register tile of fewer sums waits for each of them
    for (; rows < 4 && column + 4 * wide <= last; column += 4 * wide) product_rows<3, 4, true>(a, b + column, y + column, rows, inner, columns);
    const auto each = rows <= 8 ? product_rows<together, 2, true> : product_rows<together, 2>;
    for (; column + 2 * wide <= last; column += 2 * wide) each(a, b + column, y + column, rows, inner, columns);
    for (; column + wide <= last; column += wide) product_rows<together, 1>(a, b + column, y + column, rows, inner, columns);
    if (column == last) return;
    if (last - first < wide) return product_rest(a, b + column, y + column, rows, inner, columns, last - column);
    column = last - wide;  // recomputes some columns, with the same sums
    product_rows<together, 1>(a, b + column, y + column, rows, inner, columns);
}

// One row after another, in memory order.
inline void by_rows(const float *b, std::size_t inner, const float *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                    std::size_t stride) {
    for (std::size_t row = first; row < last; row++)
        for (std::size_t v = 0; v < vectors; v++) y[v * stride + row] = dot(x + v * inner, b + row * inner, inner);
}

void scaled(const std::int8_t *x, float scale, float *y, std::size_t n) {
    for (std::size_t i = 0; i < n; i++) y[i] = static_cast<float>(x[i]) * scale;
}

void rotate(const float *x, const float *same, const float *other, float *y, std::size_t half) {
    for (std::size_t i = 0; i < half; i++) y[i] = x[i] * same[i] + x[half + i] * other[i];
    for (std::size_t i = half; i < 2 * half; i++) y[i] = x[i] * same[i] + x[i - half] * other[i];
}

void update(const float *state, const float *gate, std::size_t gate_step, const float *k, std::size_t rows, const float *v,
            std::size_t columns, float *y) {
    for (std::size_t row = 0; row < rows; row++, state += columns, y += columns) {
        const float kept = gate[row * gate_step], more = k[row];
        for (std::size_t i = 0; i < columns; i++) y[i] = state[i] * kept + more * v[i];
    }
}

#ifndef T2R_OWN_QUANTIZE

template <std::size_t size> void quantize_in_units(const float *x, const QuantizedMatrix &w, const QuantizedVector &y) {
    const std::size_t whole = padded(w), lanes = size * w.bits / 32;
    const std::int32_t middle = 1 << (w.bits - 1);
    std::memset(y.offsets, 0, whole / size * lanes * sizeof *y.offsets);
    std::memset(y.even, 0, w.bits == 4 ? whole / 2 : whole);
    if (w.bits == 4) std::memset(y.odd, 0, whole / 2);
    for (std::size_t block = 0; block < w.blocks; block++) {
        const std::size_t begin = block * w.block;
        const std::size_t end = begin + w.block < w.columns ? begin + w.block : w.columns;
        std::int32_t most_bits = 0;  // bits of max |x|: absolute values compare as their bits do
        for (std::size_t i = begin; i < end; i++) {
            std::int32_t bits;
            __builtin_memcpy(&bits, x + i, sizeof bits);
            bits &= 0x7fffffff;
            most_bits = bits > most_bits ? bits : most_bits;
        }
        float most;
        __builtin_memcpy(&most, &most_bits, sizeof most);
        const float scale = most / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
        y.scales[block] = scale;
        std::int32_t total = 0;
        for (std::size_t unit = begin; unit < end; unit += size) {
            std::int32_t numbers[size] = {}, of_unit = 0;
            const std::size_t count = unit + size < end ? size : end - unit;
            if (count == size)
                for (std::size_t i = 0; i < size; i++) numbers[i] = static_cast<std::int32_t>(__builtin_rintf(x[unit + i] * inverse));
            else
                for (std::size_t i = 0; i < count; i++) numbers[i] = static_cast<std::int32_t>(__builtin_rintf(x[unit + i] * inverse));
            for (std::size_t i = 0; i < size; i++) of_unit += numbers[i];
            if (w.bits == 8)
                for (std::size_t i = 0; i < size; i++) y.even[unit + i] = static_cast<std::int8_t>(numbers[i]);
            else
                for (std::size_t i = 0; i < size / 2; i++) {
                    y.even[unit / 2 + i] = static_cast<std::int8_t>(numbers[2 * i]);
                    y.odd[unit / 2 + i] = static_cast<std::int8_t>(numbers[2 * i + 1]);
                }
            y.offsets[unit / size * lanes] = -middle * of_unit;
            total += of_unit;
        }
        y.sums[block] = total;
    }
}

void quantize(const float *x, const QuantizedMatrix &w, const QuantizedVector &y) {
    (w.block == 16 ? quantize_in_units<16> : quantize_in_units<32>)(x, w, y);
}

#endif

inline float scale_of(const QuantizedMatrix &w, std::size_t row, std::size_t block) {
    return w.has_halves ? number_of(w.scales_of<Half>(row)[block]) : w.scales_of<float>(row)[block];
}

inline std::int32_t zero_of(const QuantizedMatrix &w, std::size_t row, std::size_t block) {
    if (!w.zeros) return 1 << (w.bits - 1);
    const std::uint8_t *zeros = w.zeros + row * ((w.blocks * w.bits + 7) / 8);
    return w.bits == 8 ? zeros[block] : (block % 2 ? zeros[block / 2] >> 4 : zeros[block / 2] & 15);
}

// Correction of a row's product for zero points other than the middle, of the blocks from `block` on.
inline float of_zeros(const QuantizedMatrix &w, const QuantizedVector &x, std::size_t row, std::size_t block = 0) {
    if (!w.zeros) return 0;
    const std::int32_t middle = 1 << (w.bits - 1);
    float whole = 0;
    for (; block < w.blocks; block++) {
        const auto difference = static_cast<float>((middle - zero_of(w, row, block)) * x.sums[block]);
        whole += difference * (scale_of(w, row, block) * x.scales[block]);
    }
    return whole;
}

#ifndef T2R_OWN_ROW_PRODUCTS

// Many vectors and short rows: a sum across the lanes of a register takes longer than the products, so rows become columns.
void row_products(const float *b, std::size_t inner, const float *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                  std::size_t stride) {
    constexpr std::size_t most = 256, columns = 2 * wide;
    if (vectors < together || inner > most) return by_rows(b, inner, x, vectors, first, last, y, stride);
    float turned[most * columns], sums[together * columns];
    for (std::size_t row = first; row < last; row += columns) {
        const std::size_t count = last - row < columns ? last - row : columns;
        if (count < columns) std::memset(turned, 0, inner * columns * sizeof(float));
        for (std::size_t j = 0; j < count; j++)
            for (std::size_t i = 0; i < inner; i++) turned[i * columns + j] = b[(row + j) * inner + i];
        for (std::size_t v = 0; v < vectors; v += together) {
            const std::size_t n = vectors - v < together ? vectors - v : together;
            product_rows<together, 2>(x + v * inner, turned, sums, n, inner, columns);
            for (std::size_t i = 0; i < n; i++) std::memcpy(y + (v + i) * stride + row, sums + i * columns, count * sizeof(float));
        }
    }
}

#endif

#ifndef T2R_OWN_QUANTIZED_PRODUCT

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first,
                       std::size_t last, float *y, std::size_t stride) {
    const std::size_t bytes = w.blocks * w.block * w.bits / 8, step = w.block * w.bits / 8;
    const std::size_t size = w.block == 16 ? 16 : 32, lanes = size * w.bits / 32;
    for (std::size_t row = first; row < last; row++) {
        for (std::size_t v = 0; v < vectors; v++) {
            const std::uint8_t *numbers = w.numbers + row * bytes;
            float whole = 0;
            for (std::size_t block = 0; block < w.blocks; block++, numbers += step) {
                std::int32_t dot = 0;
                for (std::size_t unit = 0; unit < w.block; unit += size) dot += x[v].offsets[(block * w.block + unit) / size * lanes];
                if (w.bits == 4) {
                    const std::int8_t *even = x[v].even + block * step, *odd = x[v].odd + block * step;
                    for (std::size_t i = 0; i < step; i++) dot += (numbers[i] & 15) * even[i] + (numbers[i] >> 4) * odd[i];
                } else {
                    const std::int8_t *all = x[v].even + block * step;
                    for (std::size_t i = 0; i < step; i++) dot += numbers[i] * all[i];
                }
                whole += static_cast<float>(dot) * (scale_of(w, row, block) * x[v].scales[block]);
            }
            y[v * stride + row] = whole + of_zeros(w, x[v], row);
        }
    }
}

#endif

}  // namespace

}  // namespace t2r::provider
