// The graph of a step: nodes, attributes, constants.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace t2r::provider {

// Its message says what was expected, what was received and what to do; ONNX Runtime receives it as a status.
class Refused : public std::runtime_error {
public:
    Refused(const std::string &expected, const std::string &received, const std::string &advice)
        : std::runtime_error("expected " + expected + ", received " + received + "; " + advice) {}
};

using Dims = std::vector<std::int64_t>;

enum class Type { float32 = 1, uint8 = 2, int8 = 3, int32 = 6, int64 = 7, boolean = 9, float16 = 10 };  // TensorProto.DataType

std::size_t bytes_of(Type type);
Type type_of(std::int64_t number);  // throws Refused

struct Constant {
    std::string name;
    Type type;
    Dims dims;
    std::string bytes;
};

struct Attribute {
    enum class Kind { empty, graph, integer, integers, other, real, text };  // empty: a list without entries

    Kind kind = Kind::other;
    float real = 0;
    std::int64_t integer = 0;
    std::string text;
    Dims integers;
};

struct Graph;

struct Node {
    std::string domain, op, name;  // an empty domain: ONNX's own
    int version = 0;               // since which version of its domain the operator has this definition
    std::vector<std::string> inputs, outputs;  // an empty name: absent
    std::map<std::string, Attribute> attributes;
    std::vector<Node> parts;  // the original nodes of a fused node (fuse.hpp)
    std::shared_ptr<const Graph> body;  // of a Scan

    std::int64_t integer(const char *key, std::int64_t otherwise) const;
    float real(const char *key, float otherwise) const;
    std::string text(const char *key, const char *otherwise) const;
};

struct Graph {
    std::vector<Node> nodes;           // in topological order
    std::vector<Constant> constants;   // small ones; the others are inputs
    std::vector<std::string> inputs, outputs;
};

}  // namespace t2r::provider
