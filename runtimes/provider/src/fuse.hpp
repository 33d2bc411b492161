// Fusion of node patterns that occur in each layer of a step. Matching needs the graph only, no shapes.
#pragma once

#include "graph.hpp"

namespace t2r::provider {

// Operators of fused nodes; their inputs are in fused.cpp, products.cpp, quantized.cpp, attention.cpp and windows.cpp.
inline constexpr const char *rms_norm = "t2r.RmsNorm", *rotation = "t2r.Rotation", *state_update = "t2r.StateUpdate",
                            *product_sum = "t2r.ProductSum", *gated_half = "t2r.GatedHalf", *scaled_rows = "t2r.ScaledRows", *exp_sum = "t2r.ExpSum",
                            *transposed_product = "t2r.TransposedProduct", *append = "t2r.Append", *attention = "t2r.Attention",
                            *window_scores = "t2r.WindowScores", *window_sum = "t2r.WindowSum", *window_oldest = "t2r.WindowOldest";

// Replaces each match by one fused node. If shapes do not fit, its parts, the original nodes, are run instead.
Graph fused(Graph graph);

}  // namespace t2r::provider
