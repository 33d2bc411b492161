// Elementwise operators with one and two inputs.
#include <cmath>
#include <type_traits>

#include "builders.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

Dims broadcast(const Node &node, const Dims &a, const Dims &b) {
    Dims result(std::max(a.size(), b.size()), 1);
    if (result.size() > most_dims) refuse(node, "at most 16 dimensions", "more");
    for (const Dims *dims : {&a, &b})
        for (std::size_t back = 1; back <= dims->size(); back++) {
            std::int64_t &size = result[result.size() - back];
            const std::int64_t other = (*dims)[dims->size() - back];
            if (size != other && size != 1 && other != 1) refuse(node, "shapes that fit each other", "others");
            size = size == 1 ? other : size;
        }
    return result;
}

namespace {

struct OfOne : Operation {
    Unary op;
    std::size_t count;

    void run(Run &run, int part, int parts) const override {
        const std::size_t first = begin_of(count, part, parts, 16), last = begin_of(count, part + 1, parts, 16);
        kernels().unary(op, run.at<float>(reads[0]) + first, run.at<float>(writes[0]) + first, last - first);
    }
};

template <Unary op> void build_unary(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    if (plan.value(x).type != Type::float32) refuse(node, "float32", "another type");
    const ValueId y = plan.add_output(node, 0, Type::float32, plan.value(x).dims);
    OfOne operation;
    operation.op = op, operation.count = count_of(plan.value(y).dims);
    operation.is_shared = operation.count >= worth_sharing;
    plan.add(std::move(operation), {x}, {y});
}

// GELU, by erf or by its tanh approximation.
struct Gelu : Operation {
    std::size_t count;
    bool by_tanh;

    void run(Run &run, int, int) const override {
        const Kernels &k = kernels();
        const float *x = run.at<float>(reads[0]);
        float *y = run.at<float>(writes[0]);
        const float half = 0.5f, one = 1.0f;
        if (by_tanh) {  // 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))
            for (std::size_t i = 0; i < count; i++) y[i] = 0.7978845608028654f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
            k.unary(Unary::tanh, y, y, count);
        } else {  // 0.5 x (1 + erf(x / √2))
            const float root = 0.7071067811865476f;
            k.binary(Binary::mul, x, 1, &root, 0, y, count);
            k.unary(Unary::erf, y, y, count);
        }
        k.binary(Binary::add, y, 1, &one, 0, y, count);
        k.binary(Binary::mul, y, 1, x, 1, y, count);
        k.binary(Binary::mul, y, 1, &half, 0, y, count);
    }
};

// x, or α (e^x - 1) if x < 0
struct Elu : Operation {
    std::size_t count;
    float alpha;

    void run(Run &run, int, int) const override {
        const float *x = run.at<float>(reads[0]);
        float *y = run.at<float>(writes[0]);
        for (std::size_t i = 0; i < count; i++) y[i] = x[i] < 0 ? alpha * std::expm1(x[i]) : x[i];
    }
};

struct OfTwo : Operation {
    Binary op;
    Loops<2> loops;

