#include "decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "error.hpp"

namespace t2r {

namespace {

constexpr std::int64_t rows_in_a_run = 512;  // enough rows for the fastest matrix products; bounds their memory

std::string show(const Shape &shape) {
    std::string text = "(";
    for (std::size_t i = 0; i < shape.size(); i++) text += (i ? ", " : "") + number(shape[i]);
    return text + ")";
}

// Values of the symbolic dimensions, set by the first state that has them; 0: not yet known.
struct Letters {
    std::int64_t batch = 0, length = -1, source = 0;

    bool fits(std::int64_t want, std::int64_t have) {
        if (want > 0) return want == have;
        std::int64_t &letter = want == dim_batch ? batch : want == dim_growing ? length : source;
        if (have < (want == dim_growing ? 0 : 1)) return false;
        if (letter <= 0 && !(want == dim_growing && letter == 0)) letter = have;
        return letter == have;
    }
};

}  // namespace

Decoder::Decoder(std::shared_ptr<Graph> opened) : graph(std::move(opened)), ending(std::make_unique<Cancellation>()) {
    start(signature().batch ? signature().batch : 1);
}

void Decoder::start(std::int64_t batch) { adopt(std::make_unique<States>(graph, *ending, batch)); }

Decoder Decoder::copy() const {
    Decoder other(graph);
    std::vector<Row> rows;
    for (std::int64_t row = 0; row < batch(); row++) rows.emplace_back(this, row);
    other.take(rows);
    return other;
}

void Decoder::adopt(std::unique_ptr<States> fresh) {
    std::vector<History> empty(static_cast<std::size_t>(fresh->batch));
    positions.assign(static_cast<std::size_t>(fresh->batch), 0);
    histories.swap(empty);
    states = std::move(fresh);
}

std::int64_t Decoder::position() const { return *std::max_element(positions.begin(), positions.end()); }

void Decoder::require_tokens(const std::int64_t *tokens, std::size_t count) const {
    for (std::size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= signature().vocab_size)  // some providers silently take -1 for the last token
            fail(T2R_TOKEN, "tokens in 0 … " + number(signature().vocab_size - 1), number(tokens[i]),
                 "use the tokenizer of this model");
}

void Decoder::require_row(std::int64_t row) const {
    if (row < 0 || row >= batch()) fail(T2R_BATCH, "rows in 0 … " + number(batch() - 1), number(row), "choose others");
}

void Decoder::require_room(std::int64_t tokens) const {
    const std::int64_t limit = signature().reach();
    if (limit && (tokens > limit || position() > limit - tokens))
        fail(T2R_POSITION, "at most " + number(limit) + " tokens, where this model's positions end",
             number(tokens) + " more after " + number(position()),
             "reset, read less, or export with --past-end clamp or wrap:N");
}

Logits Decoder::read(const std::int64_t *tokens, std::int64_t rows, std::int64_t length, Wanted wanted) {
    signature().require_tokens();
    if (rows != batch())
        fail(T2R_BATCH, "tokens of " + number(batch()) + " sequences", number(rows), "give each sequence as many");
    if (length < 1) fail(T2R_TOKEN, "at least one token", "none", "start from the BOS token, or from any");
    if (wanted == Wanted::top && !signature().top_k)
        fail(T2R_GRAPH, "a graph that chooses the largest logits", "one without", "export with --top-k");
    require_tokens(tokens, static_cast<std::size_t>(rows * length));
    return read_parts(reinterpret_cast<const std::byte *>(tokens), rows, length, wanted);
}

Logits Decoder::read_vectors(const float *vectors, std::int64_t rows, std::int64_t length, std::int64_t size) {
    const std::int64_t wanted = signature().input_size;
    if (!wanted) fail(T2R_TOKEN, "token ids", "vectors", "pass token ids, or export with inputs_embeds");
    if (rows != batch() || size != wanted)
        fail(T2R_BATCH, "vectors of " + number(wanted) + " elements, of " + number(batch()) + " sequences",
             number(size) + " of " + number(rows), "pass one row per sequence");
    if (length < 1) fail(T2R_TOKEN, "at least one vector", "none", "pass what the front end computes");
    const float *const end = vectors + rows * length * size;
    if (!std::all_of(vectors, end, [](float number) { return std::isfinite(number); }))
        fail(T2R_TOKEN, "finite vectors", "NaN or infinity", "check the front end");
    return read_parts(reinterpret_cast<const std::byte *>(vectors), rows, length, Wanted::logits);
}

Logits Decoder::read_parts(const std::byte *inputs, std::int64_t rows, std::int64_t length, Wanted wanted) {
    require_room(length);
    const std::int64_t many = graph->has("prefill") ? std::max<std::int64_t>(rows_in_a_run / rows, 1) : 1;
    const auto one = static_cast<std::int64_t>(states->input_bytes());
    const bool tokens = signature().input_size == 0;
    std::vector<std::byte> part;
    for (std::int64_t begin = 0; begin < length; begin += many) {
        const std::int64_t count = std::min(many, length - begin);
        const std::byte *these = inputs;
        if (count < length) {
            part.clear();
            for (std::int64_t row = 0; row < rows; row++)
                part.insert(part.end(), inputs + (row * length + begin) * one, inputs + (row * length + begin + count) * one);
            these = part.data();
        }
        if (tokens)
            for (History &history : histories) history.reserve(static_cast<std::size_t>(count));
        states->read(these, count, wanted);
        for (std::int64_t row = 0; row < rows; row++) {
            positions[static_cast<std::size_t>(row)] += count;
            for (std::int64_t t = 0; tokens && t < count; t++) {
                std::int64_t token;
                std::memcpy(&token, these + (row * count + t) * one, sizeof token);
                histories[static_cast<std::size_t>(row)].add(token);
            }
        }
    }
    if (wanted == Wanted::top) return {states->top_logits(), states->top_tokens(), signature().source ? states->log_sums() : nullptr};
    return {states->logits(), nullptr};
}

void Decoder::draft(bool lookup) {
    if (lookup && !graph->companion("draft_check"))  // opens it before runs are timed
        fail(T2R_GRAPH, "a draft-check graph beside the step graph", "none", "export with --draft-check, and open it from a file; int8 has none");
    drafting = lookup;
}

Logits Decoder::check(const std::vector<std::int64_t> &tokens, std::size_t keep, Wanted wanted) {
    require_room(static_cast<std::int64_t>(tokens.size()));
    histories[0].reserve(keep);
    states->check(tokens.data(), static_cast<std::int64_t>(tokens.size()), static_cast<std::int64_t>(keep), wanted);
    return {states->checked_values(), wanted == Wanted::top ? states->checked_tokens() : nullptr};
}

void Decoder::checked(const std::vector<std::int64_t> &tokens) {
    positions[0] += static_cast<std::int64_t>(tokens.size());
    for (const std::int64_t token : tokens) histories[0].add(token);
}

void Decoder::reset(std::int64_t wanted) {
    if (wanted != batch()) return start(wanted);
    states->reset();
    std::fill(positions.begin(), positions.end(), 0);
    for (History &history : histories) history.clear();
}

void Decoder::reorder(const std::vector<std::int64_t> &rows) {
    if (static_cast<std::int64_t>(rows.size()) == batch()) {
        for (const std::int64_t row : rows) require_row(row);
        return exchange(rows);
    }
    std::vector<Row> chosen;
    for (const std::int64_t row : rows) chosen.emplace_back(this, row);
    take(chosen);
}

void Decoder::take(const std::vector<Row> &rows) {
    signature().require_batch(static_cast<std::int64_t>(rows.size()));
    std::vector<std::pair<const States *, std::int64_t>> chosen;
    std::vector<std::int64_t> read;
    std::vector<History> texts;
    for (const auto &[other, row] : rows) {
        if (other->graph != graph) fail(T2R_BATCH, "decoders of one opened graph", "one of another", "take forks and copies of one");
        other->require_row(row);
        chosen.emplace_back(other->states.get(), row);
        read.push_back(other->positions[static_cast<std::size_t>(row)]);
        texts.push_back(other->histories[static_cast<std::size_t>(row)]);
    }
    const auto count = static_cast<std::int64_t>(rows.size());
    signature().require_memory(count, graph->options.max_state_bytes, chosen.front().first->source_length());
    auto taken = std::make_unique<States>(graph, *ending, count);
    taken->take(chosen);
    states = std::move(taken);
    positions.swap(read);
    histories.swap(texts);
}

void Decoder::exchange(const std::vector<std::int64_t> &rows) {
    struct Moved {
        std::size_t to;
        std::int64_t position;
        History text;
    };
    std::vector<Moved> moved;
    for (std::size_t row = 0; row < rows.size(); row++)
        if (const auto from = static_cast<std::size_t>(rows[row]); from != row) moved.push_back({row, positions[from], histories[from]});
    if (moved.empty()) return;
    states->exchange(rows);
    for (Moved &row : moved) {
        positions[row.to] = row.position;
        histories[row.to] = std::move(row.text);
    }
}

void Decoder::adapt(const std::vector<const char *> &names) {
    const auto &known = signature().adapters;
    const auto rows = static_cast<std::size_t>(batch());
    if (names.size() != rows && names.size() != 1)
        fail(T2R_ARGUMENT, "one name of an adapter, or one per sequence: " + number(batch()),
             number(static_cast<std::int64_t>(names.size())), "pass one for each");
    std::vector<std::int32_t> numbers;
    for (std::size_t row = 0; row < rows; row++) {
        const char *name = names[names.size() == 1 ? 0 : row];
        const auto found = std::find(known.begin(), known.end(), name ? name : "");
        if (name && found == known.end()) {
            std::string all = known.empty() ? "a graph with adapters" : "an adapter of this graph: ";
            for (std::size_t i = 0; i < known.size(); i++) all += (i ? ", " : "") + known[i];
            fail(T2R_ARGUMENT, printable(all, 400), printable(name, 100), known.empty() ? "export it with --adapter NAME=PATH" : "use one of those");
        }
        numbers.push_back(name ? static_cast<std::int32_t>(found - known.begin()) + 1 : 0);
    }
    const auto &specs = signature().states;
    for (std::size_t i = 0; !known.empty() && i < specs.size(); i++)
        if (is_adapter(specs[i])) std::memcpy(states->place(i, {batch()}), numbers.data(), 4 * rows);
}

void Decoder::set_states(const std::vector<GivenState> &given, std::int64_t position) {
    const auto refuse = [&](const std::string &problem) {
        fail(T2R_SNAPSHOT, "the states of this graph, one batch size, one cache length and one length of the sources in all of them",
             printable(problem), "take them from the same model");
    };
    if (position < 0 || position >= std::int64_t{1} << 62)
        fail(T2R_SNAPSHOT, "a position of at least 0", number(position), "pass the number of tokens read");
    const auto &specs = signature().states;
    if (given.size() != specs.size()) refuse(number(static_cast<std::int64_t>(given.size())) + " states");
    Letters letters;
    letters.batch = signature().batch;
    std::vector<const GivenState *> ordered;
    for (const StateSpec &spec : specs) {
        const auto found = std::find_if(given.begin(), given.end(), [&](const GivenState &g) { return g.name == spec.name; });
        if (found == given.end()) refuse("missing " + spec.name);
        bool fits = found->dtype == spec.dtype && found->shape.size() == spec.shape.size();
        for (std::size_t i = 0; fits && i < spec.shape.size(); i++) fits = letters.fits(spec.shape[i], found->shape[i]);
        if (!fits) refuse(spec.name + " " + name_of(found->dtype) + " " + show(found->shape));
        ordered.push_back(&*found);
    }
    const std::int64_t rows = letters.batch ? letters.batch : 1;
    signature().require_memory(rows, graph->options.max_state_bytes, std::max<std::int64_t>(letters.source, 1));
    std::vector<std::int64_t> read(static_cast<std::size_t>(rows), letters.length > 0 ? letters.length : position);
    for (std::size_t i = 0; i < specs.size(); i++) {
        if (specs[i].name != "position" || specs[i].dtype != Dtype::int32 || specs[i].shape != Shape{dim_batch}) continue;
        for (std::size_t row = 0; row < read.size(); row++) {
            std::int32_t count;
            std::memcpy(&count, static_cast<const char *>(ordered[i]->data) + 4 * row, 4);
            if (count < 0) fail(T2R_SNAPSHOT, "positions of at least 0", number(count), "take the states from a decoder or a snapshot");
            read[row] = count;
        }
    }
    const auto most = static_cast<std::int32_t>(signature().adapters.size());
    for (std::size_t i = 0; i < specs.size(); i++) {
        if (!most || !is_adapter(specs[i])) continue;
        for (std::size_t row = 0; row < read.size(); row++) {
            std::int32_t chosen;
            std::memcpy(&chosen, static_cast<const char *>(ordered[i]->data) + 4 * row, 4);
            if (chosen < 0 || chosen > most)
                fail(T2R_SNAPSHOT, "numbers of adapters in 0 … " + number(most), number(chosen), "take the states from this graph");
        }
    }
    auto fresh = std::make_unique<States>(graph, *ending, rows);
    for (std::size_t i = 0; i < specs.size(); i++) {
        std::byte *to = fresh->place(i, ordered[i]->shape);
        if (const std::size_t bytes = fresh->state(i).bytes) std::memcpy(to, ordered[i]->data, bytes);  // an empty cache has no data
    }
    std::vector<History> empty(read.size());
    states = std::move(fresh);
    positions.swap(read);
    histories.swap(empty);
}

}  // namespace t2r
