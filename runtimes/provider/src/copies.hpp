// Copies, for what a view cannot express, and constants.
#pragma once

#include "plan.hpp"

namespace t2r::provider {

// An axis of a value of `rank` dimensions, counted from its end if negative; throws Refused for another.
std::size_t axis_of(const Node &node, std::int64_t axis, std::size_t rank);

// Copies all of `from` to `to`, in order.
void add_copy(Plan &plan, ValueId from, ValueId to);

// Copies `from` to `to`, whose shape it broadcasts to.
void add_expanded(Plan &plan, ValueId from, ValueId to);

// Copies all of `from` into the part of `to` at `begins`.
void add_copy_into(Plan &plan, ValueId from, ValueId to, const Dims &begins);

// Copies the part of `from` with the shape `dims` at its beginning to the same place of `to`.
void add_copy_part(Plan &plan, ValueId from, ValueId to, const Dims &dims);

// Fills `to`, which is float32, with a number; with the one number of the value `from`, if that is not -1.
void add_filled(Plan &plan, ValueId to, float number, ValueId from = -1);

}  // namespace t2r::provider
