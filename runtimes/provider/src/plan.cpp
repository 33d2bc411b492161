#include "plan.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "copies.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace t2r::provider {

namespace {

// For AddressSanitizer, no two values of the arena share memory, each begins as NaN, and what is between them is poisoned.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t margin = 64;
void hide(char *begin, std::size_t bytes) { ASAN_POISON_MEMORY_REGION(begin, bytes); }
void show(char *begin, std::size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(begin, bytes), std::memset(begin, 0xff, bytes); }
#else
constexpr std::size_t margin = 0;
[[maybe_unused]] void hide(char *, std::size_t) {}
[[maybe_unused]] void show(char *, std::size_t) {}
#endif

constexpr std::size_t aligned = 64;
constexpr auto between_questions = std::chrono::milliseconds(margin ? 0 : 10);  // AddressSanitizer also sees them in short runs
constexpr std::size_t most_folded = std::size_t{1} << 24;  // bytes that constant folding adds for a node
constexpr int most_bits = sizeof(std::size_t) > 4 ? 36 : 27;  // a value has at most 2^most_bits numbers; where sizes have 32 bits, 8 bytes of each fit
constexpr std::size_t most_numbers = std::size_t{1} << most_bits, most_arena = ~std::size_t{0} / 4;

std::size_t rounded(std::size_t bytes) { return (bytes + aligned - 1) / aligned * aligned; }

}  // namespace

std::size_t count_of(const Dims &dims) {
    std::size_t count = 1;
    for (const std::int64_t dim : dims) {
        if (dim < 0 || static_cast<std::uint64_t>(dim) > most_numbers || (dim && count > most_numbers / static_cast<std::size_t>(dim)))
            throw Refused("a shape of at most 2^" + std::to_string(most_bits) + " numbers", "a larger or a negative one", "export the model again");
        count *= static_cast<std::size_t>(dim);
    }
    return count;
}

void refuse(const Node &node, const std::string &expected, const std::string &received) {
    throw Refused(expected + " for " + node.op + " " + node.name, received, "run the graph on the provider cpu");
}

Plan::Plan(const Graph &graph, const std::vector<Given> &inputs, const InPlace &in_place) : in_place(in_place) {
    if (inputs.size() != graph.inputs.size())
        throw Refused(std::to_string(graph.inputs.size()) + " inputs", std::to_string(inputs.size()), "export the model again");
    for (std::size_t i = 0; i < inputs.size(); i++)
        if (!graph.inputs[i].empty()) name(graph.inputs[i], add_value(inputs[i].type, inputs[i].dims, Kind::input, i));
    for (const Constant &constant : graph.constants) {
        name(constant.name, add_value(constant.type, constant.dims, Kind::constant, constants.size()));
        constants.push_back(constant.bytes);
    }
    for (const Node &node : graph.nodes) add_node(node);
    end_at_outputs(graph);
    find_apart();
    make_stages();
    place_in_arena();
}

void Plan::add_node(const Node &node) {
    const Builder build = builder_of(node.op);
    if (!build) refuse(node, "an operator of this library", "none of that name");
    const std::size_t before = operations.size();
    build(*this, node);
    if (operations.size() > before) fold(before);
}

