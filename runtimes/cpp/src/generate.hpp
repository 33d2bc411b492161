// Generation: read a prompt, then choose a token, call the callback, read the token, and so on.
#pragma once

#include <functional>
#include <optional>

#include "ahead.hpp"
#include "sampler.hpp"

namespace t2r {

double seconds_now();

struct Request {
    std::vector<std::int64_t> prompt;
    std::int64_t max_tokens;
    Sampling sampling;
    std::optional<std::vector<std::int64_t>> stop_tokens;  // the text ends with the first of them; none: the graph's EOS tokens
    std::function<bool(std::int64_t)> callback;            // called with each token as it is chosen; false ends the text
    Ahead::Clock clock = seconds_now;
};

// Sets `written` to the new tokens, including a stop token. The last one is not read.
// Throws Error. Kinds sampling, batch, token, position: nothing was read. Kinds cancelled, memory, runtime: `written` has the
// tokens chosen before.
void generate(Decoder &decoder, const Request &request, std::vector<std::int64_t> &written);

// The token that `generate` would choose from a row's logits (vocabulary). draw: the number of tokens chosen in its text before.
// Throws Error of the kinds sampling and graph.
std::int64_t choose(const Decoder &decoder, const float *logits, std::size_t row, const Sampling &sampling, std::int64_t draw);

}  // namespace t2r
