// Elementwise functions, sums and maxima of vectors. Included by kernels.inl.

namespace t2r::provider {

namespace {

inline float two_to(std::int32_t exponent) {
    const std::int32_t bits = (exponent + 127) << 23;
    float power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return power;
}

// e^x to 2 units in the last place, without branches, which would prevent vectorization: 2^n · p(r), |r| ≤ ln 2 / 2
// (Cephes' polynomial). 2^n is two factors, so that large results are infinite and small ones are rounded. NaN
// propagates through r.
inline float exp_of(float x) {
    float inside = x < 89.0f ? x : 89.0f;
    inside = inside > -104.0f ? inside : -104.0f;
    const float n = __builtin_floorf(inside * 1.44269504088896341f + 0.5f);
    const float r = (x != x ? x : inside) - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const auto whole = static_cast<std::int32_t>(n), half = whole >> 1;
    return p * two_to(half) * two_to(whole - half);
}

// log(1 + e^x) = max(x, 0) + 2 artanh(t / (2 + t)), t = e^-|x|. The argument of the series is at most 1/3.
inline float softplus_of(float x) {
    const float t = exp_of(x > 0 ? -x : x), s = t / (2.0f + t), z = s * s;
    float p = 1.0f / 15;
    p = p * z + 1.0f / 13;
    p = p * z + 1.0f / 11;
    p = p * z + 1.0f / 9;
    p = p * z + 1.0f / 7;
    p = p * z + 1.0f / 5;
    p = p * z + 1.0f / 3;
    return (x > 0 ? x : 0.0f) + 2.0f * (p * z * s + s);
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

#define T2R_EACH(expression)                         \
    for (std::size_t i = 0; i < n; i++) {            \
        const float v = x[i];                        \
        y[i] = (expression);                         \
    }                                                \
    break

void unary(Unary op, const float *x, float *y, std::size_t n) {
    switch (op) {
    case Unary::abs: T2R_EACH(__builtin_fabsf(v));
    case Unary::ceil: T2R_EACH(__builtin_ceilf(v));
    case Unary::cos: T2R_EACH(__builtin_cosf(v));
    case Unary::erf: T2R_EACH(__builtin_erff(v));
    case Unary::exp: T2R_EACH(exp_of(v));
    case Unary::floor: T2R_EACH(__builtin_floorf(v));
    case Unary::log: T2R_EACH(__builtin_logf(v));
    case Unary::neg: T2R_EACH(-v);
    case Unary::reciprocal: T2R_EACH(1.0f / v);
    case Unary::relu: T2R_EACH(v < 0 ? 0.0f : v);
    case Unary::round: T2R_EACH(__builtin_rintf(v));  // ties to even
    case Unary::sigmoid: T2R_EACH(sigmoid_of(v));
    case Unary::sin: T2R_EACH(__builtin_sinf(v));
    case Unary::softplus: T2R_EACH(softplus_of(v));
    case Unary::sqrt: T2R_EACH(__builtin_sqrtf(v));
    case Unary::tanh: T2R_EACH(__builtin_tanhf(v));
    }
}

#define T2R_PAIRS(expression)                                                   \
    if (a_step && b_step) {                                                     \
        for (std::size_t i = 0; i < n; i++) {                                   \
            const float u = a[i], v = b[i];                                     \
            y[i] = (expression);                                                \
        }                                                                       \
    } else if (a_step) {                                                        \
        const float v = n ? b[0] : 0;                                           \
        for (std::size_t i = 0; i < n; i++) {                                   \
            const float u = a[i];                                               \
            y[i] = (expression);                                                \
        }                                                                       \
    } else {                                                                    \
        const float u = n ? a[0] : 0;                                           \
        for (std::size_t i = 0; i < n; i++) {                                   \
            const float v = b[i * b_step];                                      \
            y[i] = (expression);                                                \
        }                                                                       \
    }                                                                           \
    break

void binary(Binary op, const float *a, std::size_t a_step, const float *b, std::size_t b_step, float *y, std::size_t n) {
    switch (op) {
    case Binary::add: T2R_PAIRS(u + v);
    case Binary::div: T2R_PAIRS(u / v);
    case Binary::max: T2R_PAIRS(u > v || u != u ? u : v);
    case Binary::min: T2R_PAIRS(u < v || u != u ? u : v);
    case Binary::mod: break;
    case Binary::mul: T2R_PAIRS(u * v);
    case Binary::pow: T2R_PAIRS(v == 2.0f ? u * u : __builtin_powf(u, v));
    case Binary::sub: T2R_PAIRS(u - v);
    }
}

// wide: number of floats in a register.
#if defined(__AVX512F__)
constexpr std::size_t wide = 16;
constexpr std::size_t together = 8;  // rows per tile: their sums, two registers each, stay in registers
#elif defined(__AVX2__)
constexpr std::size_t wide = 8;
constexpr std::size_t together = 4;
#else
constexpr std::size_t wide = 4;
constexpr std::size_t together = 4;
#endif
typedef float Wide __attribute__((vector_size(wide * sizeof(float)), aligned(4), may_alias));

inline Wide at(const float *x) { return *reinterpret_cast<const Wide *>(x); }

inline float total(Wide x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#elif defined(__AVX2__)
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

// Four accumulators, since a single one waits for each sum.
float sum(const float *x, std::size_t n) {
    Wide parts[4] = {};
    std::size_t i = 0;
    for (; i + 4 * wide <= n; i += 4 * wide)
        for (std::size_t p = 0; p < 4; p++) parts[p] += at(x + i + p * wide);
    for (; i + wide <= n; i += wide) parts[0] += at(x + i);
    float rest = 0;
    for (; i < n; i++) rest += x[i];
    return total((parts[0] + parts[1]) + (parts[2] + parts[3])) + rest;
}

inline float dot(const float *a, const float *b, std::size_t n) {
    Wide parts[4] = {};
    std::size_t i = 0;
    for (; i + 4 * wide <= n; i += 4 * wide)
        for (std::size_t p = 0; p < 4; p++) parts[p] += at(a + i + p * wide) * at(b + i + p * wide);
    for (; i + wide <= n; i += wide) parts[0] += at(a + i) * at(b + i);
    float rest = 0;
    for (; i < n; i++) rest += a[i] * b[i];
    return total((parts[0] + parts[1]) + (parts[2] + parts[3])) + rest;
}

inline Wide larger(Wide a, Wide b) { return ((b > a) | (b != b)) ? b : a; }

// NaN propagates.
float max(const float *x, std::size_t n) {
    float most = x[0];
    std::size_t i = 0;
    if (n >= wide) {
        Wide parts[4]{at(x), at(x), at(x), at(x)};
        for (; i + 4 * wide <= n; i += 4 * wide)
            for (std::size_t p = 0; p < 4; p++) parts[p] = larger(parts[p], at(x + i + p * wide));
        for (; i + wide <= n; i += wide) parts[0] = larger(parts[0], at(x + i));
        const Wide all = larger(larger(parts[0], parts[1]), larger(parts[2], parts[3]));
        for (std::size_t j = 0; j < wide; j++) most = all[j] > most || all[j] != all[j] ? all[j] : most;
    }
    for (; i < n; i++) most = x[i] > most || x[i] != x[i] ? x[i] : most;
    return most;
}

void maxima(const float *x, std::size_t n, float *y) {
    constexpr std::size_t registers = maxima_groups / wide;
    Wide most[registers];
    for (std::size_t r = 0; r < registers; r++) most[r] = Wide{} - __builtin_inff();
    std::size_t i = 0;
    for (; i + maxima_groups <= n; i += maxima_groups)
        for (std::size_t r = 0; r < registers; r++) {
            const Wide next = at(x + i + r * wide);
            most[r] = next > most[r] ? next : most[r];
        }
    __builtin_memcpy(y, most, sizeof most);
    for (std::size_t j = 0; i + j < n; j++) y[j] = x[i + j] > y[j] ? x[i + j] : y[j];
}

// Bit mask of the numbers of a register that are not at most the bound.
inline unsigned bits_above(const float *x, float bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)at(x), _mm512_set1_ps(bound), _CMP_NLE_UQ);
#elif defined(__AVX2__)
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps((__m256)at(x), _mm256_set1_ps(bound), _CMP_NLE_UQ)));
#else
    unsigned bits = 0;
    for (std::size_t j = 0; j < wide; j++) bits |= static_cast<unsigned>(!(x[j] <= bound)) << j;
    return bits;
#endif
}

std::size_t above(const float *x, std::size_t n, float bound) {
    std::size_t i = 0;
    for (; i + wide <= n; i += wide)
        if (const unsigned bits = bits_above(x + i, bound)) return i + static_cast<std::size_t>(__builtin_ctz(bits));
    while (i < n && x[i] <= bound) i++;
    return i;
}

}  // namespace

}  // namespace t2r::provider
