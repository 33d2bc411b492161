// A graph planned for given shapes: the shape and memory location of every value, and the operations in order.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph.hpp"
#ifdef __wasm__
#include "../web/team.hpp"
#else
#include "team.hpp"
#endif

namespace t2r::provider {

std::size_t count_of(const Dims &dims);  // throws Refused for negative dimensions or more than 2^36 elements

using ValueId = int;

// A tensor: its memory is a buffer and an offset in bytes, so that a reshape needs no copy.
struct Value {
    Type type;
    Dims dims;
    int buffer;
    std::size_t offset;
};

// Memory of one run: the address of every value, the arena, the error or null, the stage before which it ends, the rows that caches
// in place have, and the tokens that windows in place have read.
struct Run {
    std::vector<char *> values;
    std::size_t rows = 0, turned = 0;
    std::vector<char> arena;
    std::atomic<const char *> error{nullptr};
    std::atomic<std::size_t> end{0};

    template <class T> T *at(ValueId value) const { return reinterpret_cast<T *>(values[static_cast<std::size_t>(value)]); }
};

// Pool of the memory of finished runs, shared by the plans of a graph.
class Runs {
public:
    std::unique_ptr<Run> take(std::size_t values, std::size_t bytes);
    void give_back(std::unique_ptr<Run> run);

private:
    Mutex mutex;
    std::vector<std::unique_ptr<Run>> idle;
};

// The values that an operation reads or writes: few, stored inline, since a step has a thousand operations.
class Ids {
public:
    Ids() = default;
    Ids(const std::vector<ValueId> &ids) : count(ids.size()) {
        if (count > ids_.size()) throw Refused("at most 9 inputs of an operation", std::to_string(count), "run the graph on the provider cpu");
        std::copy(ids.begin(), ids.end(), ids_.begin());
    }
    ValueId operator[](std::size_t i) const { return ids_[i]; }
    ValueId back() const { return ids_[count - 1]; }
    const ValueId *begin() const { return ids_.data(); }
    const ValueId *end() const { return ids_.data() + count; }

private:
    std::array<ValueId, 9> ids_{};
    std::size_t count = 0;
};

class Operation {
public:
    virtual ~Operation() = default;
    // Runs part `part` of `parts`; does not throw. An operation that is not shared has one part.
    virtual void run(Run &run, int part, int parts) const = 0;
    // Reads into the processor's caches where part `part` begins, while the thread waits for the inputs.
    virtual void read_ahead(const Run &, int, int) const {}

    bool is_shared = false;  // divided among threads: worth more than their meeting
    // If it has columns, part p writes columns [begin_of(columns, p, parts, whole), …) of each of `rows` rows of its result.
    struct Division {
        std::size_t rows = 0, columns = 0, whole = 0;

        bool operator==(const Division &other) const { return rows == other.rows && columns == other.columns && whole == other.whole; }
    } division;
    ValueId addend = -1;     // of it, if it has as many rows and columns, a part reads only the numbers in the places that it writes
    Ids reads, writes;
};

// Where part `part` of `parts` of n items begins: at a multiple of `whole`, or at n.
inline std::size_t begin_of(std::size_t n, int part, int parts, std::size_t whole = 1) {
    const std::size_t groups = (n + whole - 1) / whole, group = groups * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
    return group * whole < n ? group * whole : n;
}

// Type and shape of an input.
struct Given {
    Type type;
    Dims dims;

    bool operator==(const Given &other) const { return type == other.type && dims == other.dims; }
};

// Operations [begin, end) that run without a meeting of the threads: of each its share by every thread, or all by one thread.
struct Stage {
    bool is_shared;
    std::size_t begin, end;
};

using Operations = std::vector<std::unique_ptr<Operation>>;

// The states that a run keeps in place: one buffer as an input and as an output.
struct InPlace {
    // Of caches: their buffers' shape says for how many rows they have room, and a run reads `rows` and writes those after them.
    std::optional<std::int64_t> rows;
    // Of windows, the tokens read since their rows were in order: the oldest row is at this number modulo their length, and the new one
    // takes its place once the run has succeeded.
    std::optional<std::int64_t> turned;
};

// Puts operations into an order that keeps what each of them reads and needs few stages. `memory_of`: a number for the memory of a value,
// the same for values that share it.
std::vector<Stage> schedule(Operations &operations, const std::function<int(ValueId)> &memory_of);

class Plan {
public:
    // Throws Refused for nodes, types or shapes that no operator here supports.
    Plan(const Graph &graph, const std::vector<Given> &inputs, const InPlace &in_place = {});

