// Views and copies: Reshape and similar, Concat, Expand, Gather, Slice, Split, Transpose. `strided` is where sizes are checked.
#include "copies.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "builders.hpp"
#include "loops.hpp"

namespace t2r::provider {

std::size_t axis_of(const Node &node, std::int64_t axis, std::size_t rank) {
    const auto size = static_cast<std::int64_t>(rank);
    if (axis < -size || axis >= size) refuse(node, "an axis of its input", std::to_string(axis));
    return static_cast<std::size_t>(axis < 0 ? axis + size : axis);
}

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

// Loops over `dims` with these strides of two values. Each access is inside of its value: throws Refused otherwise.
Loops<2> strided(const Dims &dims, const std::array<const Value *, 2> &values, const std::array<std::vector<std::size_t>, 2> &strides,
                 const std::array<std::size_t, 2> &offsets) {
    for (std::size_t v = 0; v < 2 && count_of(dims) != 0; v++) {
        std::size_t last = offsets[v];
        for (std::size_t d = 0; d < dims.size(); d++) last += static_cast<std::size_t>(dims[d] - 1) * strides[v][d];
        if (last >= count_of(values[v]->dims)) throw Refused("parts inside of a value", "one beyond its end", "export the model again");
    }
    Loops<2> loops({1}, {Dims{1}, Dims{1}});
    loops.dims.clear(), loops.strides.clear();
    for (std::size_t d = 0; d < dims.size(); d++) {
        if (dims[d] == 1) continue;
        const std::array<std::size_t, 2> stride{strides[0][d], strides[1][d]};
        const auto size = static_cast<std::size_t>(dims[d]);
        if (!loops.dims.empty() && loops.strides.back()[0] == stride[0] * size && loops.strides.back()[1] == stride[1] * size)
            loops.dims.back() *= dims[d], loops.strides.back() = stride;
        else
            loops.dims.push_back(dims[d]), loops.strides.push_back(stride);
    }
    if (loops.dims.empty()) loops.dims = {1}, loops.strides = {{1, 1}};
    if (loops.dims.size() > most_dims) throw Refused("at most 16 dimensions", "more", "run the graph on the provider cpu");
    return loops;
}

void add_moved(Plan &plan, ValueId from, ValueId to, const Dims &dims, const std::vector<std::size_t> &from_strides,
               const std::vector<std::size_t> &to_strides, std::size_t from_offset = 0, std::size_t to_offset = 0) {
    if (count_of(dims) == 0) return;
    Moved operation(strided(dims, {&plan.value(from), &plan.value(to)}, {from_strides, to_strides}, {from_offset, to_offset}), from_offset,
                    to_offset, bytes_of(plan.value(from).type));
    operation.is_shared = operation.loops.dims.size() > 1 && count_of(dims) >= worth_sharing;
    plan.add(std::move(operation), {from}, {to});
}

// The part of x at `begins` with the shape `dims`: a view if it is contiguous, else a copy.
void add_part(Plan &plan, const Node &node, std::size_t output, ValueId x, const Dims &begins, const Dims &dims) {
    const Dims whole = plan.value(x).dims;
    const auto strides = strides_of(whole);
    std::size_t offset = 0;
    bool is_cut = false, is_view = true;  // a view if every dimension before a cut one is 1
    for (std::size_t d = whole.size(); d-- > 0;) {
        if (begins[d] < 0 || dims[d] < 0 || begins[d] > whole[d] - dims[d]) refuse(node, "a part of its input", "more");
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
        if (to[d] == 0 && !node.integer("allowzero", 0)) to[d] = d < from.size() ? from[d] : -2;
        if (to[d] == -1) open = &to[d];
    }
    if (open) {
        *open = 1;
        const auto others = static_cast<std::int64_t>(count_of(to));
        if (others == 0) refuse(node, "a size that follows from the others", "one beside 0");
        *open = rest / others;
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
    std::vector<bool> goes(from.size(), false);
    if (!plan.has(node, 1))
        for (std::size_t d = 0; d < from.size(); d++) goes[d] = from[d] == 1;
    else if (count_of(plan.value(plan.input(node, 1)).dims) == 0)
        refuse(node, "an axis", "none");
    else
        for (const std::int64_t axis : plan.integers(plan.input(node, 1))) goes[axis_of(node, axis, from.size())] = true;
    Dims to;
    for (std::size_t d = 0; d < from.size(); d++) {
        if (!goes[d]) to.push_back(from[d]);
        if (goes[d] && from[d] != 1) refuse(node, "axes of size 1", std::to_string(from[d]));
    }
    plan.add_view(node, 0, x, to);
}

void build_unsqueeze(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims axes = plan.integers(plan.input(node, 1)), from = plan.value(x).dims;
    Dims to(from.size() + axes.size(), 0);
    for (const std::int64_t axis : axes) to[axis_of(node, axis, to.size())]++;
    if (std::any_of(to.begin(), to.end(), [](std::int64_t count) { return count > 1; })) refuse(node, "each axis once", "one twice");
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
    } else if (node.version < 18 ? whole[axis] % static_cast<std::int64_t>(parts) != 0 : node.integer("num_outputs", 0) != static_cast<std::int64_t>(parts)) {
        refuse(node, "sizes, or equal parts", "others");
    } else {
        const std::int64_t each = (whole[axis] + static_cast<std::int64_t>(parts) - 1) / static_cast<std::int64_t>(parts);
        for (std::int64_t left = whole[axis]; sizes.size() < parts; left -= each) sizes.push_back(std::min(each, left));
    }
    if (sizes.size() != parts) refuse(node, "a size for each output", "others");
    Dims begins(whole.size(), 0);
    for (std::size_t part = 0; part < parts; part++) {
        Dims dims = whole;
        dims[axis] = sizes[part];
        add_part(plan, node, part, x, begins, dims);
        begins[axis] += sizes[part];
    }
    if (begins[axis] != whole[axis]) refuse(node, "parts that are the whole", "others");
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
    std::vector<bool> is_cut(whole.size(), false);
    for (std::size_t i = 0; i < axes.size(); i++) {
        const std::size_t axis = axis_of(node, axes[i], whole.size());
        if (is_cut[axis]) refuse(node, "each axis once", "one twice");
        is_cut[axis] = true;
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
    const auto strides = strides_of(whole);
    Dims dims;
    std::vector<std::size_t> from;
    std::vector<bool> has(whole.size(), false);
    for (const std::int64_t axis : order) {
        const std::size_t at = axis_of(node, axis, whole.size());
        if (has[at]) refuse(node, "each dimension once", "one twice");
        dims.push_back(whole[at]), from.push_back(strides[at]), has[at] = true;
    }
    if (dims.size() != whole.size()) refuse(node, "an order of its dimensions", "another");
    const ValueId y = plan.add_output(node, 0, plan.value(x).type, dims);
    add_moved(plan, x, y, dims, from, strides_of(dims));
}

void build_expand(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Value from = plan.value(x);
    const Dims dims = broadcast(node, from.dims, plan.integers(plan.input(node, 1)));
    if (dims == from.dims) return plan.add_view(node, 0, x, dims);
    add_expanded(plan, x, plan.add_output(node, 0, from.type, dims));
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
    Loops<2> loops;                  // over the indices: in x, at entry 0 of the axis, and in y
    std::size_t entries, step, size;  // of x along the axis; elements from one to the next; bytes per element

    explicit GatheredElements(Loops<2> loops) : loops(std::move(loops)) {}
    void run(Run &run, int, int) const override {
        const char *x = run.at<char>(reads[0]);
        const std::int64_t *numbers = run.at<std::int64_t>(reads[1]);
        char *y = run.at<char>(writes[0]);
        const auto [x_step, y_step] = loops.strides.back();
        loops.rows(0, 1, [&, x_step = x_step, y_step = y_step](const std::array<std::size_t, 2> &at, std::size_t) {
            for (std::size_t i = 0; i < loops.inner(); i++) {
                const std::size_t of_y = at[1] + i * y_step;
                const std::int64_t given = numbers[of_y], number = given < 0 ? given + static_cast<std::int64_t>(entries) : given;
                if (number < 0 || number >= static_cast<std::int64_t>(entries))
                    run.error = "an index beyond the end of a table";
                else
                    std::memcpy(y + of_y * size, x + (at[0] + i * x_step + static_cast<std::size_t>(number) * step) * size, size);
            }
        });
    }
};

void build_gather_elements(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0), numbers = plan.input(node, 1);
    const Value of = plan.value(x), at = plan.value(numbers);
    const std::size_t axis = axis_of(node, node.integer("axis", 0), of.dims.size());
    if (at.dims.size() != of.dims.size() || at.type != Type::int64) refuse(node, "int64 indices of its rank", "others");
    for (std::size_t d = 0; d < of.dims.size(); d++)
        if (d != axis && at.dims[d] > of.dims[d]) refuse(node, "indices of its shape at most, but for the axis", "others");
    const ValueId y = plan.add_output(node, 0, of.type, at.dims);
    if (count_of(at.dims) == 0) return;
    auto of_x = strides_of(of.dims);
    const std::size_t step = std::exchange(of_x[axis], 0);
    GatheredElements operation(strided(at.dims, {&of, &at}, {of_x, strides_of(at.dims)}, {0, 0}));
    operation.entries = static_cast<std::size_t>(of.dims[axis]), operation.step = step, operation.size = bytes_of(of.type);
    plan.add(std::move(operation), {x, numbers}, {y});
}

// One number everywhere: that of the value that it reads, if it reads one.
struct Filled : Operation {
    std::size_t count;
    float number;