    OfTwo(Binary op, Loops<2> loops) : op(op), loops(std::move(loops)) {}
    void run(Run &run, int part, int parts) const override {
        const float *a = run.at<float>(reads[0]), *b = run.at<float>(reads[1]);
        float *y = run.at<float>(writes[0]);
        const std::size_t a_step = loops.strides.back()[0], b_step = loops.strides.back()[1];
        const std::size_t inner = loops.inner();
        if (loops.dims.size() == 1) {
            const std::size_t first = begin_of(inner, part, parts, 16), last = begin_of(inner, part + 1, parts, 16);
            return kernels().binary(op, a + first * a_step, a_step, b + first * b_step, b_step, y + first, last - first);
        }
        loops.rows(part, parts, [&](const std::array<std::size_t, 2> &at, std::size_t row) {
            kernels().binary(op, a + at[0], a_step, b + at[1], b_step, y + row, inner);
        });
    }
};

// Integers are positions: few elements, exact results.
template <class T> struct OfTwoIntegers : Operation {
    Binary op;
    Loops<2> loops;

    OfTwoIntegers(Binary op, Loops<2> loops) : op(op), loops(std::move(loops)) {}
    void run(Run &run, int, int) const override {
        const T *a = run.at<T>(reads[0]), *b = run.at<T>(reads[1]);
        T *y = run.at<T>(writes[0]);
        const auto [a_step, b_step] = loops.strides.back();
        loops.rows(0, 1, [&, a_step = a_step, b_step = b_step](const std::array<std::size_t, 2> &at, std::size_t row) {
            for (std::size_t i = 0; i < loops.inner(); i++) {
                const T u = a[at[0] + i * a_step], v = b[at[1] + i * b_step];
                if ((op == Binary::div || op == Binary::mod) && (v == 0 || v == -1)) {
                    y[row + i] = v == 0 || op == Binary::mod ? 0 : static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(u));
                    if (v == 0) run.error = "a division by 0";
                    continue;
                }
                y[row + i] = of(u, v);
            }
        });
    }
    T of(T u, T v) const {  // wraps on overflow, as ONNX Runtime does, without undefined behaviour
        using Wrapped = std::make_unsigned_t<T>;
        const auto a = static_cast<Wrapped>(u), b = static_cast<Wrapped>(v);
        switch (op) {
        case Binary::add: return static_cast<T>(a + b);
        case Binary::sub: return static_cast<T>(a - b);
        case Binary::mul: return static_cast<T>(a * b);
        case Binary::div: return u / v;
        case Binary::mod: return u % v != 0 && (u % v < 0) != (v < 0) ? static_cast<T>(u % v + v) : static_cast<T>(u % v);
        case Binary::max: return std::max(u, v);
        default: return std::min(u, v);
        }
    }
};

template <Binary op> void build_binary(Plan &plan, const Node &node) {
    const ValueId a = plan.input(node, 0), b = plan.input(node, 1);
    const Value &left = plan.value(a), &right = plan.value(b);
    const Type type = left.type;
    if (right.type != type || (type != Type::float32 && type != Type::int32 && type != Type::int64) ||
        (op == Binary::pow && type != Type::float32) || (op == Binary::mod && type == Type::float32))
        refuse(node, "two float32, int32 or int64", "other types");
    Loops<2> loops(broadcast(node, left.dims, right.dims), {left.dims, right.dims});
    const ValueId y = plan.add_output(node, 0, type, broadcast(node, left.dims, right.dims));
    if (type == Type::int32) return plan.add(OfTwoIntegers<std::int32_t>(op, std::move(loops)), {a, b}, {y});
    if (type == Type::int64) return plan.add(OfTwoIntegers<std::int64_t>(op, std::move(loops)), {a, b}, {y});
    OfTwo operation(op, std::move(loops));
    operation.is_shared = count_of(plan.value(y).dims) >= worth_sharing;
    plan.add(std::move(operation), {a, b}, {y});
}

// Negates integers as 0 - x.
void build_neg(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Type type = plan.value(x).type;
    if (type != Type::int32 && type != Type::int64) return build_unary<Unary::neg>(plan, node);
    const Dims dims = plan.value(x).dims;
    const ValueId zero = plan.add_known({}, type, {}, {0}), y = plan.add_output(node, 0, type, dims);
    Loops<2> loops(dims, {Dims{}, dims});
    if (type == Type::int32) return plan.add(OfTwoIntegers<std::int32_t>(Binary::sub, std::move(loops)), {zero, x}, {y});
    plan.add(OfTwoIntegers<std::int64_t>(Binary::sub, std::move(loops)), {zero, x}, {y});
}

enum class Comparison { equal, greater, greater_or_equal, less, less_or_equal };

