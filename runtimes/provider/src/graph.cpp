#include "graph.hpp"

namespace t2r::provider {

namespace {

template <class Read> auto value_of(const Node &node, const char *key, Read read, decltype(read(Attribute{})) otherwise) {
    const auto found = node.attributes.find(key);
    return found == node.attributes.end() ? otherwise : read(found->second);
}

}  // namespace

std::size_t bytes_of(Type type) {
    switch (type) {
    case Type::float32:
    case Type::int32: return 4;
    case Type::int64: return 8;
    case Type::float16: return 2;
    default: return 1;
    }
}

Type type_of(std::int64_t number) {
    for (const Type type : {Type::float32, Type::uint8, Type::int8, Type::int32, Type::int64, Type::boolean, Type::float16})
        if (static_cast<std::int64_t>(type) == number) return type;
    throw Refused("float32, float16, int8, uint8, int32, int64 or bool", "a tensor of the type " + std::to_string(number),
                  "run the graph on the provider cpu");
}

std::int64_t Node::integer(const char *key, std::int64_t otherwise) const {
    return value_of(*this, key, [](const Attribute &a) { return a.integer; }, otherwise);
}
float Node::real(const char *key, float otherwise) const {
    return value_of(*this, key, [](const Attribute &a) { return a.real; }, otherwise);
}
std::string Node::text(const char *key, const char *otherwise) const {
    return value_of(*this, key, [](const Attribute &a) { return a.text; }, std::string(otherwise));
}

}  // namespace t2r::provider