    void run(Run &run, int, int) const override {
        float *y = run.at<float>(writes[0]);
        std::fill(y, y + count, reads.begin() == reads.end() ? number : *run.at<float>(reads[0]));
    }
};

}  // namespace

void add_filled(Plan &plan, ValueId to, float number, ValueId from) {
    Filled operation;
    operation.count = count_of(plan.value(to).dims), operation.number = number;
    plan.add(std::move(operation), from == -1 ? std::vector<ValueId>{} : std::vector<ValueId>{from}, {to});
}

void add_copy(Plan &plan, ValueId from, ValueId to) {
    const Dims dims = plan.value(from).dims;
    add_moved(plan, from, to, dims, strides_of(dims), strides_of(dims));
}

void add_expanded(Plan &plan, ValueId from, ValueId to) {
    const Dims of = plan.value(from).dims, dims = plan.value(to).dims;
    auto strides = strides_of(of);
    for (std::size_t d = 0; d < of.size(); d++)
        if (of[d] == 1) strides[d] = 0;
    strides.insert(strides.begin(), dims.size() - of.size(), 0);
    add_moved(plan, from, to, dims, strides, strides_of(dims));
}

void add_copy_into(Plan &plan, ValueId from, ValueId to, const Dims &begins) {
    const Dims dims = plan.value(from).dims;
    const auto strides = strides_of(plan.value(to).dims);
    std::size_t offset = 0;
    for (std::size_t d = 0; d < dims.size(); d++) offset += static_cast<std::size_t>(begins[d]) * strides[d];
    add_moved(plan, from, to, dims, strides_of(dims), strides, 0, offset);
}

