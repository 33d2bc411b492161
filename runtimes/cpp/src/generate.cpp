#include "generate.hpp"

#include <algorithm>
#include <chrono>

namespace t2r {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

namespace {

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
             "request fewer, shorten the prompt, or export with --past-end clamp or wrap:N");
}

const std::vector<std::int64_t> &banned_of(const Signature &signature) {
    static const std::vector<std::int64_t> none;
    return signature.source ? signature.source->banned_tokens : none;
}

}  // namespace

void generate(Decoder &decoder, const Request &request, std::vector<std::int64_t> &written) {
    written.clear();
    const Signature &signature = decoder.signature();
    const std::vector<std::int64_t> stops = request.stop_tokens.value_or(signature.eos_tokens);
    require_in_order(decoder, request, stops);
    if (request.prompt.size() > 1)
        decoder.read(request.prompt.data(), 1, static_cast<std::int64_t>(request.prompt.size()) - 1);
    const std::vector<std::int64_t> &banned = banned_of(signature);
    Sampler sampler(request.sampling);
    const std::int64_t limit = request.sampling.limit();  // may exceed the vocabulary
    const bool few = limit > 0 && limit <= signature.top_k - static_cast<std::int64_t>(banned.size());
    const auto count = static_cast<std::size_t>(few ? signature.top_k : signature.vocab_size);
    const Wanted wanted = few ? Wanted::top : Wanted::logits;
    const auto goes_on = [&](std::int64_t token) {
        written.push_back(token);
        const bool wants_more = !request.callback || request.callback(token);
        const bool stopped = std::find(stops.begin(), stops.end(), token) != stops.end();
        return wants_more && !stopped && static_cast<std::int64_t>(written.size()) < request.max_tokens;
    };
    if (!decoder.drafts()) {
        const std::int64_t *next = &request.prompt.back();
        while (true) {
            const Logits logits = decoder.read(next, 1, 1, wanted);
            if (!goes_on(sampler.pick(logits.values, logits.tokens, count, decoder.history(), banned))) return;
            next = &written.back();
        }
    }
    History text = decoder.history();  // the decoder's own lacks chosen tokens
    text.reserve(1);
    text.add(request.prompt.back());
    std::vector<std::int64_t> tokens;
    for (std::size_t i = 0; i < text.size(); i++) tokens.push_back(text[i]);
    Ahead ahead(decoder, std::move(tokens), request.clock);
    try {
        while (true) {
            const Logits logits = ahead.logits(request.max_tokens - static_cast<std::int64_t>(written.size()), wanted);
            const std::int64_t token = sampler.pick(logits.values, logits.tokens, count, text, banned);
            ahead.chose(token);
            text.reserve(1);
            text.add(token);
            if (!goes_on(token)) break;
        }
    } catch (...) {
        ahead.settle();
        throw;
    }
    ahead.finish();
}

std::int64_t choose(const Decoder &decoder, const float *logits, std::size_t row, const Sampling &sampling, std::int64_t draw) {
    if (draw < 0 || draw >> 32) fail(T2R_SAMPLING, "the number of a draw in 0 … 4294967295", number(draw), "count the tokens of the text");
    const Signature &signature = decoder.signature();
    Sampler sampler(sampling);
    sampler.draws = static_cast<std::uint32_t>(draw);
    return sampler.pick(logits, nullptr, static_cast<std::size_t>(signature.vocab_size), decoder.history(row), banned_of(signature));
}

}  // namespace t2r
