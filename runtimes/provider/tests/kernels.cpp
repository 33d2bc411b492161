// The kernels on arrays of exact size, against sums in double precision: for a build with AddressSanitizer, which detects accesses
// beyond an array. A session's values share one arena, where it would detect none.
#include "kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <vector>

using namespace t2r::provider;

namespace {

std::mt19937 random_bits(1);
int wrong = 0;

float normal() { return std::normal_distribution<float>()(random_bits); }

std::vector<float> normals(std::size_t n) {
    std::vector<float> x(n);
    std::generate(x.begin(), x.end(), normal);
    return x;
}

std::vector<std::uint8_t> bytes(std::size_t n) {
    std::vector<std::uint8_t> x(n);
    std::generate(x.begin(), x.end(), std::ref(random_bits));
    return x;
}

// Finite numbers in float16, some of them subnormal, and what they are.
std::vector<Half> halves_of(std::size_t n) {
    std::vector<Half> x(n);
    for (Half &each : x) each.bits = static_cast<std::uint16_t>(random_bits() % 0x4400u | (random_bits() & 0x8000u));
    return x;
}

struct Sum {
    double value = 0, size = 0;

    void add(double more) { value += more, size += std::fabs(more); }
    void expect(float found, const char *of, std::size_t a, std::size_t b, std::size_t c) const {
        if (std::fabs(found - value) <= 1e-5 * (size + 1)) return;
        wrong++;
        std::printf("%s %zu %zu %zu: expected %g, received %g\n", of, a, b, c, value, found);
    }
};

// Calls work(first, last) as three threads would.
template <class Work> void divided(std::size_t n, std::size_t whole, Work work) {
    const std::size_t groups = (n + whole - 1) / whole;
    for (std::size_t part = 0; part < 3; part++)
        work(std::min(n, groups * part / 3 * whole), std::min(n, groups * (part + 1) / 3 * whole));
}

void products(std::size_t rows, std::size_t inner, std::size_t columns) {
    const std::vector<float> a = normals(rows * inner), b = normals(inner * columns);
    std::vector<float> turned(b.size()), y(rows * columns), z(rows * columns);
    for (std::size_t i = 0; i < inner; i++)
        for (std::size_t column = 0; column < columns; column++) turned[column * inner + i] = b[i * columns + column];
    divided(columns, columns == 1 ? columns : 16, [&](std::size_t first, std::size_t last) {
        if (first < last) kernels().product(a.data(), b.data(), y.data(), rows, inner, columns, first, last);
    });
    divided(columns, rows > 1 ? tile_rows : 4, [&](std::size_t first, std::size_t last) {
        kernels().row_products(turned.data(), inner, a.data(), rows, first, last, z.data(), columns);
    });
    for (std::size_t row = 0; row < rows; row++)
        for (std::size_t column = 0; column < columns; column++) {
            Sum sum;
            for (std::size_t i = 0; i < inner; i++) sum.add(double(a[row * inner + i]) * b[i * columns + column]);
            sum.expect(y[row * columns + column], "product", rows, inner, columns);
            sum.expect(z[row * columns + column], "row_products", rows, inner, columns);
        }
}

// Number i of a quantized vector: odd ones follow the even ones of 4 bits; WebAssembly's are in the order and units of web/rows_wasm.inl.
int number_of_vector(const std::vector<std::int8_t> &own, int bits, std::size_t i) {
#ifdef T2R_WASM
    const std::size_t many = bits == 4 ? 4 : 2, within = i % (8 * many);
    const std::int16_t *const numbers = reinterpret_cast<const std::int16_t *>(own.data()) + (i - within) + within % many * 8;
    const int units[] = {256, 16, 1, 256};
    return numbers[within / many] / (bits == 4 ? units[within % many] : 1);
#else
    return bits == 8 ? own[i] : own[i / 2 + i % 2 * (own.size() / 2)];
#endif
}

// With `is_extreme`, the largest numbers and vectors of one number: products of 8 bits that sums of 16 bits would not hold.
void quantized(int bits, std::size_t block, std::size_t columns, std::size_t rows, std::size_t vectors, bool is_extreme = false) {
    QuantizedMatrix w{nullptr, nullptr, false, nullptr, rows, columns, block, (columns + block - 1) / block, bits};
    const std::size_t of_row = w.blocks * block * bits / 8, zeros_of_row = (w.blocks * bits + 7) / 8;
    const std::vector<std::uint8_t> zeros = bytes(rows * zeros_of_row);
    const std::vector<std::uint8_t> numbers = is_extreme ? std::vector<std::uint8_t>(rows * of_row, 255) : bytes(rows * of_row);
    const std::vector<Half> halves = halves_of(rows * w.blocks);
    std::vector<float> scales(halves.size());
    std::transform(halves.begin(), halves.end(), scales.begin(), [](Half each) { return number_of(each); });
    const std::vector<float> x = is_extreme ? std::vector<float>(vectors * columns, -3) : normals(vectors * columns);
    w.numbers = numbers.data();
    const auto number = [&](const auto &of, std::size_t row, std::size_t i) {  // number i of the row at offset `row`
        return bits == 8 ? of[row + i] : of[row + i / 2] >> (i % 2 * 4) & 15;
    };
    std::vector<std::vector<std::int8_t>> own(vectors, std::vector<std::int8_t>(padded(w) * number_bytes));
    std::vector<std::vector<std::int32_t>> offsets(vectors, std::vector<std::int32_t>(padded(w) / 32 * (bits == 4 ? 4 : 8)));
    std::vector<std::vector<std::int32_t>> sums(vectors, std::vector<std::int32_t>(w.blocks));
    std::vector<std::vector<float>> own_scales(vectors, std::vector<float>(w.blocks));
    std::vector<QuantizedVector> given;
    for (std::size_t v = 0; v < vectors; v++) {
        given.push_back({own[v].data(), own[v].data() + padded(w) / 2, own_scales[v].data(), offsets[v].data(), sums[v].data()});
        kernels().quantize(x.data() + v * columns, w, given[v]);
    }
    std::vector<float> y(vectors * rows);
    for (int form = 0; form < 4; form++) {
        const std::uint8_t *const any = form % 2 ? zeros.data() : nullptr;
        w.zeros = any, w.has_halves = form / 2;
        w.scales = w.has_halves ? static_cast<const void *>(halves.data()) : scales.data();
        divided(rows, vectors > 1 ? tile_rows : 4, [&](std::size_t first, std::size_t last) {
            kernels().quantized_product(w, given.data(), vectors, first, last, y.data(), rows);
        });
        for (std::size_t v = 0; v < vectors; v++)
            for (std::size_t row = 0; row < rows; row += 3) {
                Sum sum;
                for (std::size_t i = 0; i < columns; i++) {
                    const int in = number_of_vector(own[v], bits, i);
                    const int zero = any ? number(zeros, row * zeros_of_row, i / block) : 1 << (bits - 1);
                    sum.add(double(number(numbers, row * of_row, i) - zero) * in * scales[row * w.blocks + i / block] * own_scales[v][i / block]);
                }
                sum.expect(y[v * rows + row], bits == 4 ? "4 bits, by block, columns, rows" : "8 bits, by block, columns, rows", block, columns, rows);
            }
    }
}

// Rows of int8 with scales, or of float32, for several queries.
void stored(std::size_t count, std::size_t size, std::size_t queries, bool has_scales) {
    const std::vector<float> wide = normals(count * size), scales = normals(count), q = normals(queries * size), weights = normals(queries * count);
    const std::vector<float> same = normals(count * size), other = normals(count * size);
    std::vector<std::int8_t> narrow(count * size);
    for (std::int8_t &each : narrow) each = static_cast<std::int8_t>(random_bits());
    const StoredRows rows{has_scales ? static_cast<const void *>(narrow.data()) : wide.data(), has_scales ? scales.data() : nullptr, count, size};
    const auto number = [&](std::size_t row, std::size_t i) {
        return has_scales ? double(narrow[row * size + i]) * scales[row] : double(wide[row * size + i]);
    };
    std::vector<float> y(queries * count), turned(queries * count), sums(queries * size, 1.0f);
    kernels().row_scores(rows, nullptr, nullptr, q.data(), queries, y.data(), count);
    if (size % 2 == 0) kernels().row_scores(rows, same.data(), other.data(), q.data(), queries, turned.data(), count);
    divided(size, 32, [&](std::size_t first, std::size_t last) { kernels().add_rows(rows, weights.data(), queries, count, sums.data(), first, last); });
    for (std::size_t query = 0; query < queries; query++) {
        for (std::size_t row = 0; row < count; row++) {
            Sum plain, rotated;
            for (std::size_t i = 0; i < size; i++) {
                const std::size_t across = (i + size / 2) % size, at = row * size + i;
                plain.add(number(row, i) * q[query * size + i]);
                rotated.add(number(row, i) * same[at] * q[query * size + i]), rotated.add(number(row, across) * other[at] * q[query * size + i]);
            }
            plain.expect(y[query * count + row], "row_scores by count, size, queries", count, size, queries);
            if (size % 2 == 0) rotated.expect(turned[query * count + row], "rotated row_scores by count, size, queries", count, size, queries);
        }
        for (std::size_t i = 0; i < size; i++) {
            Sum sum;
            sum.add(1);
            for (std::size_t row = 0; row < count; row++) sum.add(number(row, i) * weights[query * count + row]);
            sum.expect(sums[query * size + i], "add_rows by count, size, queries", count, size, queries);
        }
    }
}

// Kernels whose results other tests cover.
void loops(std::size_t n) {
    const std::vector<float> x = normals(2 * n), same = normals(2 * n), other = normals(2 * n), rows = normals(3), state = normals(3 * n);
    const std::vector<float> ends(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
    std::vector<float> y(n), turned(2 * n), after(3 * n);
    for (int op = 0; op <= static_cast<int>(Unary::tanh); op++) kernels().unary(static_cast<Unary>(op), ends.data(), y.data(), n);
    for (int op = 0; op <= static_cast<int>(Binary::sub); op++)
        for (const auto &[a, b] : {std::pair<std::size_t, std::size_t>{1, 1}, {0, 1}, {1, 0}})
            kernels().binary(static_cast<Binary>(op), ends.data(), a, ends.data(), b, y.data(), n);
    Sum sum, most, place;
    for (const float each : ends) sum.add(each);
    most.add(*std::max_element(ends.begin(), ends.end()));
    place.add(static_cast<double>(std::find_if(ends.begin(), ends.end(), [](float each) { return each > 1; }) - ends.begin()));
    sum.expect(kernels().sum(ends.data(), n), "sum", n, 0, 0);
    most.expect(kernels().max(ends.data(), n), "max", n, 0, 0);
    std::vector<float> groups(maxima_groups), largest(maxima_groups, -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < n; i++) largest[i % maxima_groups] = std::max(largest[i % maxima_groups], ends[i]);
    kernels().maxima(ends.data(), n, groups.data());
    if (groups != largest) wrong++, std::printf("maxima of %zu numbers\n", n);
    place.expect(static_cast<float>(kernels().above(ends.data(), n, 1)), "above", n, 0, 0);
    kernels().rotate(x.data(), same.data(), other.data(), turned.data(), n);
    for (const std::size_t step : {0, 1}) kernels().update(state.data(), rows.data(), step, rows.data(), 3, ends.data(), n, after.data());
}

}  // namespace

void halves() {
    for (const auto &[bits, value] : {std::pair<int, double>{0x0001, 0x1p-24}, {0x83ff, -0x3ffp-24}, {0x0400, 0x1p-14}, {0x3c01, 1 + 0x1p-10},
                                      {0xfbff, -65504.0}, {0x8000, 0.0}}) {
        Sum sum;
        sum.add(value * 0x1p24);
        sum.expect(number_of(Half{static_cast<std::uint16_t>(bits)}) * 0x1p24f, "float16", static_cast<std::size_t>(bits), 0, 0);
    }
    if (!std::isinf(number_of(Half{0x7c00})) || !std::isnan(number_of(Half{0x7e00}))) wrong++, std::printf("float16 without a finite value\n");
}

int main() {
    halves();
    for (std::size_t n = 1; n < 140; n++) loops(n);
    for (const std::size_t rows : {1, 2, 3, 5, 8, 9, 17, 33, 67})
        for (const std::size_t inner : {1, 2, 5, 17, 257})
            for (const std::size_t columns : {1, 3, 8, 15, 17, 33, 49, 260}) products(rows, inner, columns);
    for (const std::size_t count : {1, 2, 33})
        for (const std::size_t size : {1, 6, 31, 34, 64, 97, 130})
            for (const std::size_t queries : {1, 2, 3, 4, 9})
                for (const bool has_scales : {false, true}) stored(count, size, queries, has_scales);
    for (const int bits : {4, 8})
        for (const std::size_t block : {16, 32, 64, 128, 512, 1024, 4096})
            for (const std::size_t columns : {1, 33, 65, 127, 300, 1025, 1300})
                for (const std::size_t rows : {1, 3, 17, 67})
                    for (const std::size_t vectors : {1, 2, 3, 7}) quantized(bits, block, columns, rows, vectors);
    for (const int bits : {4, 8})
        for (const std::size_t block : {16, 32, 64})
            for (const std::size_t vectors : {1, 3}) quantized(bits, block, 193, 7, vectors, true);
    return wrong != 0;
}
