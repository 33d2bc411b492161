// Kernels, the inner loops of the operators: one table of the same functions per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace t2r::provider {

enum class Unary { abs, ceil, cos, erf, exp, floor, log, neg, reciprocal, relu, round, sigmoid, sin, softplus, sqrt, tanh };
enum class Binary { add, div, max, min, mod, mul, pow, sub };  // mod: integers only

// A float16 number in memory.
struct Half {
    std::uint16_t bits;
};

// Of either type, as float32. Static: each kind of processor has a copy.
static inline float number_of(float x) { return x; }
static inline float number_of(Half x) {
#ifdef __aarch64__
    __fp16 number;  // one instruction
    __builtin_memcpy(&number, &x, sizeof number);
    return number;
#else
    constexpr std::uint32_t infinity = 0x7f800000u;
    std::uint32_t bits = (x.bits & 0x7fffu) << 13;
    const bool is_finite = bits < 0x0f800000u;
    if (!is_finite) bits |= infinity;
    float number;
    __builtin_memcpy(&number, &bits, sizeof number);
    if (is_finite) number *= 0x1p112f;  // the difference of the exponents' biases
    return x.bits & 0x8000u ? -number : number;
#endif
}

// Quantized matrix (rows, columns) in the layout of MatMulNBits: each block of `block` numbers of a row shares a scale
// and a zero point. With 4 bits, number 2i is in the low half of byte i, number 2i + 1 in the high half.
struct QuantizedMatrix {
    const std::uint8_t *numbers;  // (rows, blocks · block · bits / 8)
    const void *scales;           // (rows, blocks) of float32, or of Half
    bool has_halves;
    const std::uint8_t *zeros;    // (rows, ⌈blocks · bits / 8⌉), or null: 2^(bits - 1) each
    std::size_t rows, columns, block, blocks;
    int bits;

    template <class Scale> const Scale *scales_of(std::size_t row) const { return static_cast<const Scale *>(scales) + row * blocks; }
    std::size_t scale_bytes() const { return has_halves ? sizeof(Half) : sizeof(float); }
};

// Bytes of a number of a quantized vector.
#ifdef __wasm__
inline constexpr std::size_t number_bytes = 2;
#else
inline constexpr std::size_t number_bytes = 1;
#endif

// Vector quantized to 8 bits in the blocks of the matrix that it is multiplied with, zero-padded to registers of 64 bytes.
struct QuantizedVector {
    std::int8_t *even, *odd;   // numbers 2i and 2i + 1 for 4 bits; for 8 bits `even` has all; for WebAssembly as in web/rows_wasm.inl
    float *scales;             // per block
    std::int32_t *offsets;     // initial accumulators, one per 4 bytes: in the first of a unit of 32 numbers (or of a block of 16)
                               // -2^(bits - 1) · their sum, else 0
    std::int32_t *sums;        // of the numbers, per block
};

// Rows (count, size) of int8, each with a scale, or of float32.
struct StoredRows {
    const void *numbers;
    const float *scales;  // per row, or null: float32
    std::size_t count, size;
};

// Number of groups of `maxima`.
inline constexpr std::size_t maxima_groups = 64;

// Rows per tile of products with many vectors; threads divide rows at multiples of it.
inline constexpr int tile_rows = 32;

struct Kernels {
    const char *name;
    void (*unary)(Unary op, const float *x, float *y, std::size_t n);
    // steps are 0 (broadcast) or 1
    void (*binary)(Binary op, const float *a, std::size_t a_step, const float *b, std::size_t b_step, float *y, std::size_t n);
    float (*sum)(const float *x, std::size_t n);
    float (*max)(const float *x, std::size_t n);
    // y[g] = max(x[g], x[g + 64], …), ignoring NaN; -∞ for none
    void (*maxima)(const float *x, std::size_t n, float *y);
    // index of the first number that is not at most the bound (above it, or NaN), or n
    std::size_t (*above)(const float *x, std::size_t n, float bound);
    // y (rows, columns) = a (rows, inner) · b (inner, columns), columns [first, last)
    void (*product)(const float *a, const float *b, float *y, std::size_t rows, std::size_t inner, std::size_t columns,
                    std::size_t first, std::size_t last);
    // y = x · same + (x with its halves exchanged) · other, all of 2 · half numbers: a rotation of pairs
    void (*rotate)(const float *x, const float *same, const float *other, float *y, std::size_t half);
    // y = x · scale
    void (*scaled)(const std::int8_t *x, float scale, float *y, std::size_t n);
    // y (rows, columns) = state · gate + k vᵀ; gate_step: 0 (one number for all rows) or 1 (one per row)
    void (*update)(const float *state, const float *gate, std::size_t gate_step, const float *k, std::size_t rows, const float *v,
                   std::size_t columns, float *y);
    // y[v · stride + r] = (row r of b) · (vector v of x), of `inner` numbers, for r in [first, last)
    void (*row_products)(const float *b, std::size_t inner, const float *x, std::size_t vectors, std::size_t first, std::size_t last,
                         float *y, std::size_t stride);
    // y[v · stride + r] = (row r) · (query v of q); with `same` and `other`, tables of their rows, each is rotated as by `rotate`
    void (*row_scores)(const StoredRows &rows, const float *same, const float *other, const float *q, std::size_t queries, float *y,
                       std::size_t stride);
    // y (queries, size) += weights · rows, columns [first, last), where weights[v · stride + r] is row r's for query v
    void (*add_rows)(const StoredRows &rows, const float *weights, std::size_t queries, std::size_t stride, float *y, std::size_t first,
                     std::size_t last);
    void (*quantize)(const float *x, const QuantizedMatrix &for_matrix, const QuantizedVector &y);
    // y[v · stride + r] = (row r of w) · (vector v), for r in [first, last)
    void (*quantized_product)(const QuantizedMatrix &w, const QuantizedVector *x, std::size_t vectors, std::size_t first,
                              std::size_t last, float *y, std::size_t stride);
};

// Length of a vector that is multiplied with w, rounded up to whole registers.
static inline std::size_t padded(const QuantizedMatrix &w) { return (w.blocks * w.block + 127) / 128 * 128; }

// The best table for this processor; T2R_KERNELS (base; avx2, avxvnni, avx512; neon, dotprod, i8mm) selects a lesser one.
const Kernels &kernels();

extern const Kernels base_kernels;
#if defined(__x86_64__) || defined(_M_X64)
#define T2R_X86 1
extern const Kernels avx2_kernels, avxvnni_kernels, avx512_kernels;
#elif defined(__aarch64__)
#define T2R_ARM64 1
extern const Kernels neon_kernels, dotprod_kernels, i8mm_kernels;
#elif defined(__wasm__)
#define T2R_WASM 1
extern const Kernels wasm_kernels;
#endif

}  // namespace t2r::provider
