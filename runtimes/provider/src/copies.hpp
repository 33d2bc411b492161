// Copies, for what a view cannot express.
#pragma once

#include "plan.hpp"

namespace t2r::provider {

// Copies all of `from` to `to`, in order.
void add_copy(Plan &plan, ValueId from, ValueId to);

// Copies all of `from` into the part of `to` at `begins`.
void add_copy_into(Plan &plan, ValueId from, ValueId to, const Dims &begins);

}  // namespace t2r::provider
