#include "builders.hpp"

namespace t2r::provider {

Builder builder_of(const std::string &op) {
    for (const Builders *table : {&elementwise_builders(), &copy_builders(), &product_builders(), &reduction_builders(),
                                  &fused_builders(), &known_builders()}) {
        const auto found = table->find(op);
        if (found != table->end()) return found->second;
    }
    return nullptr;
}

}  // namespace t2r::provider
