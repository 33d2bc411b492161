// A window's keys or values in a step: the oldest row leaves, a new one enters, and all are read once for all queries of their head.
// The rows are float32, or int8 with a scale for each. They move by one in a step, or are in place (plan.hpp): then none moves, and the
// oldest may be any of them.
#include <algorithm>
#include <cstring>

#include "builders.hpp"
#include "fuse.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

constexpr std::size_t piece = 32;    // rows that one task scores, in all heads of a sequence: the rotations stay in the cache
constexpr std::size_t columns = 32;  // that one task sums

// The shapes of a window: q or weights (batch, heads, queries, ·), rows (batch, heads, length, size).
struct Window {
    std::size_t batch, heads, queries, length, size;
    bool has_scales, is_in_place;

    std::size_t bytes() const { return size * of_number(); }  // of a row
    std::size_t of_number() const { return has_scales ? 1 : sizeof(float); }
    std::size_t pieces() const { return (length + piece - 1) / piece; }

    // Calls `read` with the rows [first, last) of a head after the step, by parts that are contiguous in memory, and the number of the first
    // row of each. `reads` begins with the cache, its new row, and both scales if there are any.
    template <class Read> void each_part(const Run &run, const Ids &reads, std::size_t head, std::size_t first, std::size_t last, Read read) const {
        const std::size_t second = is_in_place ? run.turned % length + 1 : 1;  // the place of the first row after the step
        for (std::size_t count; first < last; first += count) {
            const bool is_new = first == length - 1;
            const std::size_t place = (second + first) % length, at = is_new ? head : head * length + place;
            count = is_new ? 1 : std::min(std::min(last, length - 1) - first, length - place);
            const float *const scales = has_scales ? run.at<float>(reads[is_new ? 3 : 2]) + at : nullptr;
            read(StoredRows{run.at<char>(reads[is_new ? 1 : 0]) + at * bytes(), scales, count, size}, first);
        }
    }

    // Writes the rows [first, last) of a head after the step, unless they are in place. `writes` begins with the cache, and its scales if
    // there are any.
    void shift(const Run &run, const Ids &reads, const Ids &writes, std::size_t head, std::size_t first, std::size_t last) const {
        if (is_in_place) return;
        const std::size_t begin = head * length;
        each_part(run, reads, head, first, last, [&](const StoredRows &rows, std::size_t at) {
            std::memcpy(run.at<char>(writes[0]) + (begin + at) * bytes(), rows.numbers, rows.count * bytes());
            if (has_scales) std::memcpy(run.at<float>(writes[1]) + begin + at, rows.scales, rows.count * sizeof(float));
        });
    }
};

// Reads: the cache, its new row, both scales (if any), q, and both parts of the rotation (if any). Writes: the cache and its scales, unless
// they are in place, and the scores.
struct WindowScores : Operation {
    Window of;
    bool is_rotated;

    void run(Run &run, int part, int parts) const override {
        const std::size_t pieces = of.pieces(), tasks = of.batch * pieces;
        for (std::size_t task = begin_of(tasks, part, parts); task < begin_of(tasks, part + 1, parts); task++) {
            const std::size_t first = task % pieces * piece, last = std::min(first + piece, of.length), heads = task / pieces * of.heads;
            for (std::size_t head = heads; head < heads + of.heads; head++) score(run, head, first, last);
        }
    }

    void score(Run &run, std::size_t head, std::size_t first, std::size_t last) const {
        const std::size_t scales = of.has_scales ? 2 : 0;
        of.shift(run, reads, writes, head, first, last);
        of.each_part(run, reads, head, first, last, [&](const StoredRows &rows, std::size_t at) {
            const auto turned = [&](std::size_t read) { return is_rotated ? run.at<float>(reads[read + scales]) + at * of.size : nullptr; };
            kernels().row_scores(rows, turned(3), turned(4), run.at<float>(reads[2 + scales]) + head * of.queries * of.size, of.queries,
                                 run.at<float>(writes.back()) + head * of.queries * of.length + at, of.length);
        });
    }
};