    // Whether the plan, made for others, is for these states in place: for any number of rows, unless an operation reads it.
    bool serves(const InPlace &now) const {
        return in_place.rows.has_value() == now.rows.has_value() && in_place.turned.has_value() == now.turned.has_value() &&
               (!reads_rows || in_place.rows == now.rows);
    }

    // The outputs; the caller allocates them by their shapes.
    const std::vector<ValueId> &outputs() const { return results; }

    // Thread-safe. Asks `is_ended` every 10 ms, between stages, whether to end early. Throws Refused for numbers that an operator
    // does not accept, std::runtime_error if it ended early.
    void run(const std::vector<const void *> &inputs, const std::vector<void *> &outputs, Team &team, Runs &runs,
             const std::function<bool()> &is_ended, const InPlace &now = {}) const;

    std::size_t size() const { return operations.size(); }

    // For builders:
    void add_node(const Node &node);
    bool has(const Node &node, std::size_t input) const;
    ValueId input(const Node &node, std::size_t input) const;
    const Value &value(ValueId id) const { return values[static_cast<std::size_t>(id)]; }
    bool is_known(ValueId id) const;
    Dims integers(ValueId id) const;  // of a constant of the graph
    ValueId add_output(const Node &node, std::size_t output, Type type, Dims dims);
    // Adds integers that are known at planning time.
    ValueId add_known(const Node &node, Type type, Dims dims, const Dims &numbers);
    void add_view(const Node &node, std::size_t output, ValueId of, Dims dims, std::size_t offset = 0);
    ValueId add_scratch(const std::vector<std::size_t> &factors);  // of their product, in bytes
    bool are_caches_in_place() const { return in_place.rows.has_value(); }
    bool are_windows_in_place() const { return in_place.turned.has_value(); }
    std::int64_t rows_now() { return reads_rows = true, *in_place.rows; }
    // `past`, an input, and `present` are one cache, to which a run appends; it is the output of that name.
    void keep_in_place(ValueId past, ValueId present, std::size_t added, const std::string &output);
    // `past`, an input, and `present`, an output, are one window, of which the row `added` (batch, heads, 1, size) replaces the oldest.
    void turn_in_place(ValueId past, ValueId present, ValueId added) { windows.push_back({past, present, added}); }
    template <class Op> void add(Op operation, const std::vector<ValueId> &reads, const std::vector<ValueId> &writes) {
        operation.reads = reads, operation.writes = writes;
        operations.push_back(std::make_unique<Op>(std::move(operation)));
    }

private:
    enum class Kind { arena, input, output, constant };
    struct Buffer {
        Kind kind;
        std::size_t index, bytes;  // index of the input, output or constant; for arena the offset in it
    };
    struct Work;

    ValueId add_value(Type type, Dims dims, Kind kind, std::size_t index);
    void name(const std::string &name, ValueId id);
    void fold(std::size_t first);
    void end_at_outputs(const Graph &graph);
    void place_in_arena();
    void make_stages();
    void require_room(std::int64_t rows) const;
    void find_apart();
    void require_places(const Run &run) const;
    void turn_windows(const Run &run) const;
    static void work(void *data, int thread, int threads, Team::Meeting &meeting);

    std::vector<Value> values;
    std::vector<Buffer> buffers;
    std::vector<std::string> constants;      // their bytes
    std::unordered_map<std::string, ValueId> names;
    Operations operations;
    std::vector<Stage> stages;
    std::vector<ValueId> results;
    const InPlace in_place;
    bool reads_rows = false;
    struct Cache {
        ValueId past, present;
        std::int64_t most;  // rows that it may have before a run
    };
    std::vector<Cache> caches;
    struct Turning {
        ValueId past, present, added;
    };
    std::vector<Turning> windows;
    std::vector<std::pair<ValueId, ValueId>> apart;  // inputs and outputs of one size that are not in place, if windows are
    std::map<std::string, ValueId> kept;  // caches in place, by output
    std::size_t arena_bytes = 0;
};

// Adds the operations of one node to a plan.
using Builder = void (*)(Plan &plan, const Node &node);

// By ONNX operator name; null if there is none here.
Builder builder_of(const std::string &op);

[[noreturn]] void refuse(const Node &node, const std::string &expected, const std::string &received);

}  // namespace t2r::provider
