// Graphs as ONNX Runtime shows them to a provider.
#pragma once

#include <onnxruntime_cxx_api.h>

#include "graph.hpp"

namespace t2r::provider {

// Small constants are copied; all other initializers are inputs, behind those that change from run to run, unless `inputs`
// says the order of the inputs, copied ones among them, whose names are then empty. Throws Refused for attributes and tensors of kinds that no operator here has.
Graph read_graph(const Ort::ConstGraph &graph, const std::vector<std::string> *inputs = nullptr);

// A tensor that ONNX Runtime has, or will have: its symbolic dimensions are 1.
std::pair<Type, Dims> shape_of(const Ort::ConstValueInfo &value);

}  // namespace t2r::provider