// Reads: the cache, its new row, both scales (if any), and the weights. Writes: the cache and its scales, unless they are in place, and the
// weighted sum of its rows.
struct WindowSum : Operation {
    Window of;

    void run(Run &run, int part, int parts) const override {
        const std::size_t groups = (of.size + columns - 1) / columns, tasks = of.batch * of.heads * groups, end = begin_of(tasks, part + 1, parts);
        for (std::size_t task = begin_of(tasks, part, parts), next; task < end; task = next) {
            const std::size_t head = task / groups, group = task % groups;
            next = std::min(end, (head + 1) * groups);
            const std::size_t last = group + next - task;  // groups of columns of one head
            of.shift(run, reads, writes, head, of.length * group / groups, of.length * last / groups);
            sum(run, head, group * columns, std::min(last * columns, of.size));
        }
    }

    void sum(Run &run, std::size_t head, std::size_t begin, std::size_t end) const {
        const float *const weights = run.at<float>(reads.back()) + head * of.queries * of.length;
        float *const y = run.at<float>(writes.back()) + head * of.queries * of.size;
        for (std::size_t query = 0; query < of.queries; query++) std::fill(y + query * of.size + begin, y + query * of.size + end, 0.0f);
        for (std::size_t first = 0; first < of.length; first += piece) {
            const std::size_t last = std::min(first + piece, of.length);
            of.each_part(run, reads, head, first, last, [&](const StoredRows &rows, std::size_t at) {
                kernels().add_rows(rows, weights + at, of.queries, of.length, y, begin, end);
            });
        }
    }
};

// Reads: a window. Writes: its oldest row.
struct WindowOldest : Operation {
    std::size_t heads, length, bytes;

    void run(Run &run, int, int) const override {
        const char *const from = run.at<char>(reads[0]) + run.turned % length * bytes;
        for (std::size_t head = 0; head < heads; head++) std::memcpy(run.at<char>(writes[0]) + head * bytes, from + head * length * bytes, bytes);
    }
};

// Adds the values that a node reads and sets their shapes: its inputs are q or the weights (batch, heads, queries, `last`), the cache, its
// new row, the sizes of the split that takes the oldest row, and the same of the scales, if there are any. False if the shapes are not a
// window's.
bool reads_window(const Plan &plan, const Node &node, std::size_t Window::*last, Window &of, std::vector<ValueId> &reads) {
    of.has_scales = plan.has(node, 4), of.is_in_place = plan.are_windows_in_place();
    for (std::size_t at = 1; at < (of.has_scales ? 7 : 4); at += 3) {
        const bool are_numbers = at == 1;
        const ValueId past = plan.input(node, at), added = plan.input(node, at + 1), sizes = plan.input(node, at + 2);
        const Type type = are_numbers && of.has_scales ? Type::int8 : Type::float32;
        Dims dims = plan.value(past).dims;
        if (dims.size() != 4 || count_of(dims) == 0 || plan.value(past).type != type || plan.value(added).type != type) return false;
        const auto size = [&](std::size_t axis) { return static_cast<std::size_t>(dims[axis]); };
        if (are_numbers)
            of.batch = size(0), of.heads = size(1), of.length = size(2), of.size = size(3);
        else if (size(0) != of.batch || size(1) != of.heads || size(2) != of.length || size(3) != 1)
            return false;
        if (!plan.is_known(sizes) || plan.integers(sizes) != Dims{1, dims[2] - 1}) return false;
        dims[2] = 1;
        if (plan.value(added).dims != dims) return false;
        reads.push_back(past), reads.push_back(added);
    }
    const ValueId by_head = plan.input(node, 0);
    const Dims &dims = plan.value(by_head).dims;
    const auto is = [&](std::size_t axis, std::size_t size) { return static_cast<std::size_t>(dims[axis]) == size; };
    if (plan.value(by_head).type != Type::float32 || dims.size() != 4 || !is(0, of.batch) || !is(1, of.heads) || dims[2] == 0 || !is(3, of.*last))
        return false;
    of.queries = static_cast<std::size_t>(dims[2]);
    reads.push_back(by_head);
    return true;
}

