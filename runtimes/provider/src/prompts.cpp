// Operators of graphs over many tokens that step graphs do not need: CumSum, Pad and Scan.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "builders.hpp"
#include "copies.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

// Pads x with a constant; the pads are known at planning time.
void build_pad(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims whole = plan.value(x).dims, given = plan.integers(plan.input(node, 1));
    constexpr std::int64_t most = std::int64_t{1} << 32;
    Dims axes(whole.size());
    std::iota(axes.begin(), axes.end(), 0);
    if (plan.has(node, 3)) axes = plan.integers(plan.input(node, 3));
    const bool are_sizes = std::all_of(given.begin(), given.end(), [](std::int64_t pad) { return pad >= 0 && pad <= most; });
    if (given.size() != 2 * axes.size() || axes.size() > whole.size() || !are_sizes)
        refuse(node, "two numbers for each axis, of 0 to 2^32", "others");
    Dims pads(2 * whole.size());
    for (std::size_t i = 0; i < axes.size(); i++) {
        const std::size_t axis = axis_of(node, axes[i], whole.size());
        pads[axis] += given[i], pads[whole.size() + axis] += given[axes.size() + i];
    }
    require_float32(plan, node, {x});
    const ValueId number = plan.has(node, 2) ? plan.input(node, 2) : -1;
    if (number != -1 && (plan.value(number).type != Type::float32 || count_of(plan.value(number).dims) != 1))
        refuse(node, "one float32 number around it", "others");
    Dims dims = whole;
    for (std::size_t d = 0; d < whole.size(); d++) dims[d] += pads[d] + pads[whole.size() + d];
    if (dims == whole) return plan.add_view(node, 0, x, dims);
    const ValueId y = plan.add_output(node, 0, Type::float32, dims);
    add_filled(plan, y, 0, number);
    add_copy_into(plan, x, y, Dims(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(whole.size())));
}

// Cumulative sums along an axis, inclusive or (gives_before) exclusive.
struct Sums : Operation {
    std::size_t outer, pieces, inner;
    bool gives_before;

    void run(Run &run, int part, int parts) const override {
        for (std::size_t o = begin_of(outer, part, parts); o < begin_of(outer, part + 1, parts); o++) {
            const float *x = run.at<float>(reads[0]) + o * pieces * inner;
            float *y = run.at<float>(writes[0]) + o * pieces * inner;
            if (gives_before)
                std::fill(y, y + inner, 0.0f);
            else
                std::memcpy(y, x, inner * sizeof(float)), x += inner;
            for (std::size_t piece = 1; piece < pieces; piece++, x += inner, y += inner)
                kernels().binary(Binary::add, y, 1, x, 1, y + inner, inner);
        }
    }
};

void build_sums(Plan &plan, const Node &node) {
    const ValueId x = plan.input(node, 0);
    const Dims dims = plan.value(x).dims, given = plan.integers(plan.input(node, 1));
    const auto rank = static_cast<std::int64_t>(dims.size());
    const std::int64_t axis = given.size() != 1 ? rank : given[0] < 0 ? given[0] + rank : given[0];
    require_float32(plan, node, {x});
    if (axis < 0 || axis >= rank) refuse(node, "an axis of its input", "another");
    const auto at = dims.begin() + static_cast<std::ptrdiff_t>(axis);
    Sums operation;
    operation.outer = *at ? count_of(Dims(dims.begin(), at)) : 0, operation.pieces = static_cast<std::size_t>(*at);
    operation.inner = count_of(Dims(at + 1, dims.end()));
    operation.gives_before = node.integer("exclusive", 0) != 0;
    operation.is_shared = operation.outer > 1 && count_of(dims) >= worth_sharing;
    plan.add(std::move(operation), {x}, {plan.add_output(node, 0, Type::float32, dims)});
}

