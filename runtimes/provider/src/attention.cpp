// Softmax attention of a step to a cache, and caches that stay in one buffer from step to step.
#include <algorithm>
#include <cstring>

#include "builders.hpp"
#include "copies.hpp"
#include "fuse.hpp"
#include "kernels.hpp"
#include "loops.hpp"

namespace t2r::provider {

namespace {

constexpr std::size_t piece = 256;    // rows of a cache that one task reads; what a step computes does not depend on the threads
constexpr std::size_t at_a_time = 8;  // queries of a head whose scores are computed together

// The shapes of an attention, for each of the `heads` caches: q (queries, size), k (rows, size), v (rows, width). The rows are float32, or
// int8 with a scale for each.
struct Shapes {
    std::size_t heads, queries, size, width, added;  // added: rows of this step
    std::size_t before, after;                       // rows for which a cache has room, as an input and as an output
    bool is_in_place, has_scales;

    std::size_t rows(const Run &run) const { return is_in_place ? run.rows : before; }
    std::size_t pieces(const Run &run) const { return (rows(run) + added + piece - 1) / piece; }
    std::size_t most_pieces() const { return (after + piece - 1) / piece; }
};

// Softmax over each piece of a cache, whose rows it appends and copies before it reads them (Milakov and Gimelshein 2018, arXiv
// 1805.02867). Writes, by head, query and piece, the weighted sum of the values, the largest score, and the sum of the weights.
//
// Reads: q, and pairs of a cache and its new rows: of k, of v, and of the scales of both. Writes: three results by piece, scratch, the caches.
struct Pieces : Operation {
    Shapes of;
    float before_cap, cap;  // cap · tanh(before_cap · score); none if cap is 0

    void run(Run &run, int part, int parts) const override {
        const std::size_t pieces = of.pieces(run), rows = of.rows(run), tasks = of.heads * pieces;
        for (std::size_t task = begin_of(tasks, part, parts); task < begin_of(tasks, part + 1, parts); task++) {
            const std::size_t head = task / pieces, place = task % pieces, first = place * piece;
            const std::size_t last = std::min(first + piece, rows + of.added);
            const StoredRows k = rows_of(run, 0, head, first, last, of.size), v = rows_of(run, 1, head, first, last, of.width);
            for (std::size_t query = 0; query < of.queries; query += at_a_time)
                attend(run, k, v, head, query, std::min(at_a_time, of.queries - query), place, pieces);
        }
    }

    StoredRows rows_of(Run &run, std::size_t cache, std::size_t head, std::size_t first, std::size_t last, std::size_t size) const {
        const char *const numbers = append(run, cache, head, first, last, size * (of.has_scales ? 1 : sizeof(float)));
        const char *const scales = of.has_scales ? append(run, 2 + cache, head, first, last, sizeof(float)) : nullptr;
        return {numbers, reinterpret_cast<const float *>(scales), last - first, size};
    }

    // The rows [first, last), of `bytes` each, of a cache's output, copied from the cache and its new rows.
    const char *append(Run &run, std::size_t cache, std::size_t head, std::size_t first, std::size_t last, std::size_t bytes) const {
        char *const to = run.at<char>(writes[4 + cache]) + head * of.after * bytes;
        const std::size_t rows = of.rows(run), old = std::min(last, rows), from = std::max(first, rows);
        if (!of.is_in_place && first < old)
            std::memcpy(to + first * bytes, run.at<char>(reads[1 + 2 * cache]) + (head * of.before + first) * bytes, (old - first) * bytes);
        if (from < last)
            std::memcpy(to + from * bytes, run.at<char>(reads[2 + 2 * cache]) + (head * of.added + from - rows) * bytes, (last - from) * bytes);
        return to + first * bytes;
    }