void add_copy_part(Plan &plan, ValueId from, ValueId to, const Dims &dims) {
    add_moved(plan, from, to, dims, strides_of(plan.value(from).dims), strides_of(plan.value(to).dims));
}

const Builders &copy_builders() {
    using Kind = Attribute::Kind;
    static const Builders builders{
        {"Concat", {build_concat, 13, 13, 1, any_number, {{"axis"}}}},
        {"Expand", {build_expand, 13, 13, 2, 2}},
        {"Gather", {build_gather, 13, 13, 2, 2, {{"axis"}}}},
        {"GatherElements", {build_gather_elements, 13, 13, 2, 2, {{"axis"}}}},
        {"Identity", {build_identity, 13, 25}},
        {"Reshape", {build_reshape, 13, 25, 2, 2, {{"allowzero"}}}},
        {"Slice", {build_slice, 13, 13, 3, 5}},
        {"Split", {build_split, 13, 18, 1, 2, {{"axis"}, {"num_outputs"}}, any_number}},
        {"Squeeze", {build_squeeze, 13, 25, 1, 2}},
        {"Transpose", {build_transpose, 13, 25, 1, 1, {{"perm", Kind::integers}}}},
        {"Unsqueeze", {build_unsqueeze, 13, 25, 2, 2}},
    };
    return builders;
}

}  // namespace t2r::provider