// state = kept · state + more for each piece along an axis. Writes the last state, and the state before or after each piece. The axes
// of the state before that axis are `outer`; those after it are `rows` rows of `columns`. `kept` has one number per row, or is a matrix.
struct Recurrence : Operation {
    std::size_t outer, pieces, rows, columns;
    bool gives_before, is_product;

    // after = kept · before + more; of one memory unless kept is a matrix
    void advance(const float *before, const float *kept, const float *more, float *after) const {
        const Kernels &k = kernels();
        if (is_product) k.product(kept, before, after, rows, rows, columns, 0, columns);
        if (!is_product && columns == 1) k.binary(Binary::mul, before, 1, kept, 1, after, rows);
        for (std::size_t row = 0; row < rows && !is_product && columns != 1; row++)
            k.binary(Binary::mul, before + row * columns, 1, kept + row, 0, after + row * columns, columns);
        k.binary(Binary::add, after, 1, more, 1, after, rows * columns);
    }
    void run(Run &run, int part, int parts) const override {
        const std::size_t size = rows * columns, of_kept = is_product ? rows * rows : rows;
        for (std::size_t o = begin_of(outer, part, parts); o < begin_of(outer, part + 1, parts); o++) {
            const float *start = run.at<float>(reads[0]) + o * size, *kept = run.at<float>(reads[1]) + o * pieces * of_kept;
            const float *more = run.at<float>(reads[2]) + o * pieces * size;
            float *state = run.at<float>(writes[0]) + o * size, *each = run.at<float>(writes[1]) + o * pieces * size;
            std::memcpy(state, start, size * sizeof(float));
            for (std::size_t piece = 0; piece < pieces; piece++, kept += of_kept, more += size, each += size) {
                if (gives_before) std::memcpy(each, state, size * sizeof(float)), advance(each, kept, more, state);
                if (!gives_before) advance(state, kept, more, each), std::memcpy(state, each, size * sizeof(float));
            }
        }
    }
};

const Node *node_of(const Graph &body, const std::string &op) {
    const auto found = std::find_if(body.nodes.begin(), body.nodes.end(), [&](const Node &node) { return node.op == op; });
    return found == body.nodes.end() ? nullptr : &*found;
}

bool reads_both(const Node &node, const std::string &a, const std::string &b) {
    return node.inputs == std::vector<std::string>{a, b} || node.inputs == std::vector<std::string>{b, a};
}

// Of a Scan with the body state, kept, more -> kept · state + more, and that or the state: whether the state, and whether the product
// is of matrices. Refuses other bodies.
struct Body {
    bool gives_before, is_product;
};

Body body_of(const Node &node) {
    if (node.body && node.body->nodes.size() == 3 && node.body->inputs.size() == 3 && node.body->outputs.size() == 2) {
        const Graph &body = *node.body;
        const Node *scaled = node_of(body, "Mul"), *matrix = node_of(body, "MatMul"), *sum = node_of(body, "Add"), *copy = node_of(body, "Identity");
        const Node *const product = scaled ? scaled : matrix;
        const std::string &state = body.inputs[0], &kept = body.inputs[1], &after = body.outputs[0];
        const bool is_kept = scaled ? reads_both(*scaled, state, kept) : matrix && matrix->inputs == std::vector<std::string>{kept, state};
        if (is_kept && sum && copy && reads_both(*sum, product->outputs[0], body.inputs[2]) && sum->outputs[0] == after &&
            copy->outputs[0] == body.outputs[1] && (copy->inputs[0] == state || copy->inputs[0] == after))
            return {copy->inputs[0] == state, !scaled};
    }
    refuse(node, "a body that multiplies a state by a factor or a matrix and adds to it", "another");
}

Dims list_of(const Node &node, const char *name) {
    const auto found = node.attributes.find(name);
    return found == node.attributes.end() ? Dims{} : found->second.integers;
}

