// Tables of operator builders, each defined in the source file of its operators.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

#include "plan.hpp"

namespace t2r::provider {

// An attribute that a builder reads, or one with the values that mean nothing here.
struct AttributeForm {
    const char *name;
    Attribute::Kind kind = Attribute::Kind::integer;
    Dims integers = {};                    // the allowed ones; none: all
    std::vector<std::string> texts = {};
};

// The definition of an operator that a builder follows. A node of any other form is refused: it may mean something else.
struct Form {
    Builder build;
    int first = 0, last = 0;               // versions of its definition; fused nodes have none, and no graph has them
    std::size_t least = 1, most = 1;       // inputs; the first `least` are present
    std::vector<AttributeForm> attributes = {};
    std::size_t outputs = 1;               // at most, all present
    const char *domain = "";
};

inline constexpr std::size_t any_number = static_cast<std::size_t>(-1);

using Builders = std::map<std::string, Form>;

// Throws Refused unless the node has the form of its operator. A fused node has it if its parts do.
void require_form(const Node &node);

// Since which version an operator of ONNX's own has the definition that it has in an opset of 13 to 26: the tables have every one of
// these, so that a version between two of them is as good. 0 without an operator of that name.
int version_of(const std::string &op, int opset);

// Throws Refused unless all values are float32.
void require_float32(const Plan &plan, const Node &node, std::initializer_list<ValueId> ids);

// Plans the nodes that a fused node stands for, if it does not fit.
void build_parts(Plan &plan, const Node &node);

const Builders &elementwise_builders();
const Builders &copy_builders();
const Builders &product_builders();
const Builders &quantized_builders();
const Builders &reduction_builders();
const Builders &fused_builders();
const Builders &known_builders();
const Builders &prompt_builders();
const Builders &attention_builders();
const Builders &window_builders();

}  // namespace t2r::provider
