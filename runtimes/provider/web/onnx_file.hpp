// Reads an ONNX file (protobuf, ModelProto) from memory, without ONNX Runtime: an untrusted file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../src/plan.hpp"

namespace t2r::provider {

// The bytes of a file, which stay where they are while the model is used.
struct Bytes {
    char *begin;
    std::size_t size;
};

// An input or output; a dimension of -1 is any.
struct ModelValue {
    std::string name;
    Type type;
    Dims dims;
};

struct Model {
    Graph graph;                                // its last inputs are the large initializers, which no one copies
    std::vector<ModelValue> inputs, outputs;
    std::vector<std::optional<Given>> weights;  // by input of the graph; empty for those that change from run to run
    std::vector<const void *> addresses;        // of the weights, by input of the graph
    std::vector<std::string> copies;            // of weights that were not where their type may be read
};

// `files`: those with external weights, by name. Writes to `file`: a weight at an odd address is moved down, over what says how long it is.
//
// Throws Refused: expected an ONNX file, external weights, a version, or operators of this library.
Model read_model(Bytes file, const std::map<std::string, Bytes> &files);

}  // namespace t2r::provider
