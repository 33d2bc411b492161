// Views and copies: Reshape and similar, Concat, Expand, Gather, Slice, Split, Transpose.
#include "copies.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "builders.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

// Strided copy.
struct Moved : Operation {
    Loops<2> loops;
    std::size_t from_offset, to_offset, size;  // offsets in elements; size: bytes per element

    Moved(Loops<2> loops, std::size_t from_offset, std::size_t to_offset, std::size_t size)
        : loops(std::move(loops)), from_offset(from_offset), to_offset(to_offset), size(size) {}

    void run(Run &run, int part, int parts) const override {
        const char *from = run.at<char>(reads[0]) + from_offset * size;
        char *to = run.at<char>(writes[0]) + to_offset * size;
        const auto [from_step, to_step] = loops.strides.back();
        const std::size_t inner = loops.inner();
        loops.rows(part, parts, [&, from_step = from_step, to_step = to_step](const std::array<std::size_t, 2> &at, std::size_t) {
            const char *x = from + at[0] * size;
            char *y = to + at[1] * size;
            if (from_step == 1 && to_step == 1) {
                std::memcpy(y, x, inner * size);
            } else if (size == 4) {
                for (std::size_t i = 0; i < inner; i++) std::memcpy(y + i * to_step * 4, x + i * from_step * 4, 4);
            } else {
                for (std::size_t i = 0; i < inner; i++) std::memcpy(y + i * to_step * size, x + i * from_step * size, size);
            }
        });
    }
};

std::vector<std::size_t> strides_of(const Dims &dims) {
    std::vector<std::size_t> strides(dims.size(), 1);
    for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * static_cast<std::size_t>(dims[d]);
    return strides;
}

void add_moved(Plan &plan, ValueId from, ValueId to, const Dims &dims, const std::vector<std::size_t> &from_strides,
               const std::vector<std::size_t> &to_strides, std::size_t from_offset = 0, std::size_t to_offset = 0) {
    if (count_of(dims) == 0) return;
    Loops<2> loops({1}, {Dims{1}, Dims{1}});
    loops.dims.clear(), loops.strides.clear();
    for (std::size_t d = 0; d < dims.size(); d++) {
        if (dims[d] == 1) continue;
        const std::array<std::size_t, 2> stride{from_strides[d], to_strides[d]};
        const auto size = static_cast<std::size_t>(dims[d]);
        if (!loops.dims.empty() && loops.strides.back()[0] == stride[0] * size && loops.strides.back()[1] == stride[1] * size)
            loops.dims.back() *= dims[d], loops.strides.back() = stride;
        else
            loops.dims.push_back(dims[d]), loops.strides.push_back(stride);
    }
    if (loops.dims.empty()) loops.dims = {1}, loops.strides = {{1, 1}};
    if (loops.dims.size() > most_dims) throw Refused("at most 16 dimensions", "more", "run the graph on the provider cpu");
    Moved operation(std::move(loops), from_offset, to_offset, bytes_of(plan.value(from).type));
    operation.is_shared = operation.loops.dims.size() > 1 && count_of(dims) >= worth_sharing;
    plan.add(std::move(operation), {from}, {to});
}

std::size_t axis_of(const Node &node, std::int64_t axis, std::size_t rank) {
    const auto size = static_cast<std::int64_t>(rank);
    if (axis < -size || axis >= size) refuse(node, "an axis of its input", std::to_string(axis));
    return static_cast<std::size_t>(axis < 0 ? axis + size : axis);
}

// The part of x at `begins` with the shape `dims`: a view if it is contiguous, else a copy.
void add_part(Plan &plan, const Node &node, std::size_t output, ValueId x, const Dims &begins, const Dims &dims) {
    const Dims whole = plan.value(x).dims;
    const auto strides = strides_of(whole);
    std::size_t offset = 0;
    bool is_cut = false, is_view = true;  // a view if every dimension before a cut one is 1
    for (std::size_t d = whole.size(); d-- > 0;) {
        offset += static_cast<std::size_t>(begins[d]) * strides[d];
        is_view = is_view && (!is_cut || dims[d] == 1);
        is_cut = is_cut || dims[d] != whole[d];
    }
    if (is_view) return plan.add_view(node, output, x, dims, offset);
    const ValueId y = plan.add_output(node, output, plan.value(x).type, dims);
    add_moved(plan, x, y, dims, strides, strides_of(dims), offset);
}

