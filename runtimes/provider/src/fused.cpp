// Fused operators (fuse.hpp).
#include <algorithm>
#include <cmath>
#include <iterator>

#include "builders.hpp"
#include "fuse.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

bool are_float32(const Plan &plan, std::initializer_list<ValueId> ids) {
    return std::all_of(ids.begin(), ids.end(), [&](ValueId id) { return plan.value(id).type == Type::float32; });
}

Dims without(Dims dims, std::size_t last) {
    dims.resize(dims.size() - last);
    return dims;
}

std::size_t last_of(const Dims &dims) { return dims.empty() ? 1 : static_cast<std::size_t>(dims.back()); }

// x / √(mean(x²) + ε) · weight, per row.
struct RmsNorm : Operation {
    std::size_t count, size;
    float epsilon;

    void run(Run &run, int part, int parts) const override {
        const Kernels &k = kernels();
        const float *weight = run.at<float>(reads[1]);
        for (std::size_t row = begin_of(count, part, parts); row < begin_of(count, part + 1, parts); row++) {
            const float *x = run.at<float>(reads[0]) + row * size;
            float *y = run.at<float>(writes[0]) + row * size, squares;
            k.product(x, x, &squares, 1, size, 1, 0, 1);
            const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(size) + epsilon);
            k.binary(Binary::mul, x, 1, &inverse, 0, y, size);
            k.binary(Binary::mul, y, 1, weight, 1, y, size);
        }
    }
};

void build_rms_norm(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), weight = plan.input(node, 1);
    const Dims dims = plan.value(x).dims, of = plan.value(weight).dims;
    const std::size_t size = last_of(dims);
    if (!are_float32(plan, {x, weight}) || size == 0 || dims.size() < of.size() || last_of(of) != size || count_of(of) != size)
        return build_parts(plan, node);
    RmsNorm operation;
    operation.size = size, operation.count = count_of(dims) / size, operation.epsilon = node.real("epsilon", 0);
    operation.is_shared = operation.count > 1 && count_of(dims) >= worth_sharing;
    plan.add(std::move(operation), {x, weight}, {plan.add_output(node, 0, Type::float32, dims)});
}

// Rotates each row of x by a row of `same` and of `other`.
struct Rotation : Operation {
    std::vector<std::array<std::size_t, 3>> places;  // offsets in x, same and other, for each row of y
    std::size_t half;

    void run(Run &run, int part, int parts) const override {
        const float *x = run.at<float>(reads[0]), *same = run.at<float>(reads[1]), *other = run.at<float>(reads[2]);
        for (std::size_t row = begin_of(places.size(), part, parts); row < begin_of(places.size(), part + 1, parts); row++) {
            const auto [of_x, of_same, of_other] = places[row];
            kernels().rotate(x + of_x, same + of_same, other + of_other, run.at<float>(writes[0]) + row * 2 * half, half);
        }
    }
};

void build_rotation(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), same = plan.input(node, 1), other = plan.input(node, 2), sizes = plan.input(node, 3);
    const Dims dims = plan.value(x).dims, a = plan.value(same).dims, b = plan.value(other).dims;
    const std::int64_t axis = node.integer("axis", 0), rank = static_cast<std::int64_t>(dims.size());
    const auto size = static_cast<std::int64_t>(last_of(dims));
    if (!are_float32(plan, {x, same, other}) || dims.empty() || (axis != -1 && axis != rank - 1) || !plan.is_known(sizes) ||
        plan.integers(sizes) != Dims{size / 2, size - size / 2} || size % 2 || last_of(a) != last_of(dims) || last_of(b) != last_of(dims) ||
        a.empty() || b.empty() || count_of(dims) > most_places || broadcast(node, dims, a) != dims || broadcast(node, dims, b) != dims)
        return build_parts(plan, node);
    Rotation operation;
    operation.half = last_of(dims) / 2;
    const Dims outer = without(dims, 1);
    const Loops<3> loops(outer, {outer, without(a, 1), without(b, 1)});
    if (count_of(outer))
        loops.rows(0, 1, [&](const std::array<std::size_t, 3> &at, std::size_t) {
            for (std::size_t i = 0; i < loops.inner(); i++) {
                std::array<std::size_t, 3> place;
                for (std::size_t o = 0; o < 3; o++) place[o] = (at[o] + i * loops.strides.back()[o]) * last_of(dims);
                operation.places.push_back(place);
            }
        });
    operation.is_shared = operation.places.size() > 1 && count_of(dims) >= worth_sharing;
    plan.add(std::move(operation), {x, same, other}, {plan.add_output(node, 0, Type::float32, dims)});
}

