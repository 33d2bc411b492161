#include "generate.hpp"

#include <algorithm>

#include "interface.hpp"

namespace t2r {

namespace {

using Inputs = std::vector<std::pair<const char *, Ort::Value>>;

void require_in_order(const Decoder &decoder, const Request &request, const std::vector<std::int64_t> &stops) {
    const Signature &signature = decoder.signature();
    signature.require_tokens();
    require_sampling(request.sampling);
    if (request.max_tokens < 1) fail(T2R_SAMPLING, "max_tokens of at least 1", number(request.max_tokens), "choose another");
    if (decoder.batch() != 1)
        fail(T2R_BATCH, "a batch of 1 to generate", number(decoder.batch()), "reset to 1, or use step and prefill");
    if (request.prompt.empty()) fail(T2R_TOKEN, "at least one token", "none", "start from the BOS token, or from any");
    decoder.require_tokens(request.prompt.data(), request.prompt.size());
    decoder.require_tokens(stops.data(), stops.size());
    const std::int64_t limit = signature.reach(), read = decoder.position() + static_cast<std::int64_t>(request.prompt.size());
    if (limit && (read > limit || request.max_tokens - 1 > limit - read))
        fail(T2R_POSITION,
             "max_tokens of at most " + number(std::max<std::int64_t>(limit - read + 1, 0)) + ": this model's positions end at " +
                 number(limit),
             number(request.max_tokens) + " after " + number(read) + " tokens",
             "ask for fewer, shorten the prompt, or export with --past-end clamp or wrap:N");
}

template <class T> Ort::Value scalar(const Ort::MemoryInfo &memory, T &value) {
    return Ort::Value::CreateTensor<T>(memory, &value, 1, nullptr, 0);
}

Ort::Value list(const Ort::MemoryInfo &memory, std::vector<std::int64_t> &values) {
    const auto count = static_cast<std::int64_t>(values.size());
    values.reserve(1);  // so that data() of an empty vector is not null
    return Ort::Value::CreateTensor<std::int64_t>(memory, values.data(), values.size(), &count, 1);
}

void in_graph(Decoder &decoder, const Request &request, std::vector<std::int64_t> stops, std::vector<std::int64_t> &written) {
    const Sampling &s = request.sampling;
    const Sampler sampler(s);
    std::int64_t whole[] = {request.max_tokens, s.top_k, s.no_repeat_ngram, sampler.seed, 0};
    double real[] = {s.temperature, s.top_p, s.min_p, s.repetition_penalty};
    std::vector<std::int64_t> occurred, newest = {request.prompt.back()};
    for (std::size_t i = 0; s.looks_back() && i < decoder.history().size(); i++) occurred.push_back(decoder.history()[i]);
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    Inputs inputs;
    for (std::size_t i = 0; i < std::size(whole); i++) inputs.emplace_back(whole_numbers[i], scalar(memory, whole[i]));
    for (std::size_t i = 0; i < std::size(real); i++) inputs.emplace_back(real_numbers[i], scalar(memory, real[i]));
    inputs.emplace_back("stop_tokens", list(memory, stops));
    inputs.emplace_back("occurred", list(memory, occurred));
    inputs.emplace_back("input_ids", list(memory, newest));
    written = decoder.generate_in_graph(newest.front(), inputs);
    if (!written.empty() && written.back() < 0) {
        written.pop_back();  // -1 says that no token was chosen
        fail(T2R_GRAPH, "finite logits", "NaN or infinity after " + number(decoder.position()) + " tokens",
             "check the graph with t2r verify");
    }
}

const std::vector<std::int64_t> &banned_of(const Signature &signature) {
    static const std::vector<std::int64_t> none;
    return signature.source ? signature.source->banned_tokens : none;
}

void in_steps(Decoder &decoder, const Request &request, const std::vector<std::int64_t> &stops, std::vector<std::int64_t> &written) {
    const Signature &signature = decoder.signature();
    const std::vector<std::int64_t> &banned = banned_of(signature);
    Sampler sampler(request.sampling);
    const std::int64_t limit = request.sampling.limit();  // may exceed the vocabulary
    const bool few = limit > 0 && limit <= signature.top_k - static_cast<std::int64_t>(banned.size());
    const auto count = static_cast<std::size_t>(few ? signature.top_k : signature.vocab_size);
    const std::int64_t *next = &request.prompt.back();
    while (true) {
        const Logits logits = decoder.read(next, 1, 1, few ? Wanted::top : Wanted::logits);
        const std::int64_t token = sampler.pick(logits.values, logits.tokens, count, decoder.history(), banned);
        written.push_back(token);
        const bool goes_on = !request.callback || request.callback(token);
        const bool stopped = std::find(stops.begin(), stops.end(), token) != stops.end();
        if (!goes_on || stopped || static_cast<std::int64_t>(written.size()) == request.max_tokens) return;
        next = &written.back();
    }
}

}  // namespace

void generate(Decoder &decoder, const Request &request, std::vector<std::int64_t> &written) {
    written.clear();
    const std::vector<std::int64_t> stops = request.stop_tokens.value_or(decoder.signature().eos_tokens);
    require_in_order(decoder, request, stops);
    if (request.prompt.size() > 1)
        decoder.read(request.prompt.data(), 1, static_cast<std::int64_t>(request.prompt.size()) - 1);
    if (request.callback || !decoder.opened()->has("generate")) return in_steps(decoder, request, stops, written);
    in_graph(decoder, request, stops, written);
}

std::int64_t choose(const Decoder &decoder, const float *logits, std::size_t row, const Sampling &sampling, std::int64_t draw) {
    if (draw < 0 || draw >> 32) fail(T2R_SAMPLING, "the number of a draw in 0 … 4294967295", number(draw), "count the tokens of the text");
    const Signature &signature = decoder.signature();
    Sampler sampler(sampling);
    sampler.draws = static_cast<std::uint32_t>(draw);
    return sampler.pick(logits, nullptr, static_cast<std::size_t>(signature.vocab_size), decoder.history(row), banned_of(signature));
}

}  // namespace t2r