    void attend(Run &run, const StoredRows &k, const StoredRows &v, std::size_t head, std::size_t query, std::size_t count, std::size_t place,
                std::size_t pieces) const {
        const Kernels &kernel = kernels();
        float scores[at_a_time * piece];
        const std::size_t row = head * of.queries + query, n = k.count;
        const float *const q = run.at<float>(reads[0]) + row * of.size;
        if (of.has_scales)
            kernel.row_scores(k, nullptr, nullptr, q, count, scores, n);
        else
            kernel.row_products(static_cast<const float *>(k.numbers), of.size, q, count, 0, n, scores, n);
        if (cap != 0) {
            kernel.binary(Binary::mul, scores, 1, &before_cap, 0, scores, count * n);
            kernel.unary(Unary::tanh, scores, scores, count * n);
            kernel.binary(Binary::mul, scores, 1, &cap, 0, scores, count * n);
        }
        float *const most = run.at<float>(writes[1]) + row * pieces + place, *const sum = run.at<float>(writes[2]) + row * pieces + place;
        for (std::size_t i = 0; i < count; i++) {
            most[i * pieces] = kernel.max(scores + i * n, n);
            kernel.binary(Binary::sub, scores + i * n, 1, most + i * pieces, 0, scores + i * n, n);
        }
        kernel.unary(Unary::exp, scores, scores, count * n);
        float *const values = run.at<float>(writes[0]) + (row * pieces + place) * of.width;
        for (std::size_t i = 0; i < count; i++) sum[i * pieces] = kernel.sum(scores + i * n, n);
        if (pieces == 1) return add(scores, v, count, values);
        float *const there = run.at<float>(writes[3]) + (head * pieces + place) * at_a_time * of.width;
        add(scores, v, count, there);
        for (std::size_t i = 0; i < count; i++)
            std::memcpy(values + i * pieces * of.width, there + i * of.width, of.width * sizeof(float));
    }

    // y (count, width) = weights · v
    void add(const float *weights, const StoredRows &v, std::size_t count, float *y) const {
        if (!of.has_scales) return kernels().product(weights, static_cast<const float *>(v.numbers), y, count, v.count, of.width, 0, of.width);
        std::fill(y, y + count * of.width, 0.0f);
        kernels().add_rows(v, weights, count, v.count, y, 0, of.width);
    }
};

// One softmax from those of the pieces.
struct Joined : Operation {
    Shapes of;

