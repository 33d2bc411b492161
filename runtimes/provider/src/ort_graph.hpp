// Reads ONNX Runtime's graphs.
#pragma once

#include <onnxruntime_cxx_api.h>

#include "graph.hpp"

namespace t2r::provider {

// Copies small constants. Other initializers become inputs, after those that change from run to run. If `inputs` is given, it is
// the order of the inputs instead, in which copied constants get empty names. Throws Refused for tensors and forms of nodes
// that no operator here supports.
Graph read_graph(const Ort::ConstGraph &graph, const std::vector<std::string> *inputs = nullptr);

// Type and shape of a tensor; symbolic dimensions are 1.
std::pair<Type, Dims> shape_of(const Ort::ConstValueInfo &value);

}  // namespace t2r::provider