// Constant folding: runs the operations from `first` now if they read constants only; their outputs become constants.
void Plan::fold(std::size_t first) {
    const auto buffer_of = [&](ValueId id) -> Buffer & { return buffers[static_cast<std::size_t>(value(id).buffer)]; };
    std::vector<int> written;
    std::size_t bytes = 0;
    for (std::size_t i = first; i < operations.size(); i++) {
        for (const ValueId id : operations[i]->reads)
            if (!is_known(id) && std::count(written.begin(), written.end(), value(id).buffer) == 0) return;
        for (const ValueId id : operations[i]->writes) written.push_back(value(id).buffer), bytes += buffer_of(id).bytes;
    }
    if (bytes > most_folded) return;
    Run run;
    run.values.resize(values.size());
    for (std::size_t i = first; i < operations.size(); i++) {
        for (const ValueId id : operations[i]->writes) {
            Buffer &buffer = buffer_of(id);
            if (buffer.kind == Kind::constant) continue;
            buffer.kind = Kind::constant, buffer.index = constants.size();
            constants.emplace_back(buffer.bytes, '\0');
        }
        for (const Ids *ids : {&operations[i]->reads, &operations[i]->writes})
            for (const ValueId id : *ids)
                run.values[static_cast<std::size_t>(id)] = constants[buffer_of(id).index].data() + value(id).offset;
        operations[i]->run(run, 0, 1);
    }
    if (run.error) throw Refused("numbers that the operators take", run.error.load(), "export the model again");
    operations.resize(first);
}

bool Plan::has(const Node &node, std::size_t input) const {
    return input < node.inputs.size() && !node.inputs[input].empty();
}

ValueId Plan::input(const Node &node, std::size_t input) const {
    const auto found = has(node, input) ? names.find(node.inputs[input]) : names.end();
    if (found == names.end()) refuse(node, "a value as input " + std::to_string(input), "none");
    return found->second;
}

bool Plan::is_known(ValueId id) const {
    return buffers[static_cast<std::size_t>(value(id).buffer)].kind == Kind::constant;
}

Dims Plan::integers(ValueId id) const {
    const Value &of = value(id);
    if (!is_known(id) || (of.type != Type::int64 && of.type != Type::int32))
        throw Refused("integers that the graph holds", "a value that is computed", "run the graph on the provider cpu");
    const char *bytes = constants[buffers[static_cast<std::size_t>(of.buffer)].index].data() + of.offset;
    Dims found(count_of(of.dims));
    for (std::size_t i = 0; i < found.size(); i++) {
        std::int32_t narrow;
        if (of.type == Type::int64)
            std::memcpy(&found[i], bytes + 8 * i, 8);
        else
            std::memcpy(&narrow, bytes + 4 * i, 4), found[i] = narrow;
    }
    return found;
}

ValueId Plan::add_value(Type type, Dims dims, Kind kind, std::size_t index) {
    buffers.push_back({kind, index, count_of(dims) * bytes_of(type)});
    values.push_back({type, std::move(dims), static_cast<int>(buffers.size()) - 1, 0});
    return static_cast<ValueId>(values.size()) - 1;
}

void Plan::name(const std::string &name, ValueId id) {
    if (!names.emplace(name, id).second) throw Refused("one value of each name", name + " twice", "export the model again");
}

ValueId Plan::add_output(const Node &node, std::size_t output, Type type, Dims dims) {
    const ValueId id = add_value(type, std::move(dims), Kind::arena, 0);
    if (output < node.outputs.size() && !node.outputs[output].empty()) name(node.outputs[output], id);
    return id;
}

ValueId Plan::add_known(const Node &node, Type type, Dims dims, const Dims &numbers) {
    const ValueId id = add_value(type, std::move(dims), Kind::constant, constants.size());
    std::string bytes;
    for (const std::int64_t number : numbers)
        bytes.append(reinterpret_cast<const char *>(&number), bytes_of(type));  // little-endian
    constants.push_back(std::move(bytes));
    if (!node.outputs.empty() && !node.outputs[0].empty()) name(node.outputs[0], id);
    return id;
}

void Plan::add_view(const Node &node, std::size_t output, ValueId of, Dims dims, std::size_t offset) {
    const Value &whole = value(of);
    if (offset + count_of(dims) > count_of(whole.dims)) refuse(node, "a part of its input", "more");
    values.push_back({whole.type, std::move(dims), whole.buffer, whole.offset + offset * bytes_of(whole.type)});
    name(node.outputs.at(output), static_cast<ValueId>(values.size()) - 1);
}

