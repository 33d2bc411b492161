#include "onnx_file.hpp"

#include <algorithm>
#include <cstdlib>

#include "../src/builders.hpp"
#include "protobuf.hpp"

namespace t2r::provider {

namespace {

constexpr std::size_t small = 4096;  // most bytes of a copied constant, as in src/ort_graph.cpp
constexpr std::size_t most_nodes = 1 << 17, most_initializers = 1 << 17, most_values = 1 << 14, most_names = 1 << 10, most_numbers = 1 << 12;
constexpr std::size_t most_dims = 16;
constexpr int most_depth = 4;  // of graphs in graphs
constexpr std::int64_t first_opset = 13, last_opset = 26, last_format = 13;

template <class List> void require_fewer(const List &list, std::size_t most, const char *what) {
    if (list.size() >= most) broken("more than " + std::to_string(most) + " " + what);
}

// A TensorProto.
struct Tensor {
    std::string name;
    std::int64_t type = 0;
    Dims dims;
    std::optional<Span> raw;
    Span integers{nullptr, nullptr}, reals{nullptr, nullptr};  // packed
    bool is_outside = false;
    std::string file;
    std::uint64_t offset = 0, length = 0;
};

void read_place(Span from, Tensor &tensor) {
    std::string key, value;
    each_field(from, [&](const Field &field) {
        if (field.number == 1) key = field.message().text();
        if (field.number == 2) value = field.message().text();
    });
    const auto number = [&] {
        char *end = nullptr;
        const unsigned long long found = std::strtoull(value.c_str(), &end, 10);
        if (value.empty() || value[0] < '0' || value[0] > '9' || *end) broken("a place of weights that is no number");
        return found;
    };
    if (key == "location") tensor.is_outside = true, tensor.file = value;
    if (key == "offset") tensor.offset = number();
    if (key == "length") tensor.length = number();
}

Tensor read_tensor(Span from) {
    Tensor tensor;
    each_field(from, [&](const Field &field) {
        switch (field.number) {
        case 1: add_integers(field, tensor.dims, most_dims); break;
        case 2: tensor.type = field.whole(); break;
        case 4: tensor.reals = field.message(); break;
        case 5:
        case 7: tensor.integers = field.message(); break;
        case 8: tensor.name = field.message().text(); break;
        case 9: tensor.raw = field.message(); break;
        case 13: read_place(field.message(), tensor); break;
        default: break;
        }
    });
    return tensor;
}

class Reader {
public:
    Reader(const std::map<std::string, Bytes> &files) : files(files) {}

    Model read(Span file) {
        std::optional<Span> graph;
        std::int64_t format = 0;
        each_field(file, [&](const Field &field) {
            if (field.number == 1) format = field.whole();
            if (field.number == 7 && graph) broken("two graphs in a file");
            if (field.number == 7) graph = field.message();
            if (field.number == 8) read_opset(field.message());
            if (field.number == 25) throw Refused("operators of this library", "functions of the graph", "run the graph on the provider cpu");
        });
        if (!graph) broken("a file without a graph in it");
        require_version("of the format up to " + std::to_string(last_format), format, 1, last_format);
        require_version("of the operators from " + std::to_string(first_opset) + " to " + std::to_string(last_opset), opset, first_opset, last_opset);
        model.graph = read_graph(*graph, 0);
        for (const ModelValue &input : model.inputs) model.graph.inputs.push_back(input.name);
        model.weights.resize(model.inputs.size());
        model.addresses.resize(model.inputs.size());
        for (const Tensor &tensor : initializers) add_initializer(tensor);
        for (const ModelValue &output : model.outputs) model.graph.outputs.push_back(output.name);
        return std::move(model);
    }

private:
    static void require_version(const std::string &which, std::int64_t found, std::int64_t first, std::int64_t last) {
        if (found < first || found > last) throw Refused("a version " + which, std::to_string(found), "export the model again");
    }

    void read_opset(Span from) {
        std::string domain;
        std::int64_t version = 0;
        each_field(from, [&](const Field &field) {
            if (field.number == 1) domain = field.message().text();
            if (field.number == 2) version = field.whole();
        });
        if (domain.empty() || domain == "ai.onnx") opset = version;
    }

