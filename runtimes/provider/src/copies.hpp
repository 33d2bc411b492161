// Values moved as they are: of what views cannot say.
#pragma once

#include "plan.hpp"

namespace t2r::provider {

// A copy of all of `from`, in order.
void add_copy(Plan &plan, ValueId from, ValueId to);

// A copy of all of `from` as the part of `to` from `begins`.
void add_copy_into(Plan &plan, ValueId from, ValueId to, const Dims &begins);

}  // namespace t2r::provider
