// The recurrent states between two steps: chained by name, in two buffers that change places.
//
// A state of constant shape has two buffers, and two bindings made once: one reads the first and writes the second, the
// other the reverse. A cache has two as well, which grow by doubling, so that a step seldom allocates; it is bound anew at
// each step, since its length is part of its shape. What no step changes, a source's states, has one buffer.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cancellation.hpp"
#include "graph.hpp"

namespace t2r {

// Memory of tensors, at a cache line's edge.
class Buffer {
public:
    // At least so many bytes, whose contents are lost if there were fewer. Throws std::bad_alloc.
    void reserve(std::size_t bytes, bool doubling = false);
    std::byte *data() const { return memory.get(); }

private:
    struct Free {
        void operator()(std::byte *memory) const;
    };
    std::unique_ptr<std::byte, Free> memory;
    std::size_t capacity = 0;
};

// What is fetched from a run: all logits, or the largest and their tokens, and of a translator the logarithm of their sum.
enum class Wanted { logits, top };

struct StateView {
    const StateSpec *spec;
    const Shape *shape;
    const std::byte *data;
    std::size_t bytes;
};

class States {
public:
    // At the start of a text. Throws Error of the kind batch: the graph takes another number, or more than may be.
    // `cancellation` is the decoder's, and outlives this.
    States(std::shared_ptr<Graph> graph, Cancellation &cancellation, std::int64_t batch);

    // Every state to its initial value, every cache to no token, every source to one of length 1.
    void reset();
    // Read tokens (batch, length), or vectors, row by row, in one run: many need a prefill graph. What raises leaves the
    // states as they were.
    void read(const std::byte *inputs, std::int64_t length, Wanted wanted);
    // Bytes of a token, or of a vector.
    std::size_t input_bytes() const { return input_size ? 4 * static_cast<std::size_t>(input_size) : 8; }
    // Let the generation graph go on from `inputs` beside the states: the tokens that it wrote.
    std::vector<std::int64_t> generate(const std::vector<std::pair<const char *, Ort::Value>> &inputs);
    // Become these rows of states of the same graph: as many as `batch`. Throws Error of the kind batch: their caches, or their
    // sources, have different lengths; nothing is as before then.
    void take(const std::vector<std::pair<const States *, std::int64_t>> &rows);
    // Put these rows in the places of all rows; those that stay are not touched. Throws std::bad_alloc, before any is.
    void exchange(const std::vector<std::int64_t> &rows);

    std::size_t count() const { return slots.size(); }
    StateView state(std::size_t index) const;
    // Memory for a state of this shape, to be filled in: where the next step reads it.
    std::byte *place(std::size_t index, const Shape &shape);

    const float *logits() const { return reinterpret_cast<const float *>(results[0].data()); }
    const float *top_logits() const { return reinterpret_cast<const float *>(results[1].data()); }
    const std::int64_t *top_tokens() const { return reinterpret_cast<const std::int64_t *>(results[2].data()); }
    const float *log_sums() const { return reinterpret_cast<const float *>(results[3].data()); }

    const std::int64_t batch;

private:
    struct Slot {
        const StateSpec *spec;
        Buffer buffers[2];
        Shape shape, next;  // now, and after the run
        std::size_t growing = 0;  // which dimension of a cache does
    };

    Ort::Value value(const StateSpec &spec, const Buffer &buffer, const Shape &shape) const;
    Ort::Value value(Buffer &buffer, ONNXTensorElementDataType dtype, std::size_t bytes, const Shape &shape) const;
    Ort::Value inputs_value(Buffer &buffer, std::int64_t length, Shape shape) const;
    Ort::IoBinding bind(Ort::Session &session, int past, Wanted wanted, const Ort::Value &inputs);
    void bind_caches(Ort::IoBinding &binding, std::int64_t length);
    void run(Ort::Session &session, Ort::IoBinding &binding, std::int64_t length);
    Ort::IoBinding &binding(Wanted wanted);

    std::shared_ptr<Graph> graph;
    Cancellation &cancellation;
    Ort::MemoryInfo memory;
    std::vector<Slot> slots;
    std::int64_t input_size;
    bool grows = false;
    int turn = 0;  // the buffer, and the binding, that the next step reads from
    Buffer inputs, results[4], rows_between;
    Ort::Value one{nullptr};  // input of each sequence
    std::vector<Ort::Value> result_values;
    std::map<std::pair<Wanted, int>, Ort::IoBinding> bindings;
};

}  // namespace t2r
