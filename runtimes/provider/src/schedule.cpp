// The order of a plan's operations, and where its threads meet.
#include <algorithm>

#include "plan.hpp"

namespace t2r::provider {

namespace {

constexpr std::size_t look_ahead = 12;  // operations: the products of a layer's part, with what they need; more would keep values longer

class Scheduler {
public:
    Scheduler(Operations &operations, const std::function<int(ValueId)> &memory_of) : operations(operations) {
        for (const auto &operation : operations) uses.push_back({memory(operation->reads, memory_of), memory(operation->writes, memory_of)});
        for (std::size_t i = 1; i < operations.size(); i++) share_sum(i, true);
        for (std::size_t i = operations.size(); i-- > 1;) share_sum(i, false);
    }

    std::vector<Stage> run() {
        while (look()) {
            if (operations[waiting[0]]->is_shared)
                add_shared();
            else
                move(0, false);
        }
        Operations ordered;
        for (const std::size_t i : order) ordered.push_back(std::move(operations[i]));
        operations = std::move(ordered);
        return std::move(stages);
    }

private:
    struct Uses {
        Ids reads, writes;  // numbers of memory
    };

    static Ids memory(const Ids &ids, const std::function<int(ValueId)> &memory_of) {
        std::vector<ValueId> found;
        for (const ValueId id : ids) found.push_back(memory_of(id));
        return found;
    }

    // All products of a sum are shared if one of them is: this takes no meeting more. `forward`: what operation i adds to says so.
    void share_sum(std::size_t i, bool forward) {
        Operation &last = *operations[i];
        if (last.addend < 0 || last.division.columns == 0) return;
        for (std::size_t before = i; before-- > (i > look_ahead ? i - look_ahead : 0);) {
            Operation &first = *operations[before];
            if (first.writes[0] == last.addend && continues(before, i)) (forward ? last : first).is_shared |= (forward ? first : last).is_shared;
        }
    }

    // A stage of all threads. Before it, if one thread works anyway, what it may compute then; in it, what needs no meeting.
    void add_shared() {
        const bool follows_one = !stages.empty() && !stages.back().is_shared;
        for (std::size_t at = 1; follows_one && at < waiting.size();) {
            if (operations[waiting[at]]->is_shared || !is_free(at))
                at++;
            else
                move(at, false), look();
        }
        const std::size_t first = order.size();
        move(0, true, true), look();
        for (std::size_t at = 0; at < waiting.size();) {
            if (operations[waiting[at]]->is_shared && is_free(at) && needs_no_meeting(first, waiting[at]))
                move(at, true), look();
            else
                at++;
        }
    }

    // Fills the list of those that wait; whether there are any.
    bool look() {
        while (waiting.size() < look_ahead && next < operations.size()) waiting.push_back(next++);
        return !waiting.empty();
    }

    // Whether it may run before those that come before it.
    bool is_free(std::size_t at) const {
        return std::none_of(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(at),
                            [&](std::size_t other) { return conflict(other, waiting[at]); });
    }

    // Whether it reads nothing that other threads write in the stage from `first` on.
    bool needs_no_meeting(std::size_t first, std::size_t i) const {
        return std::all_of(order.begin() + static_cast<std::ptrdiff_t>(first), order.end(),
                           [&](std::size_t other) { return !conflict(other, i) || continues(other, i); });
    }

    bool conflict(std::size_t first, std::size_t second) const {
        const Uses &a = uses[first], &b = uses[second];
        return share(a.writes, b.reads) || share(a.writes, b.writes) || share(a.reads, b.writes);
    }

    static bool share(const Ids &some, const Ids &others) {
        return std::any_of(some.begin(), some.end(), [&](int one) { return std::find(others.begin(), others.end(), one) != others.end(); });
    }

    // Whether a part of the second reads of what the first writes only what the same part wrote.
    bool continues(std::size_t first, std::size_t second) const {
        const Operation &a = *operations[first], &b = *operations[second];
        if (a.division.columns == 0 || !(a.division == b.division)) return false;
        const Uses &of_a = uses[first], &of_b = uses[second];
        if (share(of_a.reads, of_b.writes) || share(of_a.writes, of_b.writes)) return false;
        for (const ValueId *id = b.reads.begin(), *memory = of_b.reads.begin(); id != b.reads.end(); id++, memory++)
            if (*memory == of_a.writes[0] && !(*id == b.addend && *id == a.writes[0])) return false;
        return true;
    }

    // The operation that waits at `at` is the next one; a stage begins if it must.
    void move(std::size_t at, bool is_shared, bool begins = false) {
        order.push_back(waiting[at]);
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
        if (begins || stages.empty() || stages.back().is_shared != is_shared) stages.push_back({is_shared, order.size() - 1, order.size()});
        stages.back().end = order.size();
    }

    Operations &operations;
    std::vector<Uses> uses;
    std::size_t next = 0;
    std::vector<std::size_t> waiting, order;
    std::vector<Stage> stages;
};

}  // namespace

std::vector<Stage> schedule(Operations &operations, const std::function<int(ValueId)> &memory_of) {
    return Scheduler(operations, memory_of).run();
}

}  // namespace t2r::provider
