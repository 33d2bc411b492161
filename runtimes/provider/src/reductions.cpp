// Operators along an axis: maxima, means, sums, LayerNormalization, Softmax, TopK.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "builders.hpp"
#include "copies.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

enum class Reduction { max, mean, sum };

// Reduces (outer, size, inner) to (outer, inner).
struct Reduced : Operation {
    Reduction of;
    std::size_t outer, size, inner;

    void run(Run &run, int part, int parts) const override {
        const Kernels &k = kernels();
        const std::size_t first = begin_of(outer, part, parts), last = begin_of(outer, part + 1, parts);
        const float *x = run.at<float>(reads[0]) + first * size * inner;
        float *y = run.at<float>(writes[0]) + first * inner;
        const float share = 1.0f / static_cast<float>(size);
        for (std::size_t o = first; o < last; o++, x += size * inner, y += inner) {
            if (inner == 1) {
                *y = of == Reduction::max ? k.max(x, size) : k.sum(x, size);
            } else {
                std::copy(x, x + inner, y);
                for (std::size_t i = 1; i < size; i++)
                    k.binary(of == Reduction::max ? Binary::max : Binary::add, y, 1, x + i * inner, 1, y, inner);
            }
            if (of == Reduction::mean) k.binary(Binary::mul, y, 1, &share, 0, y, inner);
        }
    }
};

ValueId float32_input(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    if (plan.value(x).type != Type::float32) refuse(node, "float32", "another type");
    return x;
}

template <Reduction of> void build_reduction(Plan &plan, const Node &node) {
    const ValueId x = float32_input(plan, node);
    const Dims from = plan.value(x).dims;
    const auto rank = static_cast<std::int64_t>(from.size());
    Dims axes;
    if (plan.has(node, 1))
        axes = plan.integers(plan.input(node, 1));
    else if (const auto given = node.attributes.find("axes"); given != node.attributes.end())
        axes = given->second.integers;
    if (axes.empty() && (rank == 0 || node.integer("noop_with_empty_axes", 0))) return plan.add_view(node, 0, x, from);
    if (axes.empty())
        for (std::int64_t axis = 0; axis < rank; axis++) axes.push_back(axis);
    for (std::int64_t &axis : axes) axis = axis < 0 ? axis + rank : axis;
    std::sort(axes.begin(), axes.end());
    for (std::size_t i = 0; i < axes.size(); i++)
        if (axes[i] < 0 || axes[i] >= rank || axes[i] != axes[0] + static_cast<std::int64_t>(i))
            refuse(node, "axes of its input that follow each other", "others");
    Reduced operation;
    operation.of = of;
    const auto first = from.begin() + axes.front(), last = from.begin() + axes.back() + 1;
    operation.outer = count_of(Dims(from.begin(), first));
    operation.size = count_of(Dims(first, last));
    operation.inner = count_of(Dims(last, from.end()));
    operation.is_shared = operation.outer > 1 && count_of(from) >= worth_sharing;
    Dims dims(from.begin(), first);
    if (node.integer("keepdims", 1)) dims.insert(dims.end(), axes.size(), 1);
    dims.insert(dims.end(), last, from.end());
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    if (operation.size == 0) return add_filled(plan, y, of == Reduction::max ? -std::numeric_limits<float>::infinity() : 0.0f);
    plan.add(std::move(operation), {x}, {y});
}

// Rows: all axes from `axis` on.
struct Rows {
    std::size_t count, size;

    Rows(const Node &node, const Dims &dims, std::int64_t axis) {
        const auto rank = static_cast<std::int64_t>(dims.size());
        axis = axis < 0 ? axis + rank : axis;
        if (axis < 0 || axis >= rank) refuse(node, "an axis of its input", std::to_string(axis));
        size = count_of(Dims(dims.begin() + axis, dims.end()));
        count = size ? count_of(dims) / size : 0;
    }

    bool are_worth_sharing() const { return count > 1 && count * size >= worth_sharing; }
};

struct Softmax : Operation {
    Rows rows;

