// The recurrent states between two steps: matched by name, double-buffered.
//
// A state of fixed shape has two buffers, and two bindings made once: one reads the first and writes the second, the other
// the reverse. A cache also has two buffers, which grow by doubling, so that a step seldom allocates; it is bound again at
// each step, since its length is part of its shape. On our own execution provider, from the second of several steps in a row on,
// caches and windows are in place (runtimes/provider/README.md): a cache is one buffer with room for more tokens, to which a step appends,
// and a window one buffer in which a step replaces the oldest row.
// Constant states, those of a source, have one buffer.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cancellation.hpp"
#include "graph.hpp"

namespace t2r {

// Memory of a tensor, aligned to a cache line.
class Buffer {
public:
    // Make the capacity at least `bytes`; growing loses the contents. Throws std::bad_alloc.
    void reserve(std::size_t bytes, bool doubling = false);
    std::byte *data() const { return memory.get(); }

private:
    struct Free {
        void operator()(std::byte *memory) const;
    };
    std::unique_ptr<std::byte, Free> memory;
    std::size_t capacity = 0;
};

// Outputs of a run: all logits, or the largest and their tokens, and for a translator the logits' log-sum-exp.
enum class Wanted { logits, top };

struct StateView {
    const StateSpec *spec;
    const Shape *shape;
    const std::byte *data;
    std::size_t bytes;
};

class States {
public:
    // At the start of a text. Throws Error of the kind batch if the graph has another fixed batch, or the batch is too large.
    // `cancellation` is the decoder's, and must outlive this.
    States(std::shared_ptr<Graph> graph, Cancellation &cancellation, std::int64_t batch);

    // Reset states to their initial values, caches to length 0, sources to length 1.
    void reset();
    // Read tokens (batch, length), or vectors, row-major, in one run; a length above 1 needs a prefill graph. An exception
    // leaves the states unchanged.
    void read(const std::byte *inputs, std::int64_t length, Wanted wanted);
    // Read tokens (batch, length) with the draft-check graph in one run; the states include the first `keep` of each row only. Afterwards
    // `checked_` results are those after each token, (batch, length, ·).
    void check(const std::int64_t *tokens, std::int64_t length, std::int64_t keep, Wanted wanted);
    // Restore the states before the last run, a check.
    void uncheck();
    // Bytes of one token or vector.
    std::size_t input_bytes() const { return input_size ? 4 * static_cast<std::size_t>(input_size) : 8; }
    // Copy these `batch` rows from states of the same graph. Throws Error of the kind batch if their caches or sources differ in
    // length; these states are then partly overwritten.
    void take(const std::vector<std::pair<const States *, std::int64_t>> &rows);
    // Permute or repeat rows in place; rows that keep their place are not copied. Throws std::bad_alloc before any change.
    void exchange(const std::vector<std::int64_t> &rows);

    // The tokens of the source that the constant states are for, as padded; 1 without one.
    std::int64_t source_length() const;
    std::size_t count() const { return slots.size(); }
    // Copies a state that is in place. Throws std::bad_alloc.
    StateView state(std::size_t index);
    // Memory for a state of this shape, which the caller fills in and the next step reads.
    std::byte *place(std::size_t index, const Shape &shape);

    const float *logits() const { return reinterpret_cast<const float *>(results[0].data()); }
    const float *top_logits() const { return reinterpret_cast<const float *>(results[1].data()); }
    const std::int64_t *top_tokens() const { return reinterpret_cast<const std::int64_t *>(results[2].data()); }
    const float *checked_values() const { return reinterpret_cast<const float *>(checked[0].data()); }
    const std::int64_t *checked_tokens() const { return reinterpret_cast<const std::int64_t *>(checked[1].data()); }
    const float *log_sums() const { return reinterpret_cast<const float *>(results[3].data()); }

    const std::int64_t batch;

private:
    struct Slot {
        const StateSpec *spec;
        Buffer buffers[2];
        Shape shape, next;  // now, and after the run
        std::size_t growing = 0;  // growing dimension of a cache
        std::int64_t room = 0;    // tokens for which a cache in place has memory; 0: it is not in place
        bool is_window = false, turns = false;  // whether it can be a window in place, and is one

        bool is_in_place() const { return room || turns; }
    };
    // What is contiguous of a sequence's state: a part by head of a cache, else one part. Its bytes, and those up to the next part.
    struct Parts {
        std::size_t count, bytes, step;
        std::size_t all() const { return count * step; }
    };

    Parts parts_of(const Slot &slot, std::int64_t room) const;
    Parts parts_of(const Slot &slot) const { return parts_of(slot, slot.room); }
    std::byte *data(const Slot &slot) const { return slot.buffers[slot.spec->constant ? 0 : turn].data(); }
    void copy_row(const Slot &slot, std::size_t row, std::byte *to) const;
    void put_in_place();
    void turn_in_place();
    void take_out();
    Ort::Value value(const StateSpec &spec, const Buffer &buffer, const Shape &shape) const;
    Ort::Value value(Buffer &buffer, ONNXTensorElementDataType dtype, std::size_t bytes, const Shape &shape) const;
    Ort::Value inputs_value(Buffer &buffer, std::int64_t length, Shape shape) const;
    void bind_states(Ort::IoBinding &binding, int past) const;
    Ort::IoBinding bind(Ort::Session &session, int past, Wanted wanted, const Ort::Value &inputs);
    void bind_caches(Ort::IoBinding &binding, std::int64_t length);
    void run(Ort::Session &session, Ort::IoBinding &binding, std::int64_t length);
    void append(Wanted wanted);
    void run_in_place(Wanted wanted);
    Ort::IoBinding &binding(Wanted wanted);

    std::shared_ptr<Graph> graph;
    Cancellation &cancellation;
    Ort::MemoryInfo memory;
    std::vector<Slot> slots;
    std::int64_t input_size;
    bool grows = false, appends = false;  // appends: caches or windows can be in place
    bool follows = false;  // whether the last run was a step, so that they are worth it
    std::int64_t turned = 0;  // tokens that the windows in place have read
    int turn = 0;  // index of the buffer that the next step reads, and of its binding
    Buffer inputs, results[4], checked[2], rows_between;
    Ort::Value one{nullptr};  // one input per sequence
    std::vector<Ort::Value> result_values;
    std::map<std::pair<Wanted, int>, Ort::IoBinding> bindings;
};

}  // namespace t2r
