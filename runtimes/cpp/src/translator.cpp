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

void require_source(const Source &source, const Ids &tokens) {
    if (tokens.empty()) fail(T2R_TOKEN, "a source of at least one token", "none", "encode it");
    for (const std::int64_t token : tokens)
        if (token < 0 || token >= source.vocab_size)
            fail(T2R_TOKEN, "tokens of a source in 0 … " + number(source.vocab_size - 1), number(token), "use the source's tokenizer");
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (source.max_source && count > source.max_source)
        fail(T2R_POSITION, "a source of at most " + number(source.max_source) + " tokens", number(count), "cut it into sentences");
}

void require(bool good, const char *expected, double received) {
    if (!good) fail(T2R_SAMPLING, expected, std::to_string(received), "choose another value");
}

// The beam with its max_tokens filled in.
Beam checked(Beam beam, const Signature &signature) {
    require_beam(beam);
    const auto forced = static_cast<std::int64_t>(signature.source->start_tokens.size()) - 1;
    const std::int64_t wanted = beam.max_tokens ? beam.max_tokens : signature.beam.max_tokens;
    require(beam.width <= signature.vocab_size, "a width of at most the vocabulary", static_cast<double>(beam.width));
    require(beam.n_best <= beam.width, "n_best of at most the width", static_cast<double>(beam.n_best));
    require(!wanted || wanted > forced, "max_tokens of more than those that every translation begins with", static_cast<double>(wanted));
    const std::int64_t most = signature.reach(), least = beam.max_tokens ? beam.max_tokens : forced + 1;
    if (most && most < least)
        fail(T2R_POSITION, "max_tokens of at most " + number(most) + ": this model's positions end there", number(least),
             "ask for fewer, or export with --past-end clamp or wrap:N");
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

}  // namespace

void encode_sources(Decoder &decoder, const std::vector<Ids> &sources) {
    const Source &source = source_of(decoder);
    const Signature &signature = decoder.signature();
    if (!decoder.opened()->has("encoder")) {
        if (signature.graphs.count("encoder")) fail(T2R_FILE, "an encoder beside the step graph", "none", "give its file to t2r_open_memory too");
        fail(T2R_GRAPH, "a translator's step graph, which names its encoder", "none", "export the model again");
    }
    if (sources.empty()) fail(T2R_TOKEN, "at least one source", "none", "give some");
    std::size_t longest = 0;
    for (const Ids &tokens : sources) {
        require_source(source, tokens);
        longest = std::max(longest, tokens.size());
    }
    const auto batch = static_cast<std::int64_t>(sources.size()), filled = static_cast<std::int64_t>(longest);
    const std::int64_t length = source.source_length ? source.source_length : filled;
    signature.require_batch(batch);
    signature.require_memory(batch, decoder.opened()->options.max_state_bytes, length);
    Ids ids(static_cast<std::size_t>(batch * length), 0), lengths;
    for (std::size_t row = 0; row < sources.size(); row++) {
        std::copy(sources[row].begin(), sources[row].end(), ids.begin() + static_cast<std::ptrdiff_t>(row) * length);
        lengths.push_back(static_cast<std::int64_t>(sources[row].size()));
    }
    std::vector<const char *> outputs;
    std::vector<std::size_t> numbers;  // indices of the encoder's output states
    for (std::size_t i = 0; i < signature.states.size(); i++) {
        const StateSpec &spec = signature.states[i];
        const bool started = std::count(source.start_states.begin(), source.start_states.end(), spec.name) > 0;
        if (!spec.constant && !started) continue;
        outputs.push_back(spec.constant ? spec.name.c_str() : spec.present.c_str());
        numbers.push_back(i);
    }
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<Ort::Value> inputs;
    inputs.push_back(tensor(memory, ids.data(), ids.size(), {batch, length}));
    inputs.push_back(tensor(memory, lengths.data(), lengths.size(), {batch}));
    const std::vector<Ort::Value> found = run(decoder, "encoder", {"source_ids", "source_lengths"}, inputs, outputs);
    auto fresh = std::make_unique<States>(decoder.opened(), decoder.cancellation(), batch);
    for (std::size_t i = 0; i < numbers.size(); i++) {
        const StateSpec &spec = signature.states[numbers[i]];
        const auto form = found[i].GetTensorTypeAndShapeInfo();
        if (form.GetShape() != spec.dims(batch, 0, length))  // dtypes were checked when the graph was opened
            fail(T2R_GRAPH, "states of the sources' sizes from the encoder", spec.name, "export the model again");
        std::byte *to = fresh->place(numbers[i], form.GetShape());
        std::memcpy(to, found[i].GetTensorRawData(), fresh->state(numbers[i]).bytes);
    }
    decoder.adopt(std::move(fresh));
}

std::vector<Translation> translate(Decoder &decoder, const Ids &source, const Beam &wanted) {
    require_source(source_of(decoder), source);
    const Beam beam = checked(wanted, decoder.signature());
    decoder.signature().require_batch(beam.width);
    decoder.signature().require_memory(beam.width, decoder.opened()->options.max_state_bytes, static_cast<std::int64_t>(source.size()));
    encode_sources(decoder, {source});
    return search(decoder, beam);
}

}  // namespace t2r
