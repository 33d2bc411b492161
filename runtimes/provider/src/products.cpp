// Products of float32 matrices.
#include "builders.hpp"
#include "copies.hpp"
#include "fuse.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

// MatMul: a batch of products a · b. If b is transposed, it has a row for each column of y.
struct Product : Operation {
    std::vector<std::array<std::size_t, 2>> places;  // offsets in a and b, for each matrix of y
    std::size_t rows, inner, columns;
    bool is_transposed;

    void run(Run &run, int part, int parts) const override {
        const float *a = run.at<float>(reads[0]), *b = run.at<float>(reads[1]);
        float *y = run.at<float>(writes[0]);
        const bool by_columns = places.size() < static_cast<std::size_t>(parts) && columns > 1;
        const std::size_t first = by_columns ? begin_of(columns, part, parts, 16) : 0;
        const std::size_t last = by_columns ? begin_of(columns, part + 1, parts, 16) : columns;
        const std::size_t from = by_columns ? 0 : begin_of(places.size(), part, parts);
        const std::size_t to = by_columns ? places.size() : begin_of(places.size(), part + 1, parts);
        for (std::size_t i = from; i < to; i++) {
            const float *left = a + places[i][0], *right = b + places[i][1];
            if (is_transposed)
                kernels().row_products(right, inner, left, rows, first, last, y + i * rows * columns, columns);
            else
                kernels().product(left, right, y + i * rows * columns, rows, inner, columns, first, last);
        }
    }
};

ValueId add_product(Plan &plan, const Node &node, ValueId a, ValueId b, bool is_transposed = false) {
    require_float32(plan, node, {a, b});
    Dims left = plan.value(a).dims, right = plan.value(b).dims;
    if (is_transposed && right.size() > 1) std::swap(right.back(), right[right.size() - 2]);
    if (left.size() < 2 || right.size() < 2 || left.back() != right[right.size() - 2])
        refuse(node, "matrices that fit each other", "other shapes");
    Product operation;
    operation.is_transposed = is_transposed;
    operation.rows = static_cast<std::size_t>(left[left.size() - 2]);
    operation.inner = static_cast<std::size_t>(left.back());
    operation.columns = static_cast<std::size_t>(right.back());
    const Dims outer_a(left.begin(), left.end() - 2), outer_b(right.begin(), right.end() - 2);
    Dims dims = broadcast(node, outer_a, outer_b);
    if (count_of(dims) > most_places) refuse(node, "at most 2^24 matrices", "more");
    const Loops<2> loops(dims, {outer_a, outer_b});
    const std::size_t of_a = operation.rows * operation.inner, of_b = operation.inner * operation.columns;
    loops.rows(0, 1, [&](const std::array<std::size_t, 2> &at, std::size_t) {
        for (std::size_t i = 0; i < loops.inner(); i++)
            operation.places.push_back({(at[0] + i * loops.strides.back()[0]) * of_a, (at[1] + i * loops.strides.back()[1]) * of_b});
    });
    operation.is_shared = operation.places.size() * operation.rows * operation.inner * operation.columns >= 2 * worth_sharing;
    dims.push_back(left[left.size() - 2]), dims.push_back(right.back());
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    if (operation.inner == 0)
        add_filled(plan, y, 0);
    else
        plan.add(std::move(operation), {a, b}, {y});
    return y;
}

void build_product(Plan &plan, const Node &node) { add_product(plan, node, plan.input(node, 0), plan.input(node, 1)); }

// a · bᵀ, such as scores of queries and keys. Many queries are worth a transposition, which is fast on every processor.
void build_transposed_product(Plan &plan, const Node &node) {
    constexpr std::int64_t few = 8;
    const ValueId a = plan.input(node, 0), b = plan.input(node, 1);
    const Dims left = plan.value(a).dims;
    const bool fits = plan.value(b).dims.size() == node.attributes.at("perm").integers.size();
    if (left.size() < 2 || left[left.size() - 2] >= few || !fits) return build_parts(plan, node);
    add_product(plan, node, a, b, true);
}

// a · bᵀ + c: rows of b are read in memory order and divided among threads.
struct TransposedProduct : Operation {
    std::size_t rows, inner, columns, c_row, c_column;  // c_row, c_column: strides of c, 0 where c is broadcast
    bool has_c;

    void run(Run &run, int part, int parts) const override {
        const float *a = run.at<float>(reads[0]), *b = run.at<float>(reads[1]), *c = has_c ? run.at<float>(reads[2]) : nullptr;
        float *y = run.at<float>(writes[0]);
        const std::size_t first = begin_of(columns, part, parts, division.whole), last = begin_of(columns, part + 1, parts, division.whole);
        kernels().row_products(b, inner, a, rows, first, last, y, columns);
        for (std::size_t row = 0; row < rows && has_c; row++) {
            float *to = y + row * columns + first;
            kernels().binary(Binary::add, to, 1, c + row * c_row + first * c_column, c_column, to, last - first);
        }
    }
};

// Adds c to a · b.
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
    if (node.real("alpha", 1) != 1 || (plan.has(node, 2) && node.real("beta", 1) != 1)) refuse(node, "factors of 1", "others");
    require_float32(plan, node, {a, b});
    const Dims left = plan.value(a).dims, right = plan.value(b).dims;
    const bool is_transposed = node.integer("transB", 0) != 0;
    if (left.size() != 2 || right.size() != 2 || left[1] != right[is_transposed ? 1 : 0])
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
    if (is_transposed && left[1] != 0) {
        TransposedProduct operation;
        operation.rows = static_cast<std::size_t>(dims[0]), operation.columns = static_cast<std::size_t>(dims[1]);
        operation.inner = static_cast<std::size_t>(left[1]);
        operation.has_c = c >= 0, operation.c_row = c_row, operation.c_column = c_column, operation.addend = c;
        operation.division = {operation.rows, operation.columns, operation.rows > 1 ? std::size_t{tile_rows} : 4};
        operation.is_shared = operation.rows * operation.inner * operation.columns >= 2 * worth_sharing;
        const ValueId y = plan.add_output(node, 0, Type::float32, dims);
        std::vector<ValueId> reads{a, b};
        if (c >= 0) reads.push_back(c);
        return plan.add(std::move(operation), reads, {y});
    }
    const ValueId y = add_product(plan, node, a, b, is_transposed);
    if (c < 0) return;
    WithSum operation;
    operation.rows = static_cast<std::size_t>(dims[0]), operation.columns = static_cast<std::size_t>(dims[1]);
    operation.c_row = c_row, operation.c_column = c_column;
    plan.add(std::move(operation), {y, c}, {y});
}

}  // namespace

const Builders &product_builders() {
    using Kind = Attribute::Kind;
    static const Builders builders{
        {"Gemm", {build_gemm, 13, 13, 2, 3, {{"alpha", Kind::real}, {"beta", Kind::real}, {"transA", Kind::integer, {0}}, {"transB"}}}},
        {"MatMul", {build_product, 13, 13, 2, 2}},
        {transposed_product, {build_transposed_product}},
    };
    return builders;
}

}  // namespace t2r::provider
