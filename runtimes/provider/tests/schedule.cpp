// The order of random operations, and where threads meet: what an operation reads is written before, by threads that it met or by its own
// part. Also that fewer meetings are needed than without a schedule.
#include <cstdio>
#include <random>

#include "plan.hpp"

using namespace t2r::provider;

namespace {

struct Named : Operation {
    int name;
    void run(Run &, int, int) const override {}
};

std::mt19937 random_numbers(7);
std::size_t drawn(std::size_t below) { return random_numbers() % below; }

bool share(const Ids &some, const Ids &others) {
    for (const ValueId one : some)
        for (const ValueId other : others)
            if (one % 100 == other % 100) return true;  // a view has the number of its memory plus a hundred
    return false;
}

bool depends(const Operation &later, const Operation &earlier) {
    return share(earlier.writes, later.reads) || share(earlier.writes, later.writes) || share(earlier.reads, later.writes);
}

bool is_own_part(const Operation &later, const Operation &earlier) {
    bool reads_else = share(earlier.reads, later.writes) || share(earlier.writes, later.writes);
    for (const ValueId id : later.reads) reads_else |= id != later.addend && id % 100 == earlier.writes[0] % 100;
    return !reads_else && later.addend == earlier.writes[0] && later.division.columns && later.division == earlier.division;
}

Operations random_operations() {
    Operations made;
    for (int name = 0; name < 60; name++) {
        auto one = std::make_unique<Named>();
        one->name = name, one->is_shared = drawn(2);
        std::vector<ValueId> reads;
        for (std::size_t i = 0; i < 1 + drawn(3); i++) reads.push_back(static_cast<ValueId>(drawn(30) + 100 * drawn(2)));
        if (drawn(2)) one->division = {1, 8 + drawn(2), 4};
        if (drawn(2) && name) reads.push_back(one->addend = made.back()->writes[0]);
        one->reads = reads, one->writes = std::vector<ValueId>{static_cast<ValueId>(drawn(30))};
        made.push_back(std::move(one));
    }
    return made;
}

// What is wrong with an order, or null.
const char *fault(bool breaks) {
    Operations made = random_operations();
    std::vector<const Operation *> before;
    std::size_t meetings = 0;
    for (const auto &one : made) {
        meetings += before.empty() || one->is_shared || before.back()->is_shared;
        before.push_back(one.get());
    }
    const std::vector<Stage> stages = schedule(made, [](ValueId id) { return id % 100; });
    if (breaks) std::swap(made[0], made[1]);
    std::vector<std::size_t> stage_of(made.size()), place(made.size());
    for (std::size_t s = 0; s < stages.size(); s++)
        for (std::size_t i = stages[s].begin; i < stages[s].end; i++) {
            const auto name = static_cast<std::size_t>(static_cast<const Named &>(*made[i]).name);
            stage_of[name] = s, place[name] = i;
            if (stages[s].is_shared != made[i]->is_shared) return "an operation in a stage of another kind";
        }
    for (std::size_t later = 0; later < before.size(); later++)
        for (std::size_t earlier = 0; earlier < later; earlier++) {
            if (!depends(*before[later], *before[earlier])) continue;
            if (place[later] < place[earlier]) return "an operation before what it reads";
            if (stage_of[later] == stage_of[earlier] && before[later]->is_shared && !is_own_part(*before[later], *before[earlier]))
                return "no meeting before what another thread wrote";
        }
    return stages.size() > meetings ? "more meetings than without a schedule" : nullptr;
}

}  // namespace

int main(int count, char **) {
    const bool breaks = count > 1;  // any argument: each order is broken after it was made
    int wrong = 0;
    for (int i = 0; i < 2000; i++)
        if (const char *found = fault(breaks)) wrong++, std::puts(found);
    return wrong != 0;
}