// silu(first half) · second half, per row.
struct GatedHalf : Operation {
    std::size_t count, half;

    void run(Run &run, int part, int parts) const override {
        const Kernels &k = kernels();
        for (std::size_t row = begin_of(count, part, parts); row < begin_of(count, part + 1, parts); row++) {
            const float *x = run.at<float>(reads[0]) + row * 2 * half;
            float *y = run.at<float>(writes[0]) + row * half;
            k.unary(Unary::sigmoid, x, y, half);
            k.binary(Binary::mul, x, 1, y, 1, y, half);
            k.binary(Binary::mul, y, 1, x + half, 1, y, half);
        }
    }
};

void build_gated_half(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), sizes = plan.input(node, 1);
    Dims dims = plan.value(x).dims;
    const std::int64_t axis = node.integer("axis", 0), rank = static_cast<std::int64_t>(dims.size());
    const auto half = static_cast<std::int64_t>(last_of(dims) / 2);
    if (!are_float32(plan, {x}) || dims.empty() || (axis != -1 && axis != rank - 1) || half == 0 || last_of(dims) % 2 ||
        !plan.is_known(sizes) || plan.integers(sizes) != Dims{half, half})
        return build_parts(plan, node);
    dims.back() = half;
    GatedHalf operation;
    operation.half = static_cast<std::size_t>(half), operation.count = count_of(dims) / operation.half;
    operation.is_shared = operation.count > 1 && count_of(dims) >= worth_sharing;
    plan.add(std::move(operation), {x}, {plan.add_output(node, 0, Type::float32, dims)});
}

// state · gate + k vᵀ for a batch of matrices. The gate has one number per matrix or per row, or is absent.
struct StateUpdate : Operation {
    std::size_t count, rows, columns, gate_step;
    bool has_gate;

    void run(Run &run, int part, int parts) const override {
        static constexpr float one = 1;
        const float *state = run.at<float>(reads[0]), *k = run.at<float>(reads[1]), *v = run.at<float>(reads[2]);
        const float *gate = has_gate ? run.at<float>(reads[3]) : &one;
        const std::size_t gates = !has_gate ? 0 : gate_step ? rows : 1;  // gate numbers per matrix
        float *y = run.at<float>(writes[0]);
        for (std::size_t i = begin_of(count, part, parts); i < begin_of(count, part + 1, parts); i++) {
            const std::size_t at = i * rows * columns;
            kernels().update(state + at, gate + i * gates, gate_step, k + i * rows, rows, v + i * columns, columns, y + at);
        }
    }
};

