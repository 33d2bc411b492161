// Nodes that a step has in each layer and that are run as one: which they are, known from the graph alone.
#pragma once

#include "graph.hpp"

namespace t2r::provider {

// Names of such nodes; their inputs stand in fused.cpp and products.cpp.
inline constexpr const char *rms_norm = "t2r.RmsNorm", *rotation = "t2r.Rotation", *state_update = "t2r.StateUpdate",
                            *product_sum = "t2r.ProductSum", *gated_half = "t2r.GatedHalf", *exp_sum = "t2r.ExpSum",
                            *transposed_product = "t2r.TransposedProduct";

// The graph with one node for several, which it has as its parts: where shapes do not fit, those are run.
Graph fused(Graph graph);

}  // namespace t2r::provider