ValueId Plan::add_scratch(const std::vector<std::size_t> &factors) {
    return add_value(Type::uint8, Dims(factors.begin(), factors.end()), Kind::arena, 0);
}

void Plan::keep_in_place(ValueId past, ValueId present, std::size_t added, const std::string &output) {
    caches.push_back({past, present, value(past).dims.at(2) - static_cast<std::int64_t>(added)});
    kept[output] = present;
    require_room(*in_place.rows);
}

void Plan::require_room(std::int64_t rows) const {
    for (const Cache &cache : caches)
        if (rows > cache.most) throw Refused("caches with room for more than " + std::to_string(rows) + " rows", "smaller ones", "bind larger ones");
}

// A state that is bound as one buffer, but is no window here, would be read and written at once.
void Plan::find_apart() {
    if (!are_windows_in_place()) return;
    const auto is_kept = [&](ValueId output) {
        const auto is = [&](const auto &each) { return each.present == output; };
        return std::any_of(caches.begin(), caches.end(), is) || std::any_of(windows.begin(), windows.end(), is);
    };
    for (const ValueId output : results)
        for (ValueId id = 0; !is_kept(output) && id < output; id++) {
            const Value &of = value(id);
            if (buffers[static_cast<std::size_t>(of.buffer)].kind == Kind::input && of.offset == 0 && of.type == value(output).type &&
                of.dims == value(output).dims)
                apart.emplace_back(id, output);
        }
}

void Plan::require_places(const Run &run) const {
    const auto is_one = [&](ValueId past, ValueId present) { return run.at<char>(past) == run.at<char>(present); };
    for (const Cache &cache : caches)
        if (!is_one(cache.past, cache.present))
            throw Refused("one buffer as input and output of a cache", "two", "bind it as both, or leave out the option rows");
    for (const Turning &window : windows)
        if (!is_one(window.past, window.present))
            throw Refused("one buffer as input and output of a window", "two", "bind it as both, or leave out the option windows");
    for (const auto &[past, present] : apart)
        if (is_one(past, present))
            throw Refused("two buffers for a state that is no window in place", "one", "bind two, or leave out the option windows");
}

// The new rows take the place of the oldest.
void Plan::turn_windows(const Run &run) const {
    for (const Turning &window : windows) {
        const Value &of = value(window.past), &row = value(window.added);
        const auto length = static_cast<std::size_t>(of.dims.at(2)), heads = static_cast<std::size_t>(of.dims.at(0) * of.dims.at(1));
        const std::size_t bytes = count_of(row.dims) * bytes_of(row.type) / heads;
        char *to = run.at<char>(window.present) + run.turned % length * bytes;
        for (std::size_t head = 0; head < heads; head++, to += length * bytes) std::memcpy(to, run.at<char>(window.added) + head * bytes, bytes);
    }
}

// A result that fills a buffer of the arena is computed in the caller's output instead; others are copied there.
void Plan::end_at_outputs(const Graph &graph) {
    for (std::size_t i = 0; i < graph.outputs.size(); i++) {
        const auto found = names.find(graph.outputs[i]);
        if (found == names.end()) throw Refused("a value named " + graph.outputs[i], "none", "export the model again");
        const ValueId id = kept.count(graph.outputs[i]) ? kept.at(graph.outputs[i]) : found->second;
        const Value of = value(id);
        Buffer &buffer = buffers[static_cast<std::size_t>(of.buffer)];
        if (buffer.kind == Kind::arena && buffer.bytes == count_of(of.dims) * bytes_of(of.type)) {
            buffer.kind = Kind::output, buffer.index = i;
            results.push_back(id);
        } else {
            const ValueId copy = add_value(of.type, of.dims, Kind::output, i);
            add_copy(*this, id, copy);
            results.push_back(copy);
        }
    }
}

