// Operators whose results are known at planning time: Shape and Range.
#include <algorithm>
#include <array>

#include "builders.hpp"

namespace t2r::provider {

namespace {

// A plan has fixed shapes, so the result is a constant.
void build_shape(Plan &plan, const Node &node) {
    const Dims whole = plan.value(plan.input(node, 0)).dims;
    const auto rank = static_cast<std::int64_t>(whole.size());
    const auto inside = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank); };
    const std::int64_t first = inside(node.integer("start", 0)), last = std::max(first, inside(node.integer("end", rank)));
    plan.add_known(node, Type::int64, {last - first}, Dims(whole.begin() + first, whole.begin() + last));
}

void build_range(Plan &plan, const Node &node) {
    std::array<std::int64_t, 3> given;  // first, end, step
    const Type type = plan.value(plan.input(node, 0)).type;
    for (std::size_t i = 0; i < given.size(); i++) {
        const Dims numbers = plan.integers(plan.input(node, i));
        if (numbers.size() != 1 || plan.value(plan.input(node, i)).type != type) refuse(node, "three numbers of a type", "others");
        given[i] = numbers[0];
    }
    const auto [first, end, step] = given;
    constexpr std::int64_t largest = std::int64_t{1} << 31, most = std::int64_t{1} << 24;
    for (const std::int64_t number : given)
        if (number > largest || number < -largest) refuse(node, "numbers of 32 bits", "larger ones");
    if (step == 0 || (end - first) / step > most) refuse(node, "at most 2^24 numbers", "more");
    Dims numbers;
    for (std::int64_t number = first; step > 0 ? number < end : number > end; number += step) numbers.push_back(number);
    plan.add_known(node, type, {static_cast<std::int64_t>(numbers.size())}, numbers);
}

}  // namespace

const Builders &known_builders() {
    static const Builders builders{
        {"Range", {build_range, 11, 11, 3, 3}},
        {"Shape", {build_shape, 13, 25, 1, 1, {{"end"}, {"start"}}}},
    };
    return builders;
}

}  // namespace t2r::provider
