#include "builders.hpp"

#include <algorithm>

namespace t2r::provider {

namespace {

const Form *form_of(const std::string &op) {
    for (const Builders *table : {&elementwise_builders(), &copy_builders(), &product_builders(), &quantized_builders(),
                                  &reduction_builders(), &fused_builders(), &known_builders(), &prompt_builders(), &attention_builders(), &window_builders()}) {
        const auto found = table->find(op);
        if (found != table->end()) return &found->second;
    }
    return nullptr;
}

template <class Values, class Value> bool allows(const Values &values, const Value &value) {
    return values.empty() || std::find(values.begin(), values.end(), value) != values.end();
}

void require_attribute(const Node &node, const Form &form, const std::string &name, const Attribute &given) {
    using Kind = Attribute::Kind;
    const auto found = std::find_if(form.attributes.begin(), form.attributes.end(), [&](const AttributeForm &each) { return each.name == name; });
    if (found == form.attributes.end()) refuse(node, "no attribute " + name, "one");
    const bool is_kind = given.kind == found->kind || (given.kind == Kind::empty && found->kind == Kind::integers);
    if (!is_kind || !allows(found->integers, given.integer) || !allows(found->texts, given.text))
        refuse(node, "an attribute " + name + " that is supported", "another");
}

}  // namespace

void require_form(const Node &node) {
    const Form *const form = form_of(node.op);
    if (!form || form->domain != node.domain)
        refuse(node, "an operator of this library", "none of that name" + (node.domain.empty() ? "" : " in the domain " + node.domain));
    if (node.version < form->first || node.version > form->last)
        refuse(node, "a version from " + std::to_string(form->first) + " to " + std::to_string(form->last), std::to_string(node.version));
    for (const auto &[name, given] : node.attributes) require_attribute(node, *form, name, given);
    const auto is_absent = [](const std::string &name) { return name.empty(); };
    const auto begin = node.inputs.begin();
    if (node.inputs.size() < form->least || node.inputs.size() > form->most ||
        std::any_of(begin, form->most == any_number ? node.inputs.end() : begin + static_cast<std::ptrdiff_t>(form->least), is_absent))
        refuse(node, "its inputs", "others");
    if (node.outputs.empty() || node.outputs.size() > form->outputs || std::any_of(node.outputs.begin(), node.outputs.end(), is_absent))
        refuse(node, "its outputs, all of them named", "others");
}

void require_float32(const Plan &plan, const Node &node, std::initializer_list<ValueId> ids) {
    for (const ValueId id : ids)
        if (plan.value(id).type != Type::float32) refuse(node, "float32", "another type");
}

void build_parts(Plan &plan, const Node &node) {
    for (const Node &part : node.parts) plan.add_node(part);
}

int version_of(const std::string &op, int opset) {
    const Form *const form = form_of(op);
    return form ? std::min(opset, form->last) : 0;
}

Builder builder_of(const std::string &op) {
    const Form *const form = form_of(op);
    return form ? form->build : nullptr;
}

}  // namespace t2r::provider
