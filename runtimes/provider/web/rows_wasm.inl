// Products of rows of weights in 4 and 8 bits and vectors in 8 bits with WebAssembly's registers of 16 bytes. Its only sum of products is
// of 16 bits (dot_i16x8), so vectors are stored as int16, in the order in which masks and shifts find the weights in lanes of 16 bits:
// those of 4 bits as n, 16 n, 256 n and n. Their numbers of x are times 256, 16, 1 and 256, so that all sums are times 256.
// Included by kernels_wasm.cpp.
#include <wasm_simd128.h>

namespace t2r::provider {

namespace {

constexpr std::size_t in_register = 8;  // lanes of int16

template <int bits> constexpr std::size_t parts = bits == 4 ? 4 : 2;  // registers of x to a register of weights
template <int bits> constexpr std::int32_t scaled_up = bits == 4 ? 256 : 1;

template <int bits, std::size_t size> void quantize_in_units(const float *x, const QuantizedMatrix &w, const QuantizedVector &y) {
    constexpr std::size_t many = parts<bits>, lanes = size * bits / 32;
    constexpr std::int32_t factors[4] = {bits == 4 ? 256 : 1, bits == 4 ? 16 : 1, 1, 256}, middle = 1 << (bits - 1);
    const std::size_t whole = padded(w);
    auto *const numbers = reinterpret_cast<std::int16_t *>(y.even);
    std::memset(numbers, 0, whole * sizeof *numbers);
    std::memset(y.offsets, 0, whole / size * lanes * sizeof *y.offsets);
    for (std::size_t block = 0; block < w.blocks; block++) {
        const std::size_t begin = block * w.block, end = begin + w.block < w.columns ? begin + w.block : w.columns;
        const v128_t no_sign = wasm_i32x4_const_splat(0x7fffffff);
        v128_t most_bits = wasm_i32x4_const_splat(0);  // of max |x|: absolute values compare as their bits do
        std::size_t i = begin;
        for (; i + 4 <= end; i += 4) most_bits = wasm_i32x4_max(most_bits, wasm_v128_and(wasm_v128_load(x + i), no_sign));
        for (; i < end; i++) most_bits = wasm_i32x4_max(most_bits, wasm_v128_and(wasm_v128_load32_zero(x + i), no_sign));
        most_bits = wasm_i32x4_max(most_bits, wasm_i32x4_shuffle(most_bits, most_bits, 2, 3, 0, 1));
        most_bits = wasm_i32x4_max(most_bits, wasm_i32x4_shuffle(most_bits, most_bits, 1, 0, 3, 2));
        const float most = wasm_f32x4_extract_lane(most_bits, 0);
        const float scale = most / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
        y.scales[block] = scale;
        std::int32_t total = 0;
        for (std::size_t unit = begin; unit < end; unit += size) {
            const std::size_t count = unit + size < end ? size : end - unit;
            std::int32_t of_unit = 0, rounded[size] = {};
            std::size_t j = 0;
            for (; j + 4 <= count; j += 4) {
                const v128_t four = wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + unit + j), wasm_f32x4_splat(inverse))));
                wasm_v128_store(rounded + j, four);
            }
            for (; j < count; j++) rounded[j] = static_cast<std::int32_t>(__builtin_rintf(x[unit + j] * inverse));
            for (j = 0; j < size; j++) {
                const std::size_t at = unit + j, within = at % (many * in_register);
                numbers[at - within + within % many * in_register + within / many] = static_cast<std::int16_t>(rounded[j] * factors[at % many]);
                of_unit += rounded[j];
            }
            y.offsets[unit / size * lanes] = -middle * of_unit * scaled_up<bits>;
            total += of_unit;
        }
        y.sums[block] = total;
    }
}

void quantize(const float *x, const QuantizedMatrix &w, const QuantizedVector &y) {
    if (w.bits == 8) return (w.block == 16 ? quantize_in_units<8, 16> : quantize_in_units<8, 32>)(x, w, y);
    (w.block == 16 ? quantize_in_units<4, 16> : quantize_in_units<4, 32>)(x, w, y);
}

inline v128_t four_of(const float *from) { return wasm_v128_load(from); }

// As number_of, in kernels.hpp.
inline v128_t four_of(const Half *from) {
    const v128_t halves = wasm_u32x4_extend_low_u16x8(wasm_v128_load64_zero(from));
    const v128_t bits = wasm_i32x4_shl(wasm_v128_and(halves, wasm_i32x4_const_splat(0x7fff)), 13);
    const v128_t signs = wasm_i32x4_shl(wasm_v128_and(halves, wasm_i32x4_const_splat(0x8000)), 16);
    const v128_t is_finite = wasm_i32x4_lt(bits, wasm_i32x4_const_splat(0x0f800000));
    const v128_t finite = wasm_f32x4_mul(bits, wasm_f32x4_const_splat(0x1p112f)), others = wasm_v128_or(bits, wasm_i32x4_const_splat(0x7f800000));
    return wasm_v128_or(signs, wasm_v128_bitselect(finite, others, is_finite));
}