void build_state_update(Plan &plan, const Node &node) {
    const bool has_gate = plan.has(node, 1);
    ValueId state = plan.input(node, 0), gate = has_gate ? plan.input(node, 1) : -1;
    const ValueId k = plan.input(node, 2), v = plan.input(node, 3);
    if (has_gate && count_of(plan.value(state).dims) < count_of(plan.value(gate).dims)) std::swap(state, gate);
    const Dims dims = plan.value(state).dims;
    if (dims.size() < 2 || !are_float32(plan, {state, k, v}) || (has_gate && !are_float32(plan, {gate}))) return build_parts(plan, node);
    const auto of = [&](std::int64_t rows, std::int64_t columns) {
        Dims shape = without(dims, 2);
        shape.push_back(rows), shape.push_back(columns);
        return shape;
    };
    const std::int64_t rows = dims[dims.size() - 2], columns = dims.back();
    const Dims by = has_gate ? plan.value(gate).dims : of(1, 1);
    if ((by != of(1, 1) && by != of(rows, 1)) || plan.value(k).dims != of(rows, 1) || plan.value(v).dims != of(1, columns))
        return build_parts(plan, node);
    StateUpdate operation;
    operation.count = count_of(without(dims, 2));
    operation.rows = static_cast<std::size_t>(rows), operation.columns = static_cast<std::size_t>(columns);
    operation.gate_step = by == of(1, 1) ? 0 : 1, operation.has_gate = has_gate;
    operation.is_shared = operation.count > 1 && count_of(dims) >= worth_sharing;
    std::vector<ValueId> reads{state, k, v};
    if (has_gate) reads.push_back(gate);
    plan.add(std::move(operation), reads, {plan.add_output(node, 0, Type::float32, dims)});
}

// Rows of int8, each times its scale.
struct ScaledRows : Operation {
    std::size_t count, size;

    void run(Run &run, int part, int parts) const override {
        const std::int8_t *x = run.at<std::int8_t>(reads[0]);
        float *y = run.at<float>(writes[0]);
        for (std::size_t row = begin_of(count, part, parts); row < begin_of(count, part + 1, parts); row++)
            kernels().scaled(x + row * size, run.at<float>(reads[1])[row], y + row * size, size);
    }
};

void build_scaled_rows(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), scales = plan.input(node, 1);
    const Dims dims = plan.value(x).dims;
    Dims of_rows = dims;
    if (dims.empty() || last_of(dims) == 0) return build_parts(plan, node);
    of_rows.back() = 1;
    if (plan.value(x).type != Type::int8 || !are_float32(plan, {scales}) || plan.value(scales).dims != of_rows) return build_parts(plan, node);
    ScaledRows operation;
    operation.size = last_of(dims), operation.count = count_of(of_rows);
    operation.is_shared = operation.count > 1 && count_of(dims) >= worth_sharing;
    plan.add(std::move(operation), {x, scales}, {plan.add_output(node, 0, Type::float32, dims)});
}

// The sum of e^(x - most) per row, in pieces that stay in the cache.
struct ExpSum : Operation {
    std::size_t count, size;

    void run(Run &run, int part, int parts) const override {
        const Kernels &k = kernels();
        float powers[1024];
        for (std::size_t row = begin_of(count, part, parts); row < begin_of(count, part + 1, parts); row++) {
            const float *x = run.at<float>(reads[0]) + row * size, *most = run.at<float>(reads[1]) + row;
            float whole = 0;
            for (std::size_t first = 0; first < size; first += std::size(powers)) {
                const std::size_t n = std::min(std::size(powers), size - first);
                k.binary(Binary::sub, x + first, 1, most, 0, powers, n);
                k.unary(Unary::exp, powers, powers, n);
                whole += k.sum(powers, n);
            }
            run.at<float>(writes[0])[row] = whole;
        }
    }
};

void build_exp_sum(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), most = plan.input(node, 1);
    Dims dims = plan.value(x).dims;
    const std::size_t size = last_of(dims);
    if (dims.empty() || size == 0 || !are_float32(plan, {x, most})) return build_parts(plan, node);
    ExpSum operation;
    operation.size = size, operation.count = count_of(dims) / size;
    operation.is_shared = operation.count > 1 && count_of(dims) >= worth_sharing;
    dims.back() = 1;
    if (plan.value(most).dims != dims) return build_parts(plan, node);
    plan.add(std::move(operation), {x, most}, {plan.add_output(node, 0, Type::float32, dims)});
}

}  // namespace

const Builders &fused_builders() {
    static const Builders builders{{exp_sum, {build_exp_sum}}, {gated_half, {build_gated_half}}, {rms_norm, {build_rms_norm}},
                                   {rotation, {build_rotation}}, {scaled_rows, {build_scaled_rows}}, {state_update, {build_state_update}}};
    return builders;
}

}  // namespace t2r::provider
