// Tables of operator builders, each defined in the source file of its operators.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

#include "plan.hpp"

namespace t2r::provider {

using Builders = std::map<std::string, Builder>;

// Throws Refused unless all values are float32.
void require_float32(const Plan &plan, const Node &node, std::initializer_list<ValueId> ids);

// Plans the nodes that a fused node stands for, if it does not fit.
void build_parts(Plan &plan, const Node &node);

const Builders &elementwise_builders();
const Builders &copy_builders();
const Builders &product_builders();
const Builders &quantized_builders();
const Builders &reduction_builders();
const Builders &fused_builders();
const Builders &known_builders();
const Builders &prompt_builders();

}  // namespace t2r::provider