inline float total_of(v128_t x) {
    return (wasm_f32x4_extract_lane(x, 0) + wasm_f32x4_extract_lane(x, 2)) + (wasm_f32x4_extract_lane(x, 1) + wasm_f32x4_extract_lane(x, 3));
}

// Weights of a register, in lanes of 16 bits.
template <int bits> struct Unpacked {
    v128_t in_lanes[4];

    explicit Unpacked(v128_t weights) {
        if (bits == 4) {
            in_lanes[0] = wasm_v128_and(weights, wasm_i16x8_const_splat(0x000f)), in_lanes[1] = wasm_v128_and(weights, wasm_i16x8_const_splat(0x00f0));
            in_lanes[2] = wasm_v128_and(weights, wasm_i16x8_const_splat(0x0f00)), in_lanes[3] = wasm_u16x8_shr(weights, 12);
        } else {
            in_lanes[0] = wasm_v128_and(weights, wasm_i16x8_const_splat(0x00ff)), in_lanes[1] = wasm_u16x8_shr(weights, 8);
        }
    }
    // dots += products with the numbers of x from register `at` on
    v128_t times(v128_t dots, const QuantizedVector &x, std::size_t at) const {
        const std::int8_t *const numbers = x.even + at * parts<bits> * 16;
        for (std::size_t i = 0; i < parts<bits>; i++)
            dots = wasm_i32x4_add(dots, wasm_i32x4_dot_i16x8(in_lanes[i], wasm_v128_load(numbers + i * 16)));
        return dots;
    }
};

// What the zero points of four blocks differ from the middle, times scaled_up.
template <int bits> inline v128_t differences(const QuantizedMatrix &w, std::size_t row, std::size_t block) {
    const std::uint8_t *const zeros = w.zeros + row * ((w.blocks * bits + 7) / 8) + block * bits / 8;
    if (bits == 8)
        return wasm_f32x4_sub(wasm_f32x4_const_splat(128), wasm_f32x4_convert_i32x4(wasm_u32x4_extend_low_u16x8(wasm_u16x8_extend_low_u8x16(wasm_v128_load32_zero(zeros)))));
    const v128_t each = wasm_v128_and(wasm_i32x4_splat(zeros[0] | zeros[1] << 8), wasm_i32x4_const(0x000f, 0x00f0, 0x0f00, 0xf000));
    return wasm_f32x4_sub(wasm_f32x4_const_splat(2048), wasm_f32x4_mul(wasm_f32x4_convert_i32x4(each), wasm_f32x4_const(256, 16, 1, 1.0f / 16)));
}

// Products of `rows` rows with n vectors. `registers`: of a block, or 0: as many as it has.
template <int bits, std::size_t registers, std::size_t rows, std::size_t n, class Scale>
void rows_times_vectors(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t row, float *y, std::size_t stride) {
    const std::size_t count = registers ? registers : w.block * bits / 128, bytes = w.blocks * w.block * bits / 8;
    const std::uint8_t *const numbers = w.numbers + row * bytes;
    const Scale *const first = w.scales_of<Scale>(row);
    v128_t sums[rows][n];
    for (std::size_t r = 0; r < rows; r++)
        for (std::size_t v = 0; v < n; v++) sums[r][v] = wasm_f32x4_const_splat(0);
    const auto add_block = [&](std::size_t block, const auto &scale_of) {
        v128_t dots[rows][n];
        for (std::size_t r = 0; r < rows; r++)
            for (std::size_t v = 0; v < n; v++) dots[r][v] = wasm_i32x4_const_splat(0);
        for (std::size_t at = block * count; at < (block + 1) * count; at++)
            for (std::size_t r = 0; r < rows; r++) {
                const Unpacked<bits> weights(wasm_v128_load(numbers + r * bytes + at * 16));
                for (std::size_t v = 0; v < n; v++)
                    dots[r][v] = weights.times(wasm_i32x4_add(dots[r][v], wasm_v128_load(x[v].offsets + at * 4)), x[v], at);
            }
        for (std::size_t r = 0; r < rows; r++)
            for (std::size_t v = 0; v < n; v++)
                sums[r][v] = wasm_f32x4_add(sums[r][v], wasm_f32x4_mul(wasm_f32x4_convert_i32x4(dots[r][v]), scale_of(r, v)));
    };
    std::size_t block = 0;
    for (; block + 4 <= w.blocks; block += 4) {
        v128_t four[rows][n];
        for (std::size_t r = 0; r < rows; r++)
            for (std::size_t v = 0; v < n; v++) four[r][v] = wasm_f32x4_mul(four_of(first + r * w.blocks + block), wasm_v128_load(x[v].scales + block));
        for (std::size_t r = 0; w.zeros && r < rows; r++) {
            const v128_t differ = differences<bits>(w, row + r, block);
            for (std::size_t v = 0; v < n; v++) {
                const v128_t by_sums = wasm_f32x4_mul(wasm_f32x4_convert_i32x4(wasm_v128_load(x[v].sums + block)), differ);
                sums[r][v] = wasm_f32x4_add(sums[r][v], wasm_f32x4_mul(four[r][v], by_sums));
            }
        }
        add_block(block, [&](std::size_t r, std::size_t v) { return wasm_i32x4_shuffle(four[r][v], four[r][v], 0, 0, 0, 0); });
        add_block(block + 1, [&](std::size_t r, std::size_t v) { return wasm_i32x4_shuffle(four[r][v], four[r][v], 1, 1, 1, 1); });
        add_block(block + 2, [&](std::size_t r, std::size_t v) { return wasm_i32x4_shuffle(four[r][v], four[r][v], 2, 2, 2, 2); });
        add_block(block + 3, [&](std::size_t r, std::size_t v) { return wasm_i32x4_shuffle(four[r][v], four[r][v], 3, 3, 3, 3); });
    }
    const std::size_t rest = block;
    for (; block < w.blocks; block++)
        add_block(block, [&](std::size_t r, std::size_t v) { return wasm_f32x4_splat(number_of(first[r * w.blocks + block]) * x[v].scales[block]); });
    for (std::size_t r = 0; r < rows; r++)
        for (std::size_t v = 0; v < n; v++)
            y[v * stride + row + r] = total_of(sums[r][v]) * (1.0f / scaled_up<bits>) + of_zeros(w, x[v], row + r, rest);
}