// The cache and its scales after the step, unless they are in place, and a result (batch, heads, queries, last).
std::vector<ValueId> outputs(Plan &plan, const Node &node, const Window &of, const std::vector<ValueId> &reads, std::size_t last) {
    std::vector<ValueId> written;
    for (std::size_t i = 0; i < (of.has_scales ? 2 : 1); i++) {
        const ValueId past = reads[2 * i], present = plan.add_output(node, i, plan.value(past).type, plan.value(past).dims);
        if (of.is_in_place)
            plan.turn_in_place(past, present, reads[2 * i + 1]);
        else
            written.push_back(present);
    }
    Dims result;
    for (const std::size_t size : {of.batch, of.heads, of.queries, last}) result.push_back(static_cast<std::int64_t>(size));
    written.push_back(plan.add_output(node, 2, Type::float32, result));
    return written;
}

bool is_worth_sharing(const Window &of) { return of.batch * of.heads * of.length * of.size >= worth_sharing; }

// Inputs: q, the rows, and the rotation of each row and the sizes of its halves (or none). Outputs: the cache, its scales, the scores.
void build_scores(Plan &plan, const Node &node) {
    WindowScores operation;
    Window &of = operation.of;
    std::vector<ValueId> reads;
    if (!reads_window(plan, node, &Window::size, of, reads)) return build_parts(plan, node);
    operation.is_rotated = plan.has(node, 7);
    if (operation.is_rotated) {
        const auto half = static_cast<std::int64_t>(of.size / 2), axis = node.integer("axis", 0);
        const ValueId sizes = plan.input(node, 9);
        if (of.size % 2 || (axis != -1 && axis != 3) || !plan.is_known(sizes) || plan.integers(sizes) != Dims{half, half}) return build_parts(plan, node);
        for (const std::size_t at : {7, 8}) {
            const ValueId turned = plan.input(node, at);
            const Dims dims = plan.value(turned).dims;
            const auto rank = dims.size();
            if (plan.value(turned).type != Type::float32 || rank < 2 || rank > 4 || count_of(dims) != of.length * of.size ||
                static_cast<std::size_t>(dims[rank - 1]) != of.size || static_cast<std::size_t>(dims[rank - 2]) != of.length)
                return build_parts(plan, node);
            reads.push_back(turned);
        }
    }
    operation.is_shared = of.batch * of.pieces() > 1 && is_worth_sharing(of);
    plan.add(operation, reads, outputs(plan, node, of, reads, of.length));
}

// Inputs: the weights and the rows. Outputs: the cache, its scales, the sum.
void build_sum(Plan &plan, const Node &node) {
    WindowSum operation;
    Window &of = operation.of;
    std::vector<ValueId> reads;
    if (!reads_window(plan, node, &Window::length, of, reads)) return build_parts(plan, node);
    operation.is_shared = of.batch * of.heads * of.size > columns && is_worth_sharing(of);
    plan.add(operation, reads, outputs(plan, node, of, reads, of.size));
}

// Inputs: a cache and the sizes of the split that takes its oldest row, the output.
void build_oldest(Plan &plan, const Node &node) {
    const ValueId past = plan.input(node, 0), sizes = plan.input(node, 1);
    Dims dims = plan.value(past).dims;
    if (dims.size() != 4 || dims[2] == 0 || !plan.is_known(sizes) || plan.integers(sizes) != Dims{1, dims[2] - 1}) return build_parts(plan, node);
    WindowOldest operation;
    operation.heads = static_cast<std::size_t>(dims[0] * dims[1]), operation.length = static_cast<std::size_t>(dims[2]);
    operation.bytes = static_cast<std::size_t>(dims[3]) * bytes_of(plan.value(past).type);
    dims[2] = 1;
    plan.add(operation, {past}, {plan.add_output(node, 0, plan.value(past).type, dims)});
}

}  // namespace

const Builders &window_builders() {
    static const Builders builders{{window_scores, {build_scores}}, {window_sum, {build_sum}}, {window_oldest, {build_oldest}}};
    return builders;
}

}  // namespace t2r::provider