void build_reshape(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims from = plan.value(x).dims;
    Dims to = plan.integers(plan.input(node, 1));
    std::int64_t rest = static_cast<std::int64_t>(count_of(from)), *open = nullptr;
    for (std::size_t d = 0; d < to.size(); d++) {
        if (to[d] == 0 && !node.integer("allowzero", 0) && d < from.size()) to[d] = from[d];
        if (to[d] == -1) open = &to[d];
    }
    if (open) {
        *open = 1;
        const auto others = static_cast<std::int64_t>(count_of(to));
        *open = others ? rest / others : 0;
    }
    if (count_of(to) != count_of(from)) refuse(node, "a shape of as many numbers", "another");
    plan.add_view(node, 0, x, to);
}

void build_identity(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    plan.add_view(node, 0, x, plan.value(x).dims);
}

void build_squeeze(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims from = plan.value(x).dims;
    std::vector<bool> goes(from.size(), !plan.has(node, 1));
    if (plan.has(node, 1))
        for (const std::int64_t axis : plan.integers(plan.input(node, 1))) goes[axis_of(node, axis, from.size())] = true;
    Dims to;
    for (std::size_t d = 0; d < from.size(); d++)
        if (!goes[d] || from[d] != 1) to.push_back(from[d]);
    plan.add_view(node, 0, x, to);
}

void build_unsqueeze(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims axes = plan.integers(plan.input(node, 1)), from = plan.value(x).dims;
    Dims to(from.size() + axes.size(), 0);
    for (const std::int64_t axis : axes) to[axis_of(node, axis, to.size())] = 1;
    auto next = from.begin();
    for (std::int64_t &dim : to)
        if (dim == 0 && next != from.end()) dim = *next++;
    plan.add_view(node, 0, x, to);
}

void build_split(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims whole = plan.value(x).dims;
    const std::size_t axis = axis_of(node, node.integer("axis", 0), whole.size()), parts = node.outputs.size();
    Dims sizes;
    if (plan.has(node, 1)) {
        sizes = plan.integers(plan.input(node, 1));
    } else {
        const std::int64_t each = (whole[axis] + static_cast<std::int64_t>(parts) - 1) / static_cast<std::int64_t>(parts);
        for (std::int64_t left = whole[axis]; sizes.size() < parts; left -= each) sizes.push_back(std::min(each, left));
    }
    if (sizes.size() != parts || std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != whole[axis])
        refuse(node, "parts that are the whole", "others");
    Dims begins(whole.size(), 0);
    for (std::size_t part = 0; part < parts; part++) {
        Dims dims = whole;
        dims[axis] = sizes[part];
        if (!node.outputs[part].empty()) add_part(plan, node, part, x, begins, dims);
        begins[axis] += sizes[part];
    }
}

void build_slice(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims whole = plan.value(x).dims, starts = plan.integers(plan.input(node, 1)), ends = plan.integers(plan.input(node, 2));
    Dims axes(starts.size()), begins(whole.size(), 0), dims = whole;
    std::iota(axes.begin(), axes.end(), 0);
    if (plan.has(node, 3)) axes = plan.integers(plan.input(node, 3));
    if (plan.has(node, 4))
        for (const std::int64_t step : plan.integers(plan.input(node, 4)))
            if (step != 1) refuse(node, "a step of 1", std::to_string(step));
    if (ends.size() != starts.size() || axes.size() != starts.size()) refuse(node, "as many ends as starts", "others");
    for (std::size_t i = 0; i < axes.size(); i++) {
        const std::size_t axis = axis_of(node, axes[i], whole.size());
        const auto inside = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + whole[axis] : at, 0, whole[axis]); };
        begins[axis] = inside(starts[i]);
        dims[axis] = std::max<std::int64_t>(0, inside(ends[i]) - begins[axis]);
    }
    add_part(plan, node, 0, x, begins, dims);
}

