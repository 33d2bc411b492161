// Products with matrices: of float32, and of weights in 4 and 8 bits.
#include <cstring>

#include "builders.hpp"
#include "fuse.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

// MatMul's: matrices at places of a, b and y.
struct Product : Operation {
    std::vector<std::array<std::size_t, 2>> places;  // of a and b, by matrix of y
    std::size_t rows, inner, columns;

    void run(Run &run, int part, int parts) const override {
        const float *a = run.at<float>(reads[0]), *b = run.at<float>(reads[1]);
        float *y = run.at<float>(writes[0]);
        const bool by_columns = places.size() < static_cast<std::size_t>(parts) && columns > 1;
        const std::size_t first = by_columns ? begin_of(columns, part, parts, 16) : 0;
        const std::size_t last = by_columns ? begin_of(columns, part + 1, parts, 16) : columns;
        const std::size_t from = by_columns ? 0 : begin_of(places.size(), part, parts);
        const std::size_t to = by_columns ? places.size() : begin_of(places.size(), part + 1, parts);
        for (std::size_t i = from; i < to; i++)
            kernels().product(a + places[i][0], b + places[i][1], y + i * rows * columns, rows, inner, columns, first, last);
    }
};

void require_float32(Plan &plan, const Node &node, std::initializer_list<ValueId> ids) {
    for (const ValueId id : ids)
        if (plan.value(id).type != Type::float32) refuse(node, "float32", "another type");
}

ValueId add_product(Plan &plan, const Node &node, ValueId a, ValueId b) {
    require_float32(plan, node, {a, b});
    const Dims left = plan.value(a).dims, right = plan.value(b).dims;
    if (left.size() < 2 || right.size() < 2 || left.back() != right[right.size() - 2])
        refuse(node, "matrices that fit each other", "other shapes");
    Product operation;
    operation.rows = static_cast<std::size_t>(left[left.size() - 2]);
    operation.inner = static_cast<std::size_t>(left.back());
    operation.columns = static_cast<std::size_t>(right.back());
    if (operation.inner == 0) refuse(node, "an inner dimension of at least 1", "0");
    const Dims outer_a(left.begin(), left.end() - 2), outer_b(right.begin(), right.end() - 2);
    Dims dims = broadcast(node, outer_a, outer_b);
    const Loops<2> loops(dims, {outer_a, outer_b});
    const std::size_t of_a = operation.rows * operation.inner, of_b = operation.inner * operation.columns;
    loops.rows(0, 1, [&](const std::array<std::size_t, 2> &at, std::size_t) {
        for (std::size_t i = 0; i < loops.inner(); i++)
            operation.places.push_back({(at[0] + i * loops.strides.back()[0]) * of_a, (at[1] + i * loops.strides.back()[1]) * of_b});
    });
    operation.is_shared = operation.places.size() * operation.rows * operation.inner * operation.columns >= 2 * worth_sharing;
    dims.push_back(left[left.size() - 2]), dims.push_back(right.back());
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    plan.add(std::move(operation), {a, b}, {y});
    return y;
}

void build_product(Plan &plan, const Node &node) { add_product(plan, node, plan.input(node, 0), plan.input(node, 1)); }

// a · bᵀ + c: rows of b are read as they lie, divided among threads.
struct TransposedProduct : Operation {
    std::size_t rows, inner, columns, c_row, c_column;  // the latter two: strides, 0 where c is as wide as one number
    bool has_c;

    void run(Run &run, int part, int parts) const override {
        const float *a = run.at<float>(reads[0]), *b = run.at<float>(reads[1]), *c = has_c ? run.at<float>(reads[2]) : nullptr;
        float *y = run.at<float>(writes[0]);
        for (std::size_t column = begin_of(columns, part, parts, 4); column < begin_of(columns, part + 1, parts, 4); column++) {
            for (std::size_t row = 0; row < rows; row++) {
                float &to = y[row * columns + column];
                kernels().product(a + row * inner, b + column * inner, &to, 1, inner, 1, 0, 1);
                if (has_c) to += c[row * c_row + column * c_column];
            }
        }
    }
};

// a · b, then + c
struct WithSum : Operation {
    std::size_t rows, columns, c_row, c_column;