    void run(Run &run, int part, int parts) const override {
        const Kernels &kernel = kernels();
        const std::size_t pieces = of.pieces(run), rows = of.heads * of.queries;
        for (std::size_t row = begin_of(rows, part, parts); row < begin_of(rows, part + 1, parts); row++) {
            const float *values = run.at<float>(reads[0]) + row * pieces * of.width, *sums = run.at<float>(reads[2]) + row * pieces;
            float *shares = run.at<float>(reads[1]) + row * pieces, *y = run.at<float>(writes[0]) + row * of.width, whole;
            const float most = kernel.max(shares, pieces);
            kernel.binary(Binary::sub, shares, 1, &most, 0, shares, pieces);
            kernel.unary(Unary::exp, shares, shares, pieces);
            kernel.product(shares, sums, &whole, 1, pieces, 1, 0, 1);
            kernel.product(shares, values, y, 1, pieces, of.width, 0, of.width);
            kernel.binary(Binary::div, y, 1, &whole, 0, y, of.width);
        }
    }
};

// Inputs: q, and a cache and its new rows of k, then of its scales if it has any; the same of v. Outputs: the result, and the caches in this
// order.
void build_attention(Plan &plan, const Node &node) {
    const bool has_scales = node.inputs.size() == 9;
    const std::vector<std::size_t> order = has_scales ? std::vector<std::size_t>{0, 1, 2, 5, 6, 3, 4, 7, 8} : std::vector<std::size_t>{0, 1, 2, 3, 4};
    std::vector<ValueId> in;
    std::vector<Dims> dims;
    for (std::size_t i = 0; i < order.size(); i++) {
        in.push_back(plan.input(node, order[i])), dims.push_back(plan.value(in[i]).dims);
        const bool is_cache = i % 2 == 1, are_numbers = has_scales && i > 0 && i < 5;  // a cache may be empty
        if (dims[i].size() != 4 || plan.value(in[i]).type != (are_numbers ? Type::int8 : Type::float32) || dims[i][0] != dims[0][0] ||
            dims[i][1] != dims[0][1] || (count_of(dims[i]) == 0 && !(is_cache && dims[i][2] == 0)))
            return build_parts(plan, node);
        if (i > 2 && dims[i][2] != dims[2 - i % 2][2]) return build_parts(plan, node);
        if (i > 4 && dims[i][3] != 1) return build_parts(plan, node);
    }
    if (dims[0][3] != dims[1][3] || dims[1][3] != dims[2][3] || dims[3][3] != dims[4][3]) return build_parts(plan, node);
    const auto size = [&](std::size_t of, std::size_t axis) { return static_cast<std::size_t>(dims[of][axis]); };
    Shapes of{size(0, 0) * size(0, 1), size(0, 2), size(0, 3), size(3, 3), size(2, 2), size(1, 2), size(1, 2), plan.are_caches_in_place(), has_scales};
    if (!of.is_in_place) of.after += of.added;
    std::vector<ValueId> caches;
    for (std::size_t i = 1; i < in.size(); i += 2) {
        Dims to = dims[i];
        to[2] = static_cast<std::int64_t>(of.after);
        const std::size_t output = (order[i] + 1) / 2;
        caches.push_back(plan.add_output(node, output, plan.value(in[i]).type, to));
        if (of.is_in_place) plan.keep_in_place(in[i], caches.back(), of.added, node.outputs[output]);
    }
    const std::size_t parts = of.heads * of.queries * of.most_pieces();
    const auto scratch = [&](std::size_t rows, std::size_t floats) { return plan.add_scratch({of.heads, rows, of.most_pieces(), floats, sizeof(float)}); };
    const ValueId values = scratch(of.queries, of.width), most = scratch(of.queries, 1), sums = scratch(of.queries, 1);
    const ValueId there = scratch(at_a_time, of.width);
    Pieces pieces;
    pieces.of = of, pieces.before_cap = node.real("before_cap", 0), pieces.cap = node.real("cap", 0);
    pieces.is_shared = of.heads * of.queries * of.after * (of.size + of.width) >= 2 * worth_sharing;
    std::vector<ValueId> written{values, most, sums, there};
    written.insert(written.end(), caches.begin(), caches.end());
    plan.add(std::move(pieces), in, written);
    Joined joined;
    joined.of = of, joined.is_shared = parts * of.width >= 2 * worth_sharing;
    Dims result = dims[0];
    result[3] = dims[3][3];
    plan.add(std::move(joined), {values, most, sums}, {plan.add_output(node, 0, Type::float32, result)});
}

// A cache and its new rows. In place, what reads them together gets a copy, of the rows that there are now.
void build_append(Plan &plan, const Node &node) {
    if (!plan.are_caches_in_place()) return build_parts(plan, node);
    const ValueId past = plan.input(node, 0), added = plan.input(node, 1);
    Dims room = plan.value(past).dims, dims = plan.value(added).dims;
    const std::int64_t rows = plan.rows_now(), more = dims.size() == 4 ? dims[2] : 0;
    if (room.size() != 4 || dims.size() != 4 || plan.value(past).type != plan.value(added).type) refuse(node, "a cache and rows of it", "others");
    Dims together = room;
    together[2] = rows + more;
    const ValueId all = plan.add_output(node, 0, plan.value(past).type, together), kept = plan.add_output({}, 0, plan.value(past).type, room);
    plan.keep_in_place(past, kept, static_cast<std::size_t>(more), node.outputs[0]);
    together[2] = rows;
    add_copy_part(plan, past, all, together);
    add_copy_into(plan, added, all, {0, 0, rows, 0});
    add_copy_into(plan, added, kept, {0, 0, rows, 0});
}

}  // namespace

const Builders &attention_builders() {
    static const Builders builders{{append, {build_append}}, {attention, {build_attention}}};
    return builders;
}

}  // namespace t2r::provider
