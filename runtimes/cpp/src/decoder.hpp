// A step graph as a decoder: tokens in, logits out, and the states between them kept where nobody can forget them.
#pragma once

#include <functional>

#include "error.hpp"
#include "history.hpp"
#include "states.hpp"

namespace t2r {

struct Logits {
    const float *values;          // (batch, vocabulary), or (batch, top_k)
    const std::int64_t *tokens;   // whose they are; null: of all
    const float *sums = nullptr;  // of a translator's largest: log of the sum of exp of all, (batch)
};

// A state that somebody gives us.
struct GivenState {
    std::string name;
    Dtype dtype;
    Shape shape;
    const void *data;  // its numbers, as many as the shape says
};

class Decoder {
public:
    explicit Decoder(std::shared_ptr<Graph> graph);
    // Another of the same graph, which stands where this one does.
    Decoder copy() const;

    const Signature &signature() const { return graph->signature; }
    const std::shared_ptr<Graph> &opened() const { return graph; }
    std::int64_t batch() const { return states->batch; }
    std::int64_t position() const;
    const History &history(std::size_t row = 0) const { return histories[row]; }
    const States &all_states() const { return *states; }
    Cancellation &cancellation() const { return *ending; }

    // Throws Error: of the kinds token, batch and position (graph: no such outputs); nothing has been read then. Of the kinds
    // cancelled, memory and runtime: what `position` says has been read, and the states are those after it.
    Logits read(const std::int64_t *tokens, std::int64_t rows, std::int64_t length, Wanted wanted = Wanted::logits);
    // The same of finite vectors (rows, length, size), which no history remembers.
    Logits read_vectors(const float *vectors, std::int64_t rows, std::int64_t length, std::int64_t size);
    // Throws Error of the kind batch. All is as before then.
    void reset(std::int64_t batch);
    // Rows that stay in their places are not touched.
    void reorder(const std::vector<std::int64_t> &rows);
    using Row = std::pair<const Decoder *, std::int64_t>;
    // Become these rows of decoders of the same graph, of this one too. Throws Error of the kind batch. All is as before then.
    void take(const std::vector<Row> &rows);
    // Throws Error of the kind snapshot: missing or unexpected names, other dtypes or shapes. All is as before then.
    void set_states(const std::vector<GivenState> &given, std::int64_t position);
    // Go on from these, at the start of a text.
    void adopt(std::unique_ptr<States> fresh);
    // One run of the generation graph, which reads `token`: the tokens that it wrote.
    std::vector<std::int64_t> generate_in_graph(std::int64_t token,
                                                const std::vector<std::pair<const char *, Ort::Value>> &inputs);

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
};

}  // namespace t2r