// The axis of the pieces, the same of all that a Scan reads and writes.
std::size_t axis_of_pieces(const Node &node, std::size_t rank) {
    const Dims in = list_of(node, "scan_input_axes"), out = list_of(node, "scan_output_axes");
    const std::int64_t axis = in.empty() ? 0 : in[0];
    for (const char *name : {"scan_input_directions", "scan_output_directions"})
        for (const std::int64_t direction : list_of(node, name))
            if (direction != 0) refuse(node, "pieces in order", "others");
    if (axis < 0 || axis >= static_cast<std::int64_t>(rank) || in != Dims(in.size(), axis) || out != Dims(out.size(), axis) || in.empty() != out.empty())
        refuse(node, "one axis of all", "others");
    return static_cast<std::size_t>(axis);
}

void build_scan(Plan &plan, const Node &node) {
    const Body body = body_of(node);
    const ValueId start = plan.input(node, 0), kept = plan.input(node, 1), more = plan.input(node, 2);
    require_float32(plan, node, {start, kept, more});
    const Dims state = plan.value(start).dims, factors = plan.value(kept).dims, added = plan.value(more).dims;
    const std::size_t axis = axis_of_pieces(node, added.size());
    const auto at = static_cast<std::ptrdiff_t>(axis);
    Dims of_piece = added, of_factor = factors;
    of_piece.erase(of_piece.begin() + at);
    if (of_factor.size() != added.size() || factors[axis] != added[axis]) refuse(node, "a factor for each piece", "others");
    of_factor.erase(of_factor.begin() + at);
    std::size_t same = 0;  // leading dimensions of a factor that equal the state's; the rest are 1
    while (same < std::min(of_factor.size(), state.size()) && of_factor[same] == state[same]) same++;
    if (body.is_product) {  // a matrix for each of the state's
        same = state.empty() ? 0 : state.size() - 1;
        Dims matrices = state;
        if (same) matrices.back() = matrices[same - 1];
        if (of_piece != state || state.size() != axis + 2 || of_factor != matrices) refuse(node, "a square matrix for each of a state", "others");
    } else if (of_piece != state || same < axis ||
               std::any_of(of_factor.begin() + static_cast<std::ptrdiff_t>(same), of_factor.end(), [](std::int64_t dim) { return dim != 1; })) {
        refuse(node, "a factor for all of a state or for its rows", "others");
    }
    const auto first_column = state.begin() + static_cast<std::ptrdiff_t>(same);
    Recurrence operation;
    operation.gives_before = body.gives_before, operation.is_product = body.is_product;
    operation.outer = count_of(Dims(state.begin(), state.begin() + at)), operation.pieces = static_cast<std::size_t>(added[axis]);
    operation.rows = count_of(Dims(state.begin() + at, first_column)), operation.columns = count_of(Dims(first_column, state.end()));
    operation.is_shared = operation.outer > 1 && count_of(added) >= worth_sharing;
    const ValueId last = plan.add_output(node, 0, Type::float32, state), each = plan.add_output(node, 1, Type::float32, added);
    plan.add(std::move(operation), {start, kept, more}, {last, each});
}

}  // namespace

const Builders &prompt_builders() {
    using Kind = Attribute::Kind;
    static const Builders builders{
        {"CumSum", {build_sums, 11, 14, 2, 2, {{"exclusive", Kind::integer, {0, 1}}, {"reverse", Kind::integer, {0}}}}},
        {"Pad", {build_pad, 13, 25, 2, 4, {{"mode", Kind::text, {}, {"constant"}}}}},
        {"Scan", {build_scan, 11, 25, 3, 3,
                  {{"body", Kind::graph}, {"num_scan_inputs", Kind::integer, {2}},
                   {"scan_input_axes", Kind::integers}, {"scan_output_axes", Kind::integers},
                   {"scan_input_directions", Kind::integers}, {"scan_output_directions", Kind::integers}}, 2}},
    };
    return builders;
}

}  // namespace t2r::provider
