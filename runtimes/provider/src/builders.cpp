#include "builders.hpp"

namespace t2r::provider {

void require_float32(const Plan &plan, const Node &node, std::initializer_list<ValueId> ids) {
    for (const ValueId id : ids)
        if (plan.value(id).type != Type::float32) refuse(node, "float32", "another type");
}

void build_parts(Plan &plan, const Node &node) {
    for (const Node &part : node.parts) plan.add_node(part);
}

Builder builder_of(const std::string &op) {
    for (const Builders *table : {&elementwise_builders(), &copy_builders(), &product_builders(), &quantized_builders(),
                                  &reduction_builders(), &fused_builders(), &known_builders(), &prompt_builders()}) {
        const auto found = table->find(op);
        if (found != table->end()) return found->second;
    }
    return nullptr;
}

}  // namespace t2r::provider
