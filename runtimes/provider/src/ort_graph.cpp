#include "ort_graph.hpp"

#include <set>

#include "builders.hpp"

namespace t2r::provider {

namespace {

constexpr std::size_t small = 4096;  // most bytes of a copied constant: shapes, axes, tables of positions

std::string name_of(const Ort::ConstValueInfo &value) {
    return static_cast<const OrtValueInfo *>(value) ? value.GetName() : "";  // an input that is left out
}

Attribute attribute_of(const Ort::ConstOpAttr &given) {
    using Kind = Attribute::Kind;
    Attribute found;
    Ort::Status status{nullptr};
    switch (given.GetType()) {
    case ORT_OP_ATTR_INT: found.kind = Kind::integer, status = given.GetValue(found.integer); break;
    case ORT_OP_ATTR_FLOAT: found.kind = Kind::real, status = given.GetValue(found.real); break;
    case ORT_OP_ATTR_STRING: found.kind = Kind::text, status = given.GetValue(found.text); break;
    case ORT_OP_ATTR_INTS: found.kind = Kind::integers, status = given.GetValueArray(found.integers); break;
    case ORT_OP_ATTR_GRAPH: found.kind = Kind::graph; break;
    case ORT_OP_ATTR_UNDEFINED: found.kind = Kind::empty; break;
    default: break;
    }
    if (!status.IsOK()) throw Ort::Exception(status.GetErrorMessage(), status.GetErrorCode());
    return found;
}

// Returns false for a tensor that is too large to copy or that is computed.
bool read_constant(const Ort::ConstValueInfo &value, Constant &found) {
    if (!value.IsConstantInitializer()) return false;
    Ort::ConstValue tensor{nullptr};
    const Ort::Status status = value.GetInitializer(tensor);
    if (!status.IsOK()) throw Ort::Exception(status.GetErrorMessage(), status.GetErrorCode());
    if (!static_cast<const OrtValue *>(tensor)) return false;
    const auto shape = tensor.GetTensorTypeAndShapeInfo();
    found.name = value.GetName();
    found.type = type_of(shape.GetElementType());
    found.dims = shape.GetShape();
    const std::size_t bytes = shape.GetElementCount() * bytes_of(found.type);
    if (bytes > small) return false;
    if (bytes) found.bytes.assign(static_cast<const char *>(tensor.GetTensorRawData()), bytes);
    return true;
}

}  // namespace

Graph read_graph(const Ort::ConstGraph &graph, const std::vector<std::string> *inputs) {
    Graph found;
    std::set<std::string> copied;
    for (const Ort::ConstValueInfo &value : graph.GetInitializers()) {
        Constant constant;
        if (!read_constant(value, constant)) continue;
        copied.insert(constant.name);
        found.constants.push_back(std::move(constant));
    }
    if (inputs) {
        for (const std::string &name : *inputs) found.inputs.push_back(copied.count(name) ? "" : name);
    } else {
        for (const Ort::ConstValueInfo &value : graph.GetInputs()) found.inputs.push_back(value.GetName());
        for (const Ort::ConstValueInfo &value : graph.GetInitializers())
            if (!copied.count(value.GetName())) found.inputs.push_back(value.GetName());
    }
    for (const Ort::ConstValueInfo &value : graph.GetOutputs()) found.outputs.push_back(value.GetName());
    for (const Ort::ConstNode &node : graph.GetNodes()) {
        Node each;
        each.domain = node.GetDomain() == "ai.onnx" ? "" : node.GetDomain();
        each.op = node.GetOperatorType();
        each.name = node.GetName();
        each.version = node.GetSinceVersion();
        for (const Ort::ConstValueInfo &value : node.GetInputs()) each.inputs.push_back(name_of(value));
        for (const Ort::ConstValueInfo &value : node.GetOutputs()) each.outputs.push_back(name_of(value));
        for (const Ort::ConstOpAttr &attribute : node.GetAttributes()) each.attributes[attribute.GetName()] = attribute_of(attribute);
        require_form(each);
        for (const auto &[name, body] : node.GetSubgraphs())
            if (name == "body") each.body = std::make_shared<const Graph>(read_graph(body));
        found.nodes.push_back(std::move(each));
    }
    return found;
}

std::pair<Type, Dims> shape_of(const Ort::ConstValueInfo &value) {
    const Ort::ConstTypeInfo type = value.TypeInfo();
    if (type.GetONNXType() != ONNX_TYPE_TENSOR)
        throw Refused("tensors", value.GetName() + ", which is none", "run the graph on the provider cpu");
    const auto shape = type.GetTensorTypeAndShapeInfo();
    Dims dims = shape.GetShape();
    for (std::int64_t &dim : dims) dim = dim < 0 ? 1 : dim;
    return {type_of(shape.GetElementType()), dims};
}

}  // namespace t2r::provider