    explicit Softmax(Rows rows) : rows(rows) { is_shared = rows.are_worth_sharing(); }
    void run(Run &run, int part, int parts) const override {
        const Kernels &k = kernels();
        const std::size_t size = rows.size, last = begin_of(rows.count, part + 1, parts);
        const std::size_t together = size < 512 ? 512 / size : 1;  // batches short rows, so that exp has more than a register
        for (std::size_t row = begin_of(rows.count, part, parts); row < last; row += together) {
            const std::size_t n = std::min(together, last - row);
            const float *x = run.at<float>(reads[0]) + row * size;
            float *y = run.at<float>(writes[0]) + row * size;
            for (std::size_t i = 0; i < n; i++) {
                const float most = k.max(x + i * size, size);
                k.binary(Binary::sub, x + i * size, 1, &most, 0, y + i * size, size);
            }
            k.unary(Unary::exp, y, y, n * size);
            for (std::size_t i = 0; i < n; i++) {
                const float whole = k.sum(y + i * size, size);
                k.binary(Binary::div, y + i * size, 1, &whole, 0, y + i * size, size);
            }
        }
    }
};

void build_softmax(Plan &plan, const Node &node) {
    const ValueId x = float32_input(plan, node);
    const Dims dims = plan.value(x).dims;
    const std::int64_t axis = node.integer("axis", -1);
    if (axis != -1 && axis != static_cast<std::int64_t>(dims.size()) - 1) refuse(node, "the last axis", std::to_string(axis));
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    if (count_of(dims) != 0) plan.add(Softmax(Rows(node, dims, -1)), {x}, {y});
}

struct Normalized : Operation {
    Rows rows;
    float epsilon;
    bool has_bias;
    std::array<std::size_t, 2> steps{};  // of weight and bias from row to row: 0 if all rows share them

    explicit Normalized(Rows rows) : rows(rows) { is_shared = rows.are_worth_sharing(); }
    void run(Run &run, int part, int parts) const override {
        const Kernels &k = kernels();
        const std::size_t first = begin_of(rows.count, part, parts), last = begin_of(rows.count, part + 1, parts);
        const float *x = run.at<float>(reads[0]) + first * rows.size;
        float *y = run.at<float>(writes[0]) + first * rows.size;
        const auto size = static_cast<float>(rows.size);
        for (std::size_t row = first; row < last; row++, x += rows.size, y += rows.size) {
            const float mean = k.sum(x, rows.size) / size;
            k.binary(Binary::sub, x, 1, &mean, 0, y, rows.size);
            float squares;
            k.product(y, y, &squares, 1, rows.size, 1, 0, 1);
            const float inverse = 1.0f / std::sqrt(squares / size + epsilon);
            k.binary(Binary::mul, y, 1, &inverse, 0, y, rows.size);
            k.binary(Binary::mul, y, 1, run.at<float>(reads[1]) + row * steps[0], 1, y, rows.size);
            if (has_bias) k.binary(Binary::add, y, 1, run.at<float>(reads[2]) + row * steps[1], 1, y, rows.size);
        }
    }
};

void build_layer_norm(Plan &plan, const Node &node) {
    const ValueId x = float32_input(plan, node);
    const Dims dims = plan.value(x).dims;
    Normalized operation(Rows(node, dims, node.integer("axis", -1)));
    operation.epsilon = node.real("epsilon", 1e-5f);
    operation.has_bias = plan.has(node, 2);
    if (operation.rows.size == 0) refuse(node, "rows of at least one number", "empty ones");
    const auto axis = static_cast<std::ptrdiff_t>(node.integer("axis", -1));
    const Dims row(axis < 0 ? dims.end() + axis : dims.begin() + axis, dims.end());
    std::vector<ValueId> reads{x, plan.input(node, 1)};
    if (operation.has_bias) reads.push_back(plan.input(node, 2));
    for (std::size_t i = 1; i < reads.size(); i++) {
        const Value each = plan.value(reads[i]);
        const bool is_shared = count_of(broadcast(node, row, each.dims)) == operation.rows.size;
        const Dims whole = broadcast(node, is_shared ? row : dims, each.dims);
        if (each.type != Type::float32 || count_of(whole) != count_of(is_shared ? row : dims)) refuse(node, "weights that fit its input", "others");
        operation.steps[i - 1] = is_shared ? 0 : operation.rows.size;
        if (count_of(each.dims) == count_of(whole)) continue;
        const ValueId expanded = plan.add_output({}, 0, Type::float32, whole);
        add_expanded(plan, reads[i], expanded);
        reads[i] = expanded;
    }
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    plan.add(std::move(operation), reads, {y});
}