// Reuses the memory of buffers after the stage of their last use (first fit), or after the operation where one thread runs the stage.
void Plan::place_in_arena() {
    std::vector<std::size_t> last(buffers.size(), 0);
    for (std::size_t i = 0; i < operations.size(); i++)
        for (const auto *ids : {&operations[i]->reads, &operations[i]->writes})
            for (const ValueId id : *ids) last[static_cast<std::size_t>(value(id).buffer)] = i;
    for (const Turning &window : windows) last[static_cast<std::size_t>(value(window.added).buffer)] = operations.size();  // after all of them
    std::vector<bool> is_placed(buffers.size(), false);
    std::map<std::size_t, std::size_t> gaps;  // begin to end
    const auto give_back = [&](std::size_t begin, std::size_t end) {
        auto next = gaps.lower_bound(begin);
        if (next != gaps.end() && next->first == end) end = next->second, next = gaps.erase(next);
        if (next != gaps.begin() && std::prev(next)->second == begin) begin = std::prev(next)->first;
        gaps[begin] = end;
    };
    const auto take = [&](std::size_t bytes) {
        for (auto gap = gaps.begin(); gap != gaps.end(); ++gap) {
            const auto [begin, end] = *gap;
            if (end - begin < bytes) continue;
            gaps.erase(gap);
            if (begin + bytes < end) gaps[begin + bytes] = end;
            return begin;
        }
        if (bytes > most_arena - arena_bytes) throw Refused("values that fit the memory of a process", "larger ones", "use a smaller model or batch");
        arena_bytes += bytes;
        return arena_bytes - bytes;
    };
    const auto take_for = [&](std::size_t i) {
        for (const ValueId id : operations[i]->writes) {
            const auto of = static_cast<std::size_t>(value(id).buffer);
            if (buffers[of].kind != Kind::arena || is_placed[of]) continue;
            buffers[of].index = take(rounded(buffers[of].bytes) + margin);
            is_placed[of] = true;
        }
    };
    const auto end_after = [&](std::size_t i) {
        std::vector<std::size_t> ended;
        for (const auto *ids : {&operations[i]->reads, &operations[i]->writes})
            for (const ValueId id : *ids) ended.push_back(static_cast<std::size_t>(value(id).buffer));
        std::sort(ended.begin(), ended.end());
        ended.erase(std::unique(ended.begin(), ended.end()), ended.end());
        for (const std::size_t of : ended)
            if (last[of] == i && buffers[of].kind == Kind::arena && buffers[of].bytes && !margin)
                give_back(buffers[of].index, buffers[of].index + rounded(buffers[of].bytes));
    };
    for (const Stage &stage : stages) {
        for (std::size_t i = stage.begin; i < stage.end; i++) {
            take_for(i);
            if (!stage.is_shared) end_after(i);
        }
        for (std::size_t i = stage.begin; stage.is_shared && i < stage.end; i++) end_after(i);
    }
}

void Plan::make_stages() {
    const auto buffer_of = [this](ValueId id) { return value(id).buffer; };
    std::map<int, int> in_place;
    for (const Cache &cache : caches) in_place[buffer_of(cache.present)] = buffer_of(cache.past);
    stages = schedule(operations, [&](ValueId id) {
        const auto found = in_place.find(buffer_of(id));
        return found == in_place.end() ? buffer_of(id) : found->second;
    });
}

std::unique_ptr<Run> Runs::take(std::size_t values, std::size_t bytes) {
    auto run = std::make_unique<Run>();
    {
        const std::lock_guard<Mutex> lock(mutex);
        if (!idle.empty()) run = std::move(idle.back()), idle.pop_back();
    }
    run->values.resize(values);
    if (run->arena.size() < bytes) run->arena = std::vector<char>(bytes);
    return run;
}

void Runs::give_back(std::unique_ptr<Run> run) {
    const std::lock_guard<Mutex> lock(mutex);
    idle.push_back(std::move(run));
}

struct Plan::Work {
    const Plan &plan;
    Run &run;
    const std::function<bool()> &is_ended;
    std::chrono::steady_clock::time_point next = std::chrono::steady_clock::now() + between_questions;
    bool has_ended = false;
    std::exception_ptr thrown{};