    // The inputs and outputs of the whole graph go to the model, those of a body, with their names, to the graph.
    Graph read_graph(Span from, int depth) {
        if (depth == most_depth) broken("graphs in graphs");
        Graph graph;
        each_field(from, [&](const Field &field) {
            switch (field.number) {
            case 1:
                require_fewer(graph.nodes, most_nodes, "nodes");
                graph.nodes.push_back(read_node(field.message(), depth));
                break;
            case 5:
                if (depth) throw Refused("a body without initializers", "one with them", "run the graph on the provider cpu");
                require_fewer(initializers, most_initializers, "initializers");
                initializers.push_back(read_tensor(field.message()));
                break;
            case 11:
            case 12: read_value(field, depth, graph); break;
            case 15: throw Refused("dense weights", "sparse ones", "run the graph on the provider cpu");
            default: break;
            }
        });
        return graph;
    }

    void read_value(const Field &field, int depth, Graph &graph) {
        const bool is_input = field.number == 11;
        std::vector<ModelValue> &values = is_input ? model.inputs : model.outputs;
        std::vector<std::string> &names = is_input ? graph.inputs : graph.outputs;
        const ModelValue form = read_form(field.message(), depth > 0);
        require_fewer(values, most_values, "inputs or outputs");
        require_fewer(names, most_names, "inputs or outputs of a body");
        if (depth)
            names.push_back(form.name);
        else
            values.push_back(form);
    }

    // A ValueInfoProto.
    static ModelValue read_form(Span from, bool is_name_enough) {
        ModelValue form{"", Type::float32, {}};
        bool has_type = false;
        const auto read_dim = [&](const Field &dim) {
            if (dim.number != 1) return;
            std::int64_t size = -1;
            each_field(dim.message(), [&](const Field &field) {
                if (field.number == 1) size = field.whole();
            });
            if (form.dims.size() == most_dims) broken("more than " + std::to_string(most_dims) + " dimensions");
            form.dims.push_back(size);
        };
        const auto read_tensor_type = [&](const Field &field) {
            if (field.number == 1) form.type = type_of(field.whole()), has_type = true;
            if (field.number == 2) each_field(field.message(), read_dim);
        };
        each_field(from, [&](const Field &field) {
            if (field.number == 1) form.name = field.message().text();
            if (field.number != 2 || is_name_enough) return;
            each_field(field.message(), [&](const Field &type) {
                if (type.number == 1) each_field(type.message(), read_tensor_type);
            });
        });
        if (!has_type && !is_name_enough) throw Refused("tensors", form.name + ", which is none", "run the graph on the provider cpu");
        return form;
    }

    Node read_node(Span from, int depth) {
        Node node;
        each_field(from, [&](const Field &field) {
            switch (field.number) {
            case 1:
            case 2: {
                std::vector<std::string> &names = field.number == 1 ? node.inputs : node.outputs;
                require_fewer(names, most_names, "inputs or outputs of a node");
                names.push_back(field.message().text());
                break;
            }
            case 3: node.name = field.message().text(); break;
            case 4: node.op = field.message().text(); break;
            case 5: read_attribute(field.message(), node, depth); break;
            case 7: node.domain = field.message().text(); break;
            default: break;
            }
        });
        if (node.domain == "ai.onnx") node.domain.clear();
        while (!node.inputs.empty() && node.inputs.back().empty()) node.inputs.pop_back();
        node.version = node.domain.empty() ? version_of(node.op, static_cast<int>(opset)) : 1;
        require_form(node);
        return node;
    }

