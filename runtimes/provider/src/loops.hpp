// Broadcast loops; adjacent dimensions are merged where the strides of all operands allow it.
#pragma once

#include <array>

#include "plan.hpp"

namespace t2r::provider {

inline constexpr std::size_t worth_sharing = 1 << 14;  // elements; with fewer, threads would wait longer than they work

inline constexpr std::size_t most_dims = 16;

inline constexpr std::size_t most_places = 1 << 24;  // offsets that an operation keeps

// The broadcast shape. Throws Refused if the shapes are incompatible.
Dims broadcast(const Node &node, const Dims &a, const Dims &b);

// Strides, in elements, of n operands over the dimensions of the result.
template <std::size_t n> struct Loops {
    Dims dims;                                // outer ones first; the last is the inner loop
    std::vector<std::array<std::size_t, n>> strides;

    Loops(const Dims &result, const std::array<Dims, n> &operands) {
        Dims whole = result.empty() ? Dims{1} : result;
        std::array<std::vector<std::size_t>, n> each;
        for (std::size_t o = 0; o < n; o++) {
            each[o].assign(whole.size(), 0);
            std::size_t stride = 1;
            if (operands[o].size() > whole.size()) throw Refused("operands of the result's rank at most", "more", "export the model again");
            for (std::size_t back = 1; back <= operands[o].size(); back++) {
                const std::int64_t size = operands[o][operands[o].size() - back];
                if (size != 1 && size != whole[whole.size() - back])
                    throw Refused("operands of the result's dimensions, or of 1", "others", "export the model again");
                if (size != 1) each[o][whole.size() - back] = stride;
                stride *= static_cast<std::size_t>(size);
            }
        }
        for (std::size_t d = 0; d < whole.size(); d++) {
            if (whole[d] == 1 && whole.size() > 1) continue;
            std::array<std::size_t, n> stride;
            bool runs_on = !dims.empty();
            for (std::size_t o = 0; o < n; o++) {
                stride[o] = each[o][d];
                runs_on = runs_on && strides.back()[o] == stride[o] * static_cast<std::size_t>(whole[d]);
            }
            if (runs_on)
                dims.back() *= whole[d], strides.back() = stride;
            else
                dims.push_back(whole[d]), strides.push_back(stride);
        }
        if (dims.empty()) dims = {1}, strides = {std::array<std::size_t, n>{}};
    }

    std::size_t inner() const { return static_cast<std::size_t>(dims.back()); }

    // Calls each(offsets of the operands, offset of the result's row) for the rows of part `part` of `parts`.
    template <class Each> void rows(int part, int parts, Each each) const {
        std::size_t count = 1;
        for (std::size_t d = 0; d + 1 < dims.size(); d++) count *= static_cast<std::size_t>(dims[d]);
        const std::size_t first = begin_of(count, part, parts), last = begin_of(count, part + 1, parts);
        if (first == last) return;
        std::array<std::size_t, n> at{};
        std::array<std::size_t, most_dims> index{};
        std::size_t rest = first;
        for (std::size_t d = dims.size() - 1; d-- > 0;) {
            const auto size = static_cast<std::size_t>(dims[d]);
            if (d < index.size()) index[d] = rest % size;
            rest /= size;
            for (std::size_t o = 0; o < n; o++) at[o] += index[d] * strides[d][o];
        }
        for (std::size_t row = first; row < last; row++) {
            each(at, row * inner());
            for (std::size_t d = dims.size() - 1; d-- > 0;) {
                for (std::size_t o = 0; o < n; o++) at[o] += strides[d][o];
                if (++index[d] < static_cast<std::size_t>(dims[d])) break;
                for (std::size_t o = 0; o < n; o++) at[o] -= index[d] * strides[d][o];
                index[d] = 0;
            }
        }
    }
};

}  // namespace t2r::provider