template <class T> struct Compared : Operation {
    Comparison op;
    Loops<2> loops;

    Compared(Comparison op, Loops<2> loops) : op(op), loops(std::move(loops)) {}
    void run(Run &run, int, int) const override {
        const T *a = run.at<T>(reads[0]), *b = run.at<T>(reads[1]);
        std::uint8_t *y = run.at<std::uint8_t>(writes[0]);
        const auto [a_step, b_step] = loops.strides.back();
        loops.rows(0, 1, [&, a_step = a_step, b_step = b_step](const std::array<std::size_t, 2> &at, std::size_t row) {
            for (std::size_t i = 0; i < loops.inner(); i++) y[row + i] = of(a[at[0] + i * a_step], b[at[1] + i * b_step]);
        });
    }
    bool of(T u, T v) const {
        switch (op) {
        case Comparison::equal: return u == v;
        case Comparison::greater: return u > v;
        case Comparison::greater_or_equal: return u >= v;
        case Comparison::less: return u < v;
        default: return u <= v;
        }
    }
};

template <Comparison op> void build_comparison(Plan &plan, const Node &node) {
    const ValueId a = plan.input(node, 0), b = plan.input(node, 1);
    const Value left = plan.value(a), right = plan.value(b);
    if (left.type != right.type) refuse(node, "two of a type", "others");
    const Dims dims = broadcast(node, left.dims, right.dims);
    Loops<2> loops(dims, {left.dims, right.dims});
    const ValueId y = plan.add_output(node, 0, Type::boolean, dims);
    if (left.type == Type::int32) return plan.add(Compared<std::int32_t>(op, std::move(loops)), {a, b}, {y});
    if (left.type == Type::int64) return plan.add(Compared<std::int64_t>(op, std::move(loops)), {a, b}, {y});
    if (left.type == Type::float32) return plan.add(Compared<float>(op, std::move(loops)), {a, b}, {y});
    refuse(node, "float32, int32 or int64", "another type");
}

void build_gelu(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    if (plan.value(x).type != Type::float32) refuse(node, "float32", "another type");
    Gelu operation;
    operation.count = count_of(plan.value(x).dims);
    operation.by_tanh = node.text("approximate", "none") == "tanh";
    const ValueId y = plan.add_output(node, 0, Type::float32, plan.value(x).dims);
    plan.add(std::move(operation), {x}, {y});
}

void build_elu(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    if (plan.value(x).type != Type::float32) refuse(node, "float32", "another type");
    Elu operation;
    operation.count = count_of(plan.value(x).dims);
    operation.alpha = node.real("alpha", 1.0f);
    const ValueId y = plan.add_output(node, 0, Type::float32, plan.value(x).dims);
    plan.add(std::move(operation), {x}, {y});
}

template <class From, class To> struct Converted : Operation {
    std::size_t count;

    void run(Run &run, int part, int parts) const override {
        const std::size_t first = begin_of(count, part, parts, 64), last = begin_of(count, part + 1, parts, 64);
        const From *x = run.at<From>(reads[0]);
        To *y = run.at<To>(writes[0]);
        for (std::size_t i = first; i < last; i++) {
            if constexpr (std::is_same_v<From, Half>)
                y[i] = number_of(x[i]);
            else if constexpr (std::is_same_v<To, std::int8_t>)
                y[i] = x[i] >= -128 && x[i] <= 127 ? static_cast<To>(x[i]) : To{0};  // others and NaN have no value of this type
            else
                y[i] = static_cast<To>(x[i]);
        }
    }
};

template <class From, class To> void convert(Plan &plan, ValueId x, ValueId y) {
    Converted<From, To> operation;
    operation.count = count_of(plan.value(x).dims);
    operation.is_shared = operation.count >= worth_sharing;
    plan.add(std::move(operation), {x}, {y});
}