    // An AttributeProto; its type says which of its fields counts.
    void read_attribute(Span from, Node &node, int depth) {
        using Kind = Attribute::Kind;
        Attribute found;
        std::string name;
        std::int64_t type = 0;
        std::optional<Span> body;
        each_field(from, [&](const Field &field) {
            switch (field.number) {
            case 1: name = field.message().text(); break;
            case 2: found.real = field.real(); break;
            case 3: found.integer = field.whole(); break;
            case 4: found.text = field.message().text(); break;
            case 6: body = field.message(); break;
            case 8: add_integers(field, found.integers, most_numbers); break;
            case 20: type = field.whole(); break;
            default: break;
            }
        });
        switch (type) {
        case 1: found.kind = Kind::real; break;
        case 2: found.kind = Kind::integer; break;
        case 3: found.kind = Kind::text; break;
        case 5: found.kind = Kind::graph; break;
        case 7: found.kind = found.integers.empty() ? Kind::empty : Kind::integers; break;
        default: break;
        }
        if (found.kind == Kind::graph && name == "body" && body) node.body = std::make_shared<const Graph>(read_graph(*body, depth + 1));
        require_fewer(node.attributes, most_names, "attributes of a node");
        if (!node.attributes.emplace(name, std::move(found)).second) broken("an attribute twice");
    }

    void add_initializer(const Tensor &tensor) {
        const Type type = type_of(tensor.type);
        const std::size_t count = count_of(tensor.dims), bytes = count * bytes_of(type);
        const Span found = tensor.is_outside ? outside(tensor, bytes) : tensor.raw ? *tensor.raw : Span{nullptr, nullptr};
        const bool is_raw = tensor.is_outside || tensor.raw;
        if (is_raw && found.size() != bytes) broken("an initializer " + tensor.name + " of another size");
        if (!is_raw || bytes <= small) {
            const std::string content = is_raw ? std::string(found.at, found.size()) : unpacked(tensor, type, count);
            if (bytes <= small) return model.graph.constants.push_back({tensor.name, type, tensor.dims, content});
            model.copies.push_back(content);
            return add_weight(tensor, type, model.copies.back().data());
        }
        add_weight(tensor, type, placed(found, bytes_of(type), !tensor.is_outside));
    }

    void add_weight(const Tensor &tensor, Type type, const void *address) {
        model.graph.inputs.push_back(tensor.name);
        model.weights.push_back(Given{type, tensor.dims});
        model.addresses.push_back(address);
    }

    Span outside(const Tensor &tensor, std::size_t bytes) const {
        const auto found = files.find(tensor.file);
        const auto refuse = [&](const std::string &received) { throw Refused("the weights " + tensor.file + " beside the graph", received, "copy all files together"); };
        if (found == files.end()) refuse("no file of that name");
        const std::size_t size = found->second.size;
        if (tensor.offset > size || bytes > size - tensor.offset || (tensor.length && tensor.length != bytes))
            refuse("a data file of " + std::to_string(size) + " bytes, which does not hold " + tensor.name);
        char *const begin = found->second.begin + tensor.offset;
        return {begin, begin + bytes};
    }

    // Where numbers of `size` bytes may be read: here, some bytes before (over the field's own key and length), or in a copy.
    const char *placed(Span found, std::size_t size, bool may_move) {
        const std::size_t over = reinterpret_cast<std::uintptr_t>(found.at) % size;
        if (over == 0) return found.at;
        if (may_move && over < 4) return static_cast<char *>(std::memmove(found.at - over, found.at, found.size()));
        model.copies.emplace_back(found.at, found.size());
        return model.copies.back().data();
    }

    // Numbers in fields of their kind.
    static std::string unpacked(const Tensor &tensor, Type type, std::size_t count) {
        std::string bytes;
        if (type == Type::float32) {
            bytes.assign(tensor.reals.at, tensor.reals.size());
        } else {
            for (Span rest = tensor.integers; rest.at != rest.end && bytes.size() <= count * bytes_of(type);) {
                const std::uint64_t number = take_varint(rest);
                bytes.append(reinterpret_cast<const char *>(&number), bytes_of(type));  // little-endian
            }
        }
        if (bytes.size() != count * bytes_of(type)) broken("an initializer " + tensor.name + " of another size");
        return bytes;
    }

    const std::map<std::string, Bytes> &files;
    Model model;
    std::vector<Tensor> initializers;
    std::int64_t opset = 0;
};

}  // namespace

Model read_model(Bytes file, const std::map<std::string, Bytes> &files) {
    return Reader(files).read({file.begin, file.begin + file.size});
}

}  // namespace t2r::provider