    void run(Run &run, int, int) const override {
        const float *c = run.at<float>(reads[1]);
        const float *x = run.at<float>(reads[0]);
        for (std::size_t row = 0; row < rows; row++)
            kernels().binary(Binary::add, x + row * columns, 1, c + row * c_row, c_column, run.at<float>(writes[0]) + row * columns, columns);
    }
};

void build_gemm(Plan &plan, const Node &node) {
    const ValueId a = plan.input(node, 0), b = plan.input(node, 1);
    if (node.integer("transA", 0) || node.real("alpha", 1) != 1 || (plan.has(node, 2) && node.real("beta", 1) != 1))
        refuse(node, "A as it is and factors of 1", "others");
    require_float32(plan, node, {a, b});
    const Dims left = plan.value(a).dims, right = plan.value(b).dims;
    const bool is_transposed = node.integer("transB", 0) != 0;
    if (left.size() != 2 || right.size() != 2 || left[1] != right[is_transposed ? 1 : 0] || left[1] == 0)
        refuse(node, "matrices that fit each other", "other shapes");
    const Dims dims{left[0], right[is_transposed ? 0 : 1]};
    std::size_t c_row = 0, c_column = 0;
    ValueId c = -1;
    if (plan.has(node, 2)) {
        c = plan.input(node, 2);
        require_float32(plan, node, {c});
        const Dims of = plan.value(c).dims;
        if (broadcast(node, dims, of) != dims) refuse(node, "a C of the result's shape", "another");
        c_column = !of.empty() && of.back() != 1 ? 1 : 0;
        c_row = of.size() == 2 && of[0] != 1 ? static_cast<std::size_t>(of[1]) : 0;
    }
    if (is_transposed) {
        TransposedProduct operation;
        operation.rows = static_cast<std::size_t>(dims[0]), operation.columns = static_cast<std::size_t>(dims[1]);
        operation.inner = static_cast<std::size_t>(left[1]);
        operation.has_c = c >= 0, operation.c_row = c_row, operation.c_column = c_column;
        operation.is_shared = operation.rows * operation.inner * operation.columns >= 2 * worth_sharing;
        const ValueId y = plan.add_output(node, 0, Type::float32, dims);
        std::vector<ValueId> reads{a, b};
        if (c >= 0) reads.push_back(c);
        return plan.add(std::move(operation), reads, {y});
    }
    const ValueId y = add_product(plan, node, a, b);
    if (c < 0) return;
    WithSum operation;
    operation.rows = static_cast<std::size_t>(dims[0]), operation.columns = static_cast<std::size_t>(dims[1]);
    operation.c_row = c_row, operation.c_column = c_column;
    plan.add(std::move(operation), {y, c}, {y});
}

// The vectors of x in 8 bits, in one piece of memory: even, odd, offsets, scales and sums of each.
struct Layout {
    std::size_t numbers, offsets, scales, whole;  // bytes

    explicit Layout(const QuantizedMatrix &w) {
        numbers = w.bits == 4 ? padded(w) / 2 : padded(w);
        offsets = padded(w) / 32 * (w.bits == 4 ? 4 : 8) * sizeof(std::int32_t);
        scales = (w.blocks * sizeof(float) + 63) / 64 * 64;
        whole = (w.bits == 4 ? 2 : 1) * numbers + offsets + 2 * scales;
    }
    QuantizedVector at(char *begin, int bits) const {
        QuantizedVector v;
        v.even = reinterpret_cast<std::int8_t *>(begin);
        begin += numbers;
        v.odd = reinterpret_cast<std::int8_t *>(begin);
        if (bits == 4) begin += numbers;
        v.offsets = reinterpret_cast<std::int32_t *>(begin);
        v.scales = reinterpret_cast<float *>(begin + offsets);
        v.sums = reinterpret_cast<std::int32_t *>(begin + offsets + scales);
        return v;
    }
};

struct Quantized : Operation {
    QuantizedMatrix w;
    std::size_t vectors;

    void run(Run &run, int part, int parts) const override {
        const Layout layout(w);
        const float *x = run.at<float>(reads[0]);
        for (std::size_t v = begin_of(vectors, part, parts); v < begin_of(vectors, part + 1, parts); v++)
            kernels().quantize(x + v * w.columns, w, layout.at(run.at<char>(writes[0]) + v * layout.whole, w.bits));
    }
};