// Blocks of 16 numbers in 4 bits, two in a register.
template <class Scale> void row_of_halves(const QuantizedMatrix &w, const QuantizedVector &x, std::size_t row, float *y) {
    const std::uint8_t *const numbers = w.numbers + row * w.blocks * 8;
    const Scale *const scale = w.scales_of<Scale>(row);
    v128_t sum = wasm_f32x4_const_splat(0);
    for (std::size_t block = 0; block < w.blocks; block += 2) {
        const bool has_both = block + 1 < w.blocks;  // what follows the last block is not read
        const v128_t bytes = has_both ? wasm_v128_load(numbers + block * 8) : wasm_v128_load64_zero(numbers + block * 8);
        const float first = number_of(scale[block]) * x.scales[block], second = has_both ? number_of(scale[block + 1]) * x.scales[block + 1] : 0;
        const v128_t dots = Unpacked<4>(bytes).times(wasm_v128_load(x.offsets + block * 2), x, block / 2);
        sum = wasm_f32x4_add(sum, wasm_f32x4_mul(wasm_f32x4_convert_i32x4(dots), wasm_f32x4_make(first, first, second, second)));
    }
    *y = total_of(sum) * (1.0f / scaled_up<4>) + of_zeros(w, x, row);
}

// Several rows for one vector, so that x is read once for them; one row for several vectors, so that it is unpacked once for them.
template <int bits, std::size_t registers, class Scale>
void products_of(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                 std::size_t stride) {
    constexpr std::size_t rows = bits == 8 ? 4 : 2, together = 2;
    for (; vectors >= together; vectors -= together, x += together, y += together * stride)
        for (std::size_t row = first; row < last; row++) rows_times_vectors<bits, registers, 1, together, Scale>(w, x, row, y, stride);
    for (; vectors; vectors--, x++, y += stride) {
        std::size_t row = first;
        for (; row + rows <= last; row += rows) rows_times_vectors<bits, registers, rows, 1, Scale>(w, x, row, y, stride);
        for (; row < last; row++) rows_times_vectors<bits, registers, 1, 1, Scale>(w, x, row, y, stride);
    }
}

template <class Scale>
void product_of(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                std::size_t stride) {
    if (w.bits == 4 && w.block == 16) {
        for (std::size_t v = 0; v < vectors; v++)
            for (std::size_t row = first; row < last; row++) row_of_halves<Scale>(w, x[v], row, y + v * stride + row);
        return;
    }
    const auto product = w.bits == 8 ? (w.block == 32 ? products_of<8, 2, Scale> : products_of<8, 0, Scale>)
                                     : (w.block == 32 ? products_of<4, 1, Scale> : products_of<4, 0, Scale>);
    product(w, x, vectors, first, last, y, stride);
}

void quantized_product(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first, std::size_t last, float *y,
                       std::size_t stride) {
    (w.has_halves ? product_of<Half> : product_of<float>)(w, x, vectors, first, last, y, stride);
}

}  // namespace

}  // namespace t2r::provider