struct Largest : Operation {
    Rows rows;
    std::size_t k;

    explicit Largest(Rows rows) : rows(rows) { is_shared = rows.are_worth_sharing(); }
    // A bound below the k largest of a row and above most others: just below the k-th largest of the group maxima.
    float below(const float *x) const {
        constexpr float least = -std::numeric_limits<float>::infinity();
        if (k > maxima_groups || rows.size < 4 * maxima_groups) return least;
        std::array<float, maxima_groups> groups;
        kernels().maxima(x, rows.size, groups.data());
        const auto last = groups.begin() + static_cast<std::ptrdiff_t>(k) - 1;
        std::nth_element(groups.begin(), last, groups.end(), std::greater<float>());
        return std::nextafter(*last, least);
    }
    void run(Run &run, int part, int parts) const override {
        const std::size_t first = begin_of(rows.count, part, parts), last = begin_of(rows.count, part + 1, parts);
        const float *x = run.at<float>(reads[0]) + first * rows.size;
        float *y = run.at<float>(writes[0]) + first * k;
        std::int64_t *numbers = run.at<std::int64_t>(writes[1]) + first * k;
        const auto precedes = [](float a, float b) { return a > b || (a != a && b == b); };
        for (std::size_t row = first; row < last; row++, x += rows.size, y += k, numbers += k) {
            // insertion in descending order, NaN first as in ONNX Runtime; of equal numbers, the earlier comes first
            std::size_t found = 0;
            const float least = below(x);
            for (std::size_t i = 0; i < rows.size; i++) {
                if (found == k || std::isfinite(least)) i += kernels().above(x + i, rows.size - i, found == k ? y[k - 1] : least);
                if (i == rows.size) break;
                if (found == k && !precedes(x[i], y[k - 1])) continue;
                std::size_t place = found < k ? found++ : k - 1;
                for (; place > 0 && precedes(x[i], y[place - 1]); place--) y[place] = y[place - 1], numbers[place] = numbers[place - 1];
                y[place] = x[i], numbers[place] = static_cast<std::int64_t>(i);
            }
        }
    }
};

void build_top_k(Plan &plan, const Node &node) {
    const ValueId x = float32_input(plan, node);
    Dims dims = plan.value(x).dims;
    const std::int64_t axis = node.integer("axis", -1), last = static_cast<std::int64_t>(dims.size()) - 1;
    const Dims k = plan.integers(plan.input(node, 1));
    if (axis != -1 && axis != last) refuse(node, "the last axis", std::to_string(axis));
    if (k.size() != 1 || dims.empty() || k[0] < 0 || k[0] > dims.back()) refuse(node, "k of at most the axis's size", "another");
    Largest operation(Rows(node, dims, -1));
    operation.k = static_cast<std::size_t>(k[0]);
    dims.back() = k[0];
    const ValueId values = plan.add_output(node, 0, Type::float32, dims), numbers = plan.add_output(node, 1, Type::int64, dims);
    if (operation.k != 0) plan.add(std::move(operation), {x}, {values, numbers});
}

}  // namespace

const Builders &reduction_builders() {
    using Kind = Attribute::Kind;
    const std::vector<AttributeForm> reduction{{"axes", Kind::integers}, {"keepdims"}, {"noop_with_empty_axes"}};
    static const Builders builders{
        {"LayerNormalization", {build_layer_norm, 1, 17, 2, 3, {{"axis"}, {"epsilon", Kind::real}, {"stash_type", Kind::integer, {1}}}}},
        {"ReduceMax", {build_reduction<Reduction::max>, 13, 20, 1, 2, reduction}},
        {"ReduceMean", {build_reduction<Reduction::mean>, 13, 18, 1, 2, reduction}},
        {"ReduceSum", {build_reduction<Reduction::sum>, 13, 13, 1, 2, reduction}},
        {"Softmax", {build_softmax, 13, 13, 1, 1, {{"axis"}}}},
        {"TopK", {build_top_k, 11, 24, 2, 2, {{"axis"}, {"largest", Kind::integer, {1}}, {"sorted", Kind::integer, {1}}}, 2}},
    };
    return builders;
}

}  // namespace t2r::provider