void build_concat(Plan &plan, const Node &node) {
    const Value first = plan.value(plan.input(node, 0));
    const std::size_t axis = axis_of(node, node.integer("axis", 0), first.dims.size());
    Dims dims = first.dims;
    dims[axis] = 0;
    for (std::size_t i = 0; i < node.inputs.size(); i++) {
        const Value &each = plan.value(plan.input(node, i));
        Dims alike = each.dims;
        if (each.type == first.type && alike.size() == dims.size()) alike[axis] = first.dims[axis];
        if (alike != first.dims) refuse(node, "inputs that differ along the axis alone", "others");
        dims[axis] += each.dims[axis];
    }
    const ValueId y = plan.add_output(node, 0, first.type, dims);
    const auto strides = strides_of(dims);
    std::size_t offset = 0;
    for (std::size_t i = 0; i < node.inputs.size(); i++) {
        const ValueId x = plan.input(node, i);
        const Dims each = plan.value(x).dims;
        add_moved(plan, x, y, each, strides_of(each), strides, 0, offset);
        offset += static_cast<std::size_t>(each[axis]) * strides[axis];
    }
}

void build_transpose(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims whole = plan.value(x).dims;
    Dims order(whole.size());
    for (std::size_t d = 0; d < whole.size(); d++) order[d] = static_cast<std::int64_t>(whole.size() - 1 - d);
    const auto given = node.attributes.find("perm");
    if (given != node.attributes.end()) order = given->second.integers;
    if (order.size() != whole.size()) refuse(node, "an order of its dimensions", "another");
    const auto strides = strides_of(whole);
    Dims dims;
    std::vector<std::size_t> from;
    for (const std::int64_t axis : order) {
        const std::size_t at = axis_of(node, axis, whole.size());
        dims.push_back(whole[at]), from.push_back(strides[at]);
    }
    if (count_of(dims) != count_of(whole)) refuse(node, "an order of its dimensions", "another");
    const ValueId y = plan.add_output(node, 0, plan.value(x).type, dims);
    add_moved(plan, x, y, dims, from, strides_of(dims));
}

void build_expand(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims from = plan.value(x).dims, dims = broadcast(node, from, plan.integers(plan.input(node, 1)));
    if (dims == from) return plan.add_view(node, 0, x, dims);
    auto strides = strides_of(from);
    for (std::size_t d = 0; d < from.size(); d++)
        if (from[d] == 1) strides[d] = 0;
    strides.insert(strides.begin(), dims.size() - from.size(), 0);
    const ValueId y = plan.add_output(node, 0, plan.value(x).type, dims);
    add_moved(plan, x, y, dims, strides, strides_of(dims));
}

// Rows of tables by index.
template <class Index> struct Gathered : Operation {
    std::size_t tables, rows, bytes, count;

    void run(Run &run, int, int) const override {
        const char *table = run.at<char>(reads[0]);
        const Index *numbers = run.at<Index>(reads[1]);
        char *y = run.at<char>(writes[0]);
        for (std::size_t t = 0; t < tables; t++, table += rows * bytes) {
            for (std::size_t i = 0; i < count; i++, y += bytes) {
                const std::int64_t number = numbers[i] < 0 ? numbers[i] + static_cast<std::int64_t>(rows) : numbers[i];
                if (number < 0 || number >= static_cast<std::int64_t>(rows)) {
                    run.error = "an index beyond the end of a table";
                    return;
                }
                std::memcpy(y, table + static_cast<std::size_t>(number) * bytes, bytes);
            }
        }
    }
};

template <class Index> void add_gathered(Plan &plan, ValueId table, ValueId numbers, ValueId y, std::size_t axis) {
    const Value &of = plan.value(table);
    const auto at = of.dims.begin() + static_cast<std::ptrdiff_t>(axis);
    Gathered<Index> operation;
    operation.tables = count_of(Dims(of.dims.begin(), at)), operation.rows = static_cast<std::size_t>(*at);
    operation.bytes = count_of(Dims(at + 1, of.dims.end())) * bytes_of(of.type);
    operation.count = count_of(plan.value(numbers).dims);
    plan.add(std::move(operation), {table, numbers}, {y});
}

