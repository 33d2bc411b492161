#include "translator.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "interface.hpp"

namespace t2r {

namespace {

constexpr std::int64_t most_tokens = 256;

using Ids = std::vector<std::int64_t>;

const Source &source_of(const Decoder &decoder) {
    if (!decoder.signature().source) fail(T2R_GRAPH, "a translator", "the graph of a decoder alone", "use t2r_generate");
    return *decoder.signature().source;
}

// Throws Error of the kinds graph, token and position.
void require_source(const Decoder &decoder, const Ids &tokens) {
    const Source &source = source_of(decoder);
    if (tokens.empty()) fail(T2R_TOKEN, "a source of at least one token", "none", "encode it");
    for (const std::int64_t token : tokens)
        if (token < 0 || token >= source.vocab_size)
            fail(T2R_TOKEN, "tokens of a source in 0 … " + number(source.vocab_size - 1), number(token), "use the source's tokenizer");
    const auto count = static_cast<std::int64_t>(tokens.size());
    const std::int64_t given = decoder.opened()->options.max_source, most = source.max_source ? std::min(source.max_source, given) : given;
    if (count > most) fail(T2R_POSITION, "a source of at most " + number(most) + " tokens", number(count), "cut it into sentences");
}

// The beam with its max_tokens filled in.
Beam checked(Beam beam, const Signature &signature) {
    require_beam(beam);
    const auto forced = static_cast<std::int64_t>(signature.source->start_tokens.size()) - 1;
    const std::int64_t wanted = beam.max_tokens ? beam.max_tokens : signature.beam.max_tokens;
    require_option(beam.width <= signature.vocab_size, "a width of at most the vocabulary", static_cast<double>(beam.width));
    require_option(beam.n_best <= beam.width, "n_best of at most the width", static_cast<double>(beam.n_best));
    require_option(!wanted || wanted > forced, "max_tokens of more than those that every translation begins with", static_cast<double>(wanted));
    const std::int64_t most = signature.reach(), least = beam.max_tokens ? beam.max_tokens : forced + 1;
    if (most && most < least)
        fail(T2R_POSITION, "max_tokens of at most " + number(most) + ": this model's positions end there", number(least),
             "request fewer, or export with --past-end clamp or wrap:N");
    if (beam.max_tokens) return beam;
    beam.max_tokens = wanted ? wanted : most_tokens;
    if (most) beam.max_tokens = std::min(beam.max_tokens, most);
    return beam;
}

template <class T> Ort::Value tensor(const Ort::MemoryInfo &memory, T *values, std::size_t count, const Shape &shape) {
    return Ort::Value::CreateTensor<T>(memory, values, count, shape.data(), shape.size());
}

std::vector<Ort::Value> run(Decoder &decoder, const char *role, const std::vector<const char *> &names,
                            const std::vector<Ort::Value> &inputs, const std::vector<const char *> &outputs) {
    Ort::Session &session = *decoder.opened()->companion(role);
    return decoder.cancellation().run("the graph beside the step graph to run", [&](const Ort::RunOptions &options) {
        return session.Run(options, names.data(), inputs.data(), inputs.size(), outputs.data(), outputs.size());
    });
}

// Number of sources that are encoded together: their attention scores are at most those of one with `max_source` tokens.
std::int64_t portion_of(const Decoder &decoder, std::int64_t batch, std::int64_t length) {
    if (decoder.signature().batch) return batch;
    const double sources = static_cast<double>(decoder.opened()->options.max_source) / static_cast<double>(length);
    return static_cast<std::int64_t>(std::clamp(sources * sources, 1.0, static_cast<double>(batch)));
}

struct Encoded {
    std::vector<std::size_t> numbers;   // indices of the states that the encoder outputs
    std::vector<const char *> outputs;  // their names there
};

Encoded encoded_of(const Signature &signature) {
    Encoded found;
    const auto &started = signature.source->start_states;
    for (std::size_t i = 0; i < signature.states.size(); i++) {
        const StateSpec &spec = signature.states[i];
        if (!spec.constant && !std::count(started.begin(), started.end(), spec.name)) continue;
        found.numbers.push_back(i);
        found.outputs.push_back(spec.constant ? spec.name.c_str() : spec.present.c_str());
    }
    return found;
}

// Encode `count` of the sources from row `first` on, padded to `length`, and write their states into those rows of `made`.
void encode_portion(Decoder &decoder, const std::vector<Ids> &sources, std::int64_t first, std::int64_t count, std::int64_t length,
                    const Encoded &encoded, States &made) {
    const Signature &signature = decoder.signature();
    Ids ids(static_cast<std::size_t>(count * length), 0), lengths;
    for (std::int64_t row = 0; row < count; row++) {
        const Ids &tokens = sources[static_cast<std::size_t>(first + row)];
        std::copy(tokens.begin(), tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(row * length));
        lengths.push_back(static_cast<std::int64_t>(tokens.size()));
    }
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<Ort::Value> inputs;
    inputs.push_back(tensor(memory, ids.data(), ids.size(), {count, length}));
    inputs.push_back(tensor(memory, lengths.data(), lengths.size(), {count}));
    const std::vector<Ort::Value> found = run(decoder, "encoder", {"source_ids", "source_lengths"}, inputs, encoded.outputs);
    for (std::size_t i = 0; i < found.size(); i++) {
        const StateSpec &spec = signature.states[encoded.numbers[i]];
        const Shape all = spec.dims(made.batch, 0, length);
        if (found[i].GetTensorTypeAndShapeInfo().GetShape() != spec.dims(count, 0, length))  // dtypes were checked at opening
            fail(T2R_GRAPH, "states of the sources' sizes from the encoder", printable(spec.name, 100), "export the model again");
        std::byte *to = made.place(encoded.numbers[i], all);
        const std::size_t row = made.state(encoded.numbers[i]).bytes / static_cast<std::size_t>(made.batch);
        std::memcpy(to + static_cast<std::size_t>(first) * row, found[i].GetTensorRawData(), static_cast<std::size_t>(count) * row);
    }
}

}  // namespace

void encode_sources(Decoder &decoder, const std::vector<Ids> &sources) {
    const Source &source = source_of(decoder);
    const Signature &signature = decoder.signature();
    if (!decoder.opened()->has("encoder")) {
        if (signature.graphs.count("encoder")) fail(T2R_FILE, "an encoder beside the step graph", "none", "pass its file to t2r_open_memory too");
        fail(T2R_GRAPH, "a translator's step graph, which names its encoder", "none", "export the model again");
    }
    if (sources.empty()) fail(T2R_TOKEN, "at least one source", "none", "pass some");
    std::size_t longest = 0;
    for (const Ids &tokens : sources) {
        require_source(decoder, tokens);
        longest = std::max(longest, tokens.size());
    }
    const auto batch = static_cast<std::int64_t>(sources.size()), filled = static_cast<std::int64_t>(longest);
    const std::int64_t length = source.source_length ? source.source_length : filled;
    signature.require_batch(batch);
    signature.require_memory(batch, decoder.opened()->options.max_state_bytes, length);
    auto fresh = std::make_unique<States>(decoder.opened(), decoder.cancellation(), batch);
    const Encoded encoded = encoded_of(signature);
    const std::int64_t portion = portion_of(decoder, batch, length);
    for (std::int64_t first = 0; first < batch; first += portion)
        encode_portion(decoder, sources, first, std::min(portion, batch - first), length, encoded, *fresh);
    decoder.adopt(std::move(fresh));
}

std::vector<Translation> translate(Decoder &decoder, const Ids &source, const Beam &wanted) {
    require_source(decoder, source);
    const Beam beam = checked(wanted, decoder.signature());
    decoder.signature().require_batch(beam.width);
    decoder.signature().require_memory(beam.width, decoder.opened()->options.max_state_bytes, static_cast<std::int64_t>(source.size()));
    encode_sources(decoder, {source});
    const Copying *copying = beam.copy ? decoder.opened()->copying() : nullptr;
    const std::unique_ptr<Copies> copies = copying ? copying->of(source) : nullptr;
    return search(decoder, beam, copies.get());
}

}  // namespace t2r