// accuracy_level 4 of MatMulNBits: x in 8 bits by the blocks of the weights, sums of integers.
struct QuantizedProduct : Operation {
    QuantizedMatrix w;
    std::size_t vectors;
    bool has_zeros, has_more;
    std::size_t more_step;  // what is added to a product: 0, the same to each vector's, or the rows

    void run(Run &run, int part, int parts) const override {
        QuantizedMatrix matrix = w;
        matrix.numbers = run.at<std::uint8_t>(reads[1]);
        matrix.scales = run.at<float>(reads[2]);
        matrix.zeros = has_zeros ? run.at<std::uint8_t>(reads[3]) : nullptr;
        const Layout layout(w);
        constexpr std::size_t most = 64;  // vectors at a time, so that their places fit on the stack
        float *y = run.at<float>(writes[0]);
        const std::size_t first = begin_of(w.rows, part, parts, 4), last = begin_of(w.rows, part + 1, parts, 4);
        for (std::size_t from = 0; from < vectors; from += most) {
            QuantizedVector x[most];
            const std::size_t count = vectors - from < most ? vectors - from : most;
            for (std::size_t v = 0; v < count; v++) x[v] = layout.at(run.at<char>(reads[0]) + (from + v) * layout.whole, w.bits);
            kernels().quantized_product(matrix, x, count, first, last, y + from * w.rows, w.rows);
        }
        if (!has_more) return;
        const float *more = run.at<float>(reads.back()) + first;
        for (std::size_t v = 0; v < vectors; v++, more += more_step)
            kernels().binary(Binary::add, y + v * w.rows + first, 1, more, 1, y + v * w.rows + first, last - first);
    }
};

void build_quantized_product(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), numbers = plan.input(node, 1), scales = plan.input(node, 2);
    if (node.integer("accuracy_level", 0) != 4) refuse(node, "accuracy_level 4", std::to_string(node.integer("accuracy_level", 0)));
    if (plan.has(node, 4)) refuse(node, "no g_idx", "one");
    QuantizedMatrix w{};
    w.bits = static_cast<int>(node.integer("bits", 4));
    w.rows = static_cast<std::size_t>(std::max<std::int64_t>(0, node.integer("N", 0)));
    w.columns = static_cast<std::size_t>(std::max<std::int64_t>(0, node.integer("K", 0)));
    w.block = static_cast<std::size_t>(std::max<std::int64_t>(0, node.integer("block_size", 0)));
    if ((w.bits != 4 && w.bits != 8) || w.block < 32 || w.block > 4096 || (w.block & (w.block - 1)))
        refuse(node, "4 or 8 bits in blocks of 32 or more", "others");
    if (w.rows == 0 || w.columns == 0 || w.columns > (1u << 24) || w.rows > (1u << 28)) refuse(node, "a matrix", "other sizes");
    w.blocks = (w.columns + w.block - 1) / w.block;
    require_float32(plan, node, {x, scales});
    Dims dims = plan.value(x).dims;
    if (plan.value(numbers).type != Type::uint8 || count_of(plan.value(numbers).dims) != w.rows * w.blocks * w.block * w.bits / 8 ||
        count_of(plan.value(scales).dims) != w.rows * w.blocks || dims.empty() || dims.back() != static_cast<std::int64_t>(w.columns))
        refuse(node, "weights, scales and vectors of its sizes", "others");
    std::vector<ValueId> reads{-1, numbers, scales};
    QuantizedProduct operation;
    operation.has_zeros = plan.has(node, 3), operation.has_more = plan.has(node, 5), operation.more_step = 0;
    if (operation.has_zeros) {
        reads.push_back(plan.input(node, 3));
        const Value &zeros = plan.value(reads.back());
        if (zeros.type != Type::uint8 || count_of(zeros.dims) != w.rows * ((w.blocks * w.bits + 7) / 8))
            refuse(node, "zero points in as many bits", "others");
    }
    if (operation.has_more) {
        reads.push_back(plan.input(node, 5));
        require_float32(plan, node, {reads.back()});
        const std::size_t count = count_of(plan.value(reads.back()).dims);
        if (count != w.rows && count != count_of(dims) / w.columns * w.rows) refuse(node, "a number of the bias for each row", "others");
        operation.more_step = count == w.rows ? 0 : w.rows;
    }
    Quantized quantized;
    quantized.w = operation.w = w;
    quantized.vectors = operation.vectors = count_of(dims) / w.columns;
    quantized.is_shared = quantized.vectors > 1 && count_of(dims) >= worth_sharing;
    operation.is_shared = w.rows * w.columns * operation.vectors >= 2 * worth_sharing;
    reads[0] = plan.add_scratch(operation.vectors * Layout(w).whole);
    plan.add(std::move(quantized), {x}, {reads[0]});
    dims.back() = static_cast<std::int64_t>(w.rows);
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    plan.add(std::move(operation), reads, {y});
}