void build_gather(Plan &plan, const Node &node) {
    const ValueId table = plan.input(node, 0), numbers = plan.input(node, 1);
    const Value of = plan.value(table), at = plan.value(numbers);
    const std::size_t axis = axis_of(node, node.integer("axis", 0), of.dims.size());
    Dims dims = of.dims;
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), at.dims.begin(), at.dims.end());
    const ValueId y = plan.add_output(node, 0, of.type, dims);
    if (at.type == Type::int64) return add_gathered<std::int64_t>(plan, table, numbers, y, axis);
    if (at.type == Type::int32) return add_gathered<std::int32_t>(plan, table, numbers, y, axis);
    refuse(node, "integers as indices", "another type");
}

// Each index selects an element of x along the axis.
struct GatheredElements : Operation {
    std::size_t outer, inner, of_x, of_y, size;  // of_x, of_y: entries along the axis; size: bytes per element

    void run(Run &run, int, int) const override {
        const char *x = run.at<char>(reads[0]);
        const std::int64_t *numbers = run.at<std::int64_t>(reads[1]);
        char *y = run.at<char>(writes[0]);
        for (std::size_t o = 0; o < outer; o++, x += of_x * inner * size) {
            for (std::size_t i = 0; i < of_y * inner; i++, y += size) {
                std::int64_t number = *numbers++;
                number = number < 0 ? number + static_cast<std::int64_t>(of_x) : number;
                if (number < 0 || number >= static_cast<std::int64_t>(of_x)) {
                    run.error = "an index beyond the end of a table";
                    return;
                }
                std::memcpy(y, x + (static_cast<std::size_t>(number) * inner + i % inner) * size, size);
            }
        }
    }
};

void build_gather_elements(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), numbers = plan.input(node, 1);
    const Value of = plan.value(x), at = plan.value(numbers);
    const std::size_t axis = axis_of(node, node.integer("axis", 0), of.dims.size());
    Dims alike = at.dims;
    if (alike.size() == of.dims.size()) alike[axis] = of.dims[axis];
    if (alike != of.dims || at.type != Type::int64) refuse(node, "int64 indices of its shape, but for the axis", "others");
    GatheredElements operation;
    operation.outer = count_of(Dims(of.dims.begin(), of.dims.begin() + static_cast<std::ptrdiff_t>(axis)));
    operation.inner = count_of(Dims(of.dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1, of.dims.end()));
    operation.of_x = static_cast<std::size_t>(of.dims[axis]), operation.of_y = static_cast<std::size_t>(at.dims[axis]);
    operation.size = bytes_of(of.type);
    const ValueId y = plan.add_output(node, 0, of.type, at.dims);
    plan.add(std::move(operation), {x, numbers}, {y});
}

}  // namespace

void add_copy(Plan &plan, ValueId from, ValueId to) {
    const Dims dims = plan.value(from).dims;
    add_moved(plan, from, to, dims, strides_of(dims), strides_of(dims));
}

void add_copy_into(Plan &plan, ValueId from, ValueId to, const Dims &begins) {
    const Dims dims = plan.value(from).dims;
    const auto strides = strides_of(plan.value(to).dims);
    std::size_t offset = 0;
    for (std::size_t d = 0; d < dims.size(); d++) offset += static_cast<std::size_t>(begins[d]) * strides[d];
    add_moved(plan, from, to, dims, strides_of(dims), strides, 0, offset);
}

const Builders &copy_builders() {
    static const Builders builders{
        {"Concat", build_concat},     {"Expand", build_expand}, {"Gather", build_gather},
        {"GatherElements", build_gather_elements},
        {"Identity", build_identity}, {"Reshape", build_reshape}, {"Slice", build_slice},
        {"Split", build_split},       {"Squeeze", build_squeeze}, {"Transpose", build_transpose},
        {"Unsqueeze", build_unsqueeze},
    };
    return builders;
}

}  // namespace t2r::provider
