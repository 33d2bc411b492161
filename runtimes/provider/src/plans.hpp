// The plans of a graph by the shapes of its inputs: at least kept_plans of those used last, and more up to kept_operations in all.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan.hpp"

namespace t2r::provider {

class Plans {
public:
    // `weights`: by input of the graph; empty for inputs that change from run to run.
    Plans(Graph graph, std::vector<std::optional<Given>> weights) : graph(std::move(graph)), weights(std::move(weights)) {}

    // Not thread-safe. `shapes`: of each input that changes, in order, its type, the number of its dimensions, and these. Throws Refused.
    std::shared_ptr<const Plan> plan_for(Dims shapes, const InPlace &in_place = {}) {
        const auto found =
            std::find_if(plans.begin(), plans.end(), [&](const Kept &each) { return each.shapes == shapes && each.plan->serves(in_place); });
        if (found != plans.end()) {
            std::rotate(found, found + 1, plans.end());
            return plans.back().plan;
        }
        std::vector<Given> all;
        auto next = shapes.cbegin();
        for (const std::optional<Given> &weight : weights) all.push_back(weight ? *weight : shape_at(next));
        auto plan = std::make_shared<const Plan>(graph, all, in_place);
        if (plans.size() >= kept_plans && (plans.size() + 1) * plan->size() > kept_operations) plans.erase(plans.begin());
        plans.push_back({std::move(shapes), plan});
        return plan;
    }

    const Graph graph;
    const std::vector<std::optional<Given>> weights;

private:
    static constexpr std::size_t kept_plans = 16, kept_operations = 1 << 14;

    struct Kept {
        Dims shapes;  // of the inputs that change
        std::shared_ptr<const Plan> plan;
    };

    // The next input of `shapes`; moves `at` behind it.
    static Given shape_at(Dims::const_iterator &at) {
        const Type type = type_of(*at++);
        const std::int64_t rank = *at++;
        at += rank;
        return {type, Dims(at - rank, at)};
    }

    std::vector<Kept> plans;
};

}  // namespace t2r::provider