void build_cast(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Type from = plan.value(x).type, to = type_of(node.integer("to", 1));
    if (from == to) return plan.add_view(node, 0, x, plan.value(x).dims);
    const ValueId y = plan.add_output(node, 0, to, plan.value(x).dims);
    if (from == Type::int32 && to == Type::int64) return convert<std::int32_t, std::int64_t>(plan, x, y);
    if (from == Type::int64 && to == Type::int32) return convert<std::int64_t, std::int32_t>(plan, x, y);
    if (from == Type::int32 && to == Type::float32) return convert<std::int32_t, float>(plan, x, y);
    if (from == Type::int64 && to == Type::float32) return convert<std::int64_t, float>(plan, x, y);
    if (from == Type::float16 && to == Type::float32) return convert<Half, float>(plan, x, y);
    if (from == Type::boolean && to == Type::float32) return convert<std::uint8_t, float>(plan, x, y);
    if (from == Type::int8 && to == Type::float32) return convert<std::int8_t, float>(plan, x, y);
    if (from == Type::float32 && to == Type::int8) return convert<float, std::int8_t>(plan, x, y);
    refuse(node, "integers or float16 as float32, integers as other integers, or float32 as int8", "another conversion");
}

}  // namespace

const Builders &elementwise_builders() {
    using Kind = Attribute::Kind;
    static const Builders builders{
        {"Abs", {build_unary<Unary::abs>, 13, 13}},
        {"Add", {build_binary<Binary::add>, 13, 14, 2, 2}},
        // the last two concern eight-bit floats
        {"Cast", {build_cast, 13, 25, 1, 1, {{"to"}, {"saturate"}, {"round_mode", Kind::text}}}},
        {"Ceil", {build_unary<Unary::ceil>, 13, 13}},
        {"Cos", {build_unary<Unary::cos>, 7, 22}},
        {"Div", {build_binary<Binary::div>, 13, 14, 2, 2}},
        {"Elu", {build_elu, 6, 22, 1, 1, {{"alpha", Kind::real}}}},
        {"Equal", {build_comparison<Comparison::equal>, 13, 19, 2, 2}},
        {"Erf", {build_unary<Unary::erf>, 13, 13}},
        {"Exp", {build_unary<Unary::exp>, 13, 13}},
        {"Floor", {build_unary<Unary::floor>, 13, 13}},
        {"Gelu", {build_gelu, 20, 20, 1, 1, {{"approximate", Kind::text, {}, {"none", "tanh"}}}}},
        {"Greater", {build_comparison<Comparison::greater>, 13, 13, 2, 2}},
        {"GreaterOrEqual", {build_comparison<Comparison::greater_or_equal>, 12, 16, 2, 2}},
        {"Less", {build_comparison<Comparison::less>, 13, 13, 2, 2}},
        {"LessOrEqual", {build_comparison<Comparison::less_or_equal>, 12, 16, 2, 2}},
        {"Log", {build_unary<Unary::log>, 13, 13}},
        {"Max", {build_binary<Binary::max>, 13, 13, 2, 2}},
        {"Min", {build_binary<Binary::min>, 13, 13, 2, 2}},
        {"Mod", {build_binary<Binary::mod>, 13, 13, 2, 2, {{"fmod", Kind::integer, {0}}}}},
        {"Mul", {build_binary<Binary::mul>, 13, 14, 2, 2}},
        {"Neg", {build_neg, 13, 13}},
        {"Pow", {build_binary<Binary::pow>, 13, 15, 2, 2}},
        {"Reciprocal", {build_unary<Unary::reciprocal>, 13, 13}},
        {"Relu", {build_unary<Unary::relu>, 13, 14}},
        {"Round", {build_unary<Unary::round>, 11, 22}},
        {"Sigmoid", {build_unary<Unary::sigmoid>, 13, 13}},
        {"Sin", {build_unary<Unary::sin>, 7, 22}},
        {"Softplus", {build_unary<Unary::softplus>, 1, 22}},
        {"Sqrt", {build_unary<Unary::sqrt>, 13, 13}},
        {"Sub", {build_binary<Binary::sub>, 13, 14, 2, 2}},
        {"Tanh", {build_unary<Unary::tanh>, 13, 13}},
    };
    return builders;
}

}  // namespace t2r::provider
