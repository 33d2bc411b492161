// A step graph as a decoder: tokens in, logits out; it keeps the states between steps.
#pragma once

#include <functional>

#include "drafts.hpp"
#include "error.hpp"
#include "history.hpp"
#include "states.hpp"

namespace t2r {

struct Logits {
    const float *values;          // (batch, vocabulary), or (batch, top_k)
    const std::int64_t *tokens;   // token of each value; null: all tokens in order
    const float *sums = nullptr;  // of a translator's largest: log of the sum of exp of all logits, (batch)
};

// A state from the caller.
struct GivenState {
    std::string name;
    Dtype dtype;
    Shape shape;
    const void *data;  // its elements, as many as the shape has
};

class Decoder {
public:
    explicit Decoder(std::shared_ptr<Graph> graph);
    // Another decoder of the same graph, with a copy of the states.
    Decoder copy() const;

    const Signature &signature() const { return graph->signature; }
    const std::shared_ptr<Graph> &opened() const { return graph; }
    std::int64_t batch() const { return states->batch; }
    std::int64_t position() const;
    const History &history(std::size_t row = 0) const { return histories[row]; }
    States &all_states() const { return *states; }
    Cancellation &cancellation() const { return *ending; }
    bool drafts() const { return drafting; }
    // Whether `generate` makes drafts by prompt lookup. Throws Error of the kind graph without a draft-check graph.
    void draft(bool lookup);
    RunTimes run_times;  // of drafted texts

    // Throws Error. Kinds token, batch, position, graph (no such outputs): nothing was read. Kinds cancelled, memory, runtime:
    // `position` tokens were read, and the states are those after them.
    Logits read(const std::int64_t *tokens, std::int64_t rows, std::int64_t length, Wanted wanted = Wanted::logits);
    // The same for finite vectors (rows, length, size), which are not in the history.
    Logits read_vectors(const float *vectors, std::int64_t rows, std::int64_t length, std::int64_t size);
    // Read tokens of one sequence with the draft-check graph; the states then include the first `keep`, and the logits are those after
    // each token. `checked` or `uncheck` must follow before any other read: position and history are as before until then.
    Logits check(const std::vector<std::int64_t> &tokens, std::size_t keep, Wanted wanted);
    // The tokens that the states include since `check`.
    void checked(const std::vector<std::int64_t> &tokens);
    void uncheck() { states->uncheck(); }
    // Throws Error of the kind batch, and the decoder is unchanged.
    void reset(std::int64_t batch);
    // Rows that keep their place are not copied if the batch keeps its size.
    void reorder(const std::vector<std::int64_t> &rows);
    using Row = std::pair<const Decoder *, std::int64_t>;
    // Replace the batch by these rows of decoders of the same graph, also of this one. Throws Error of the kind batch, and the
    // decoder is unchanged.
    void take(const std::vector<Row> &rows);
    // Choose an adapter by name, or none (null), for each sequence, or one for all. Throws Error of the kind argument, and the
    // decoder is unchanged.
    void adapt(const std::vector<const char *> &names);
    // Throws Error of the kinds snapshot (missing or unexpected names, wrong dtypes or shapes) and batch (too many or too large),
    // and the decoder is unchanged.
    void set_states(const std::vector<GivenState> &given, std::int64_t position);
    // Continue from these states, at the start of a text.
    void adopt(std::unique_ptr<States> fresh);

    void require_tokens(const std::int64_t *tokens, std::size_t count) const;
    void require_room(std::int64_t tokens) const;
    // Throws Error of the kind batch.
    void require_row(std::int64_t row) const;

private:
    void start(std::int64_t batch);
    Logits read_parts(const std::byte *inputs, std::int64_t rows, std::int64_t length, Wanted wanted);
    void exchange(const std::vector<std::int64_t> &rows);

    std::shared_ptr<Graph> graph;
    std::unique_ptr<Cancellation> ending;
    std::unique_ptr<States> states;
    std::vector<std::int64_t> positions;  // tokens that each sequence has read
    std::vector<History> histories;
    bool drafting = false;
};

}  // namespace t2r