// A product and a value of its shape, or a row for each of its rows; else both nodes.
void build_product_sum(Plan &plan, const Node &node) {
    const Value &more = plan.value(plan.input(node, 5));
    const Dims &x = plan.value(plan.input(node, 0)).dims;
    Dims dims = x;
    if (!dims.empty()) dims.back() = node.integer("N", 0);
    const bool is_row = !dims.empty() && more.dims == Dims{dims.back()};
    if (more.type == Type::float32 && (is_row || more.dims == dims)) return build_quantized_product(plan, node);
    for (const Node &part : node.parts) plan.add_node(part);
}

// (x - zero) · scale, all of one scale or by the axis's entries.
template <class T> struct Dequantized : Operation {
    std::size_t outer, size, inner;  // size: entries of the axis, each with a scale
    bool has_zeros;

    void run(Run &run, int, int) const override {
        const T *x = run.at<T>(reads[0]), *zeros = has_zeros ? run.at<T>(reads[2]) : nullptr;
        const float *scales = run.at<float>(reads[1]);
        float *y = run.at<float>(writes[0]);
        for (std::size_t o = 0; o < outer; o++) {
            for (std::size_t s = 0; s < size; s++, x += inner, y += inner) {
                const std::int32_t zero = zeros ? zeros[s] : 0;
                for (std::size_t i = 0; i < inner; i++) y[i] = static_cast<float>(static_cast<std::int32_t>(x[i]) - zero) * scales[s];
            }
        }
    }
};

template <class T> void add_dequantized(Plan &plan, const std::vector<ValueId> &reads, ValueId y, std::size_t axis) {
    const Dims dims = plan.value(reads[0]).dims;
    Dequantized<T> operation;
    operation.size = count_of(plan.value(reads[1]).dims);
    operation.has_zeros = reads.size() > 2;
    operation.inner = operation.size == 1 ? count_of(dims) : count_of(Dims(dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1, dims.end()));
    operation.outer = operation.size != 0 && operation.inner != 0 ? count_of(dims) / (operation.size * operation.inner) : 0;
    plan.add(std::move(operation), reads, {y});
}

void build_dequantize(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), scales = plan.input(node, 1);
    const Value of = plan.value(x);
    const std::int64_t rank = static_cast<std::int64_t>(of.dims.size()), given = node.integer("axis", 1);
    const std::int64_t axis = given < 0 ? given + rank : given;
    const std::size_t count = count_of(plan.value(scales).dims);
    require_float32(plan, node, {scales});
    if (node.integer("block_size", 0)) refuse(node, "a scale for all or for an axis", "one by blocks");
    if (count != 1 && (axis < 0 || axis >= rank || of.dims[static_cast<std::size_t>(axis)] != static_cast<std::int64_t>(count)))
        refuse(node, "a scale for each entry of its axis", "others");
    std::vector<ValueId> reads{x, scales};
    if (plan.has(node, 2)) {
        reads.push_back(plan.input(node, 2));
        if (plan.value(reads[2]).type != of.type || count_of(plan.value(reads[2]).dims) != count) refuse(node, "as many zero points", "others");
    }
    const ValueId y = plan.add_output(node, 0, Type::float32, of.dims);
    const auto at = static_cast<std::size_t>(axis < 0 ? 0 : axis);
    if (of.type == Type::uint8) return add_dequantized<std::uint8_t>(plan, reads, y, at);
    if (of.type == Type::int8) return add_dequantized<std::int8_t>(plan, reads, y, at);
    refuse(node, "int8 or uint8", "another type");
}

}  // namespace

const Builders &product_builders() {
    static const Builders builders{
        {"DequantizeLinear", build_dequantize}, {"Gemm", build_gemm}, {"MatMul", build_product}, {"MatMulNBits", build_quantized_product},
        {product_sum, build_product_sum},
    };
    return builders;
}

}  // namespace t2r::provider