    // By one thread, after a stage: whether it is time to ask, and the answer is to end, or cannot be had.
    bool ends_after(std::size_t stage) noexcept {
        if (stage % 8 != 0 || std::chrono::steady_clock::now() < next) return false;
        next = std::chrono::steady_clock::now() + between_questions;
        try {
            return has_ended = is_ended();
        } catch (...) {  // the other threads wait where they meet
            thrown = std::current_exception();
            return true;
        }
    }
};

void Plan::work(void *data, int thread, int threads, Team::Meeting &meeting) {
    Work &work = *static_cast<Work *>(data);
    const Plan &plan = work.plan;
    Run &run = work.run;
    for (std::size_t s = 0; s < run.end.load(std::memory_order_relaxed); s++) {
        const Stage &stage = plan.stages[s];
        for (std::size_t i = stage.begin; i < stage.end && (stage.is_shared || thread == 0); i++)
            plan.operations[i]->run(run, stage.is_shared ? thread : 0, stage.is_shared ? threads : 1);
        if (!stage.is_shared && thread != 0) {  // others wait for the first thread, and the next stage is shared
            const std::size_t end = s + 1 < plan.stages.size() ? plan.stages[s + 1].end : stage.end;
            for (std::size_t i = stage.begin; i < stage.end; i++) plan.operations[i]->read_ahead(run, 0, 1);
            for (std::size_t i = stage.end; i < end; i++) plan.operations[i]->read_ahead(run, thread, threads);
        }
        if (thread == 0 && work.ends_after(s)) run.end.store(s + 1, std::memory_order_relaxed);  // all see it after they met
        meeting.meet();
    }
}

void Plan::run(const std::vector<const void *> &inputs, const std::vector<void *> &outputs, Team &team, Runs &runs,
               const std::function<bool()> &is_ended, const InPlace &now) const {
    std::unique_ptr<Run> run = runs.take(values.size(), arena_bytes + aligned);
    const auto arena = reinterpret_cast<char *>((reinterpret_cast<std::uintptr_t>(run->arena.data()) + aligned - 1) / aligned * aligned);
    if constexpr (margin != 0) {
        hide(run->arena.data(), run->arena.size());
        for (const Buffer &buffer : buffers)
            if (buffer.kind == Kind::arena) show(arena + buffer.index, buffer.bytes);
    }
    for (std::size_t i = 0; i < values.size(); i++) {
        const Buffer &buffer = buffers[static_cast<std::size_t>(values[i].buffer)];
        char *begin = nullptr;
        switch (buffer.kind) {
        case Kind::arena: begin = arena + buffer.index; break;
        case Kind::input: begin = static_cast<char *>(const_cast<void *>(inputs[buffer.index])); break;
        case Kind::output: begin = static_cast<char *>(outputs[buffer.index]); break;
        case Kind::constant: begin = const_cast<char *>(constants[buffer.index].data()); break;
        }
        run->values[i] = begin ? begin + values[i].offset : arena;  // an empty tensor may have no address
    }
    const std::int64_t rows = now.rows.value_or(0);
    run->error = nullptr, run->end = stages.size(), run->rows = static_cast<std::size_t>(rows);
    run->turned = static_cast<std::size_t>(now.turned.value_or(0));
    require_places(*run);
    require_room(rows);
    Work all{*this, *run, is_ended};
    team.run(work, &all);
    const char *error = run->error;
    if (!error && !all.thrown && !all.has_ended) turn_windows(*run);
    runs.give_back(std::move(run));
    if (all.thrown) std::rethrow_exception(all.thrown);
    if (all.has_ended) throw std::runtime_error("expected a run to its end, received the terminate flag of its options; run it again");
    if (error) throw Refused("numbers that the operators take", error, "check the token ids and the states");
}

}  // namespace t2r::provider
