// Products with 4- and 8-bit weights, and their dequantization to float32.
#include <memory>
#include <new>

#include "builders.hpp"
#include "fuse.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

// Memory layout of a vector of x in 8 bits: even, odd, offsets, scales and sums, contiguous.
struct Layout {
    std::size_t numbers, offsets, scales, whole;  // bytes

    explicit Layout(const QuantizedMatrix &w) {
        numbers = number_bytes * (w.bits == 4 ? padded(w) / 2 : padded(w));
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

// MatMulNBits with accuracy_level 4: x is quantized to 8 bits in the blocks of the weights; sums are of integers.
struct QuantizedProduct : Operation {
    QuantizedMatrix w;
    std::size_t vectors;
    bool has_zeros, has_more;
    std::size_t more_step;  // step of the addend from vector to vector: 0 (broadcast) or w.rows

    QuantizedMatrix matrix_of(const Run &run) const {
        QuantizedMatrix matrix = w;
        matrix.numbers = run.at<std::uint8_t>(reads[1]);
        matrix.scales = run.at<char>(reads[2]);
        matrix.zeros = has_zeros ? run.at<std::uint8_t>(reads[3]) : nullptr;
        return matrix;
    }
    void read_ahead(const Run &run, int part, int parts) const override {
        constexpr std::size_t most = std::size_t{1} << 16;  // bytes: read in some microseconds, as other operations take
        const QuantizedMatrix matrix = matrix_of(run);
        const std::size_t first = begin_of(w.rows, part, parts, division.whole), rows = begin_of(w.rows, part + 1, parts, division.whole) - first;
        const std::size_t of_row = w.blocks * w.block * w.bits / 8, bytes = std::min(rows * of_row, most);
        for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(matrix.numbers + first * of_row + at);
        const std::size_t scales_of_row = w.blocks * w.scale_bytes(), scales = bytes / of_row * scales_of_row;
        for (std::size_t at = 0; at < scales; at += 64) __builtin_prefetch(static_cast<const char *>(matrix.scales) + first * scales_of_row + at);
    }
    void add_more(Run &run, std::size_t first, std::size_t last) const {
        if (!has_more) return;
        float *y = run.at<float>(writes[0]);
        const float *more = run.at<float>(reads.back()) + first;
        for (std::size_t v = 0; v < vectors; v++, more += more_step)
            kernels().binary(Binary::add, y + v * w.rows + first, 1, more, 1, y + v * w.rows + first, last - first);
    }
    void run(Run &run, int part, int parts) const override {
        const QuantizedMatrix matrix = matrix_of(run);
        const Layout layout(w);
        constexpr std::size_t most = 64;  // vectors at a time, so that x fits on the stack
        float *y = run.at<float>(writes[0]);
        const std::size_t first = begin_of(w.rows, part, parts, division.whole), last = begin_of(w.rows, part + 1, parts, division.whole);
        for (std::size_t from = 0; from < vectors; from += most) {
            QuantizedVector x[most];
            const std::size_t count = vectors - from < most ? vectors - from : most;
            for (std::size_t v = 0; v < count; v++) x[v] = layout.at(run.at<char>(reads[0]) + (from + v) * layout.whole, w.bits);
            kernels().quantized_product(matrix, x, count, first, last, y + from * w.rows, w.rows);
        }
        add_more(run, first, last);
    }
};

// Accuracy levels 0 and 1: x stays float32, and rows of the weights are dequantized, a few at a time.
struct ExactProduct : QuantizedProduct {
    void run(Run &run, int part, int parts) const override {
        const QuantizedMatrix matrix = matrix_of(run);
        const std::size_t whole = division.whole;
        const std::size_t first = begin_of(w.rows, part, parts, whole), last = begin_of(w.rows, part + 1, parts, whole);
        if (first == last) return;
        // The next row overwrites the padding of a row's last block. Rows may be of 64 MiB each, and run does not throw.
        const std::unique_ptr<float[]> rows(new (std::nothrow) float[std::min(whole, last - first) * w.columns + w.block]);
        if (!rows) {
            run.error = "a matrix with rows of more memory than there is";
            return;
        }
        for (std::size_t from = first; from < last; from += whole) {
            const std::size_t count = std::min(whole, last - from);
            for (std::size_t row = 0; row < count; row++)
                for (std::size_t block = 0; block < w.blocks; block++)
                    unpack(matrix, from + row, block, rows.get() + row * w.columns + block * w.block);
            kernels().row_products(rows.get(), w.columns, run.at<float>(reads[0]), vectors, 0, count, run.at<float>(writes[0]) + from, w.rows);
        }
        add_more(run, first, last);
    }
    static void unpack(const QuantizedMatrix &m, std::size_t row, std::size_t block, float *to) {
        const std::size_t at = row * m.blocks + block, of_row = (m.blocks * m.bits + 7) / 8;
        const std::uint8_t *numbers = m.numbers + at * (m.block * m.bits / 8);
        const float scale = m.has_halves ? number_of(m.scales_of<Half>(row)[block]) : m.scales_of<float>(row)[block];
        if (m.bits == 8) {
            const int zero = m.zeros ? m.zeros[row * of_row + block] : 128;
            for (std::size_t i = 0; i < m.block; i++) to[i] = static_cast<float>(numbers[i] - zero) * scale;
        } else {
            const int zero = m.zeros ? m.zeros[row * of_row + block / 2] >> (block % 2 * 4) & 15 : 8;
            for (std::size_t i = 0; i < m.block / 2; i++) {
                to[2 * i] = static_cast<float>((numbers[i] & 15) - zero) * scale;
                to[2 * i + 1] = static_cast<float>((numbers[i] >> 4) - zero) * scale;
            }
        }
    }
};

void build_quantized_product(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), numbers = plan.input(node, 1), scales = plan.input(node, 2);
    const std::int64_t level = node.integer("accuracy_level", 0);
    if (plan.has(node, 4)) refuse(node, "no g_idx", "one");
    QuantizedMatrix w{};
    w.bits = static_cast<int>(node.integer("bits", 4));
    w.rows = static_cast<std::size_t>(std::max<std::int64_t>(0, node.integer("N", 0)));
    w.columns = static_cast<std::size_t>(std::max<std::int64_t>(0, node.integer("K", 0)));
    w.block = static_cast<std::size_t>(std::max<std::int64_t>(0, node.integer("block_size", 0)));
    if ((w.bits != 4 && w.bits != 8) || w.block < 16 || w.block > 4096 || (w.block & (w.block - 1)))
        refuse(node, "4 or 8 bits in blocks of 16 or more", "others");
    if (w.rows == 0 || w.columns == 0 || w.columns > (1u << 24) || w.rows > (1u << 28)) refuse(node, "a matrix", "other sizes");
    w.blocks = (w.columns + w.block - 1) / w.block;
    const std::size_t of_row = w.blocks * w.block * w.bits / 8;
    count_of({static_cast<std::int64_t>(w.rows), static_cast<std::int64_t>(of_row)});  // refuses a size that 32 bits do not hold
    w.has_halves = plan.value(scales).type == Type::float16;
    require_float32(plan, node, {x});
    if (!w.has_halves) require_float32(plan, node, {scales});
    Dims dims = plan.value(x).dims;
    if (plan.value(numbers).type != Type::uint8 || count_of(plan.value(numbers).dims) != w.rows * of_row ||
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
        const bool is_sum = node.op == product_sum;  // only then one for each number of the result
        if (count != w.rows && !(is_sum && count == count_of(dims) / w.columns * w.rows)) refuse(node, "a number of the bias for each row", "others");
        operation.more_step = count == w.rows ? 0 : w.rows;
        operation.addend = reads.back();
    }
    operation.w = w, operation.vectors = count_of(dims) / w.columns;
    operation.division = {operation.vectors, w.rows, operation.vectors > 1 ? std::size_t{tile_rows} : 4};
    operation.is_shared = w.rows * w.columns * operation.vectors >= 2 * worth_sharing;
    Quantized quantized;
    quantized.w = w, quantized.vectors = operation.vectors;
    quantized.is_shared = quantized.vectors > 1 && count_of(dims) >= worth_sharing;
    reads[0] = level == 4 ? plan.add_scratch({operation.vectors, Layout(w).whole}) : x;
    if (level == 4) plan.add(std::move(quantized), {x}, {reads[0]});
    dims.back() = static_cast<std::int64_t>(w.rows);
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    if (level == 4) return plan.add(std::move(operation), reads, {y});
    ExactProduct exact;
    static_cast<QuantizedProduct &>(exact) = std::move(operation);
    plan.add(std::move(exact), reads, {y});
}

// Adds a value of the product's shape, or one row to each of its rows; with other shapes, plans both nodes.
void build_product_sum(Plan &plan, const Node &node) {
    const Value &more = plan.value(plan.input(node, 5));
    const Dims &x = plan.value(plan.input(node, 0)).dims;
    Dims dims = x;
    if (!dims.empty()) dims.back() = node.integer("N", 0);
    const bool is_row = !dims.empty() && more.dims == Dims{dims.back()};
    if (more.type == Type::float32 && (is_row || more.dims == dims)) return build_quantized_product(plan, node);
    build_parts(plan, node);
}

// (x - zero) · scale, with one scale for all or one per entry of the axis.
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
    if (plan.value(scales).dims.size() > 1) refuse(node, "a scale for all or for an axis", "others");
    if (count != 1 && (axis < 0 || axis >= rank || of.dims[static_cast<std::size_t>(axis)] != static_cast<std::int64_t>(count)))
        refuse(node, "a scale for each entry of its axis", "others");
    std::vector<ValueId> reads{x, scales};
    if (plan.has(node, 2)) {
        reads.push_back(plan.input(node, 2));
        if (plan.value(reads[2]).type != of.type || plan.value(reads[2]).dims != plan.value(scales).dims) refuse(node, "as many zero points", "others");
    }
    const ValueId y = plan.add_output(node, 0, Type::float32, of.dims);
    const auto at = static_cast<std::size_t>(axis < 0 ? 0 : axis);
    if (of.type == Type::uint8) return add_dequantized<std::uint8_t>(plan, reads, y, at);
    if (of.type == Type::int8) return add_dequantized<std::int8_t>(plan, reads, y, at);
    refuse(node, "int8 or uint8", "another type");
}

}  // namespace

const Builders &quantized_builders() {
    using Kind = Attribute::Kind;
    static const Builders builders{
        {"DequantizeLinear", {build_dequantize, 13, 25, 2, 3,
                              {{"axis"}, {"block_size", Kind::integer, {0}}, {"output_dtype", Kind::integer, {0, 1}}}}},
        {"MatMulNBits", {build_quantized_product, 1, 1, 3, 6,
                         {{"K"}, {"N"}, {"accuracy_level", Kind::integer, {0, 1, 4}}, {"bits", Kind::integer, {4, 8}}, {"block_size"},
                          {"weight_prepacked", Kind::integer, {0}}},
                         1, "com.microsoft"}},
        {product_sum, {build_product_sum}},
    };
    return builders;
}

}  // namespace t2r::provider
