// Read a prompt, then choose a token, hand it out, read it, and so on.
#pragma once

#include <functional>
#include <optional>

#include "decoder.hpp"
#include "sampler.hpp"

namespace t2r {

struct Request {
    std::vector<std::int64_t> prompt;
    std::int64_t max_tokens;
    Sampling sampling;
    std::optional<std::vector<std::int64_t>> stop_tokens;  // the text ends with the first of them; none: the graph's own
    std::function<bool(std::int64_t)> callback;            // called with each token as it is chosen; false ends the text
};

// Puts the new tokens into `written`, one that ended the text among them. The last has been chosen and not read. Without a
// callback a generation graph does all in one run, where there is one; the tokens are the same.
// Throws Error: of the kinds sampling, batch, token and position; nothing has been read then. Of the kinds cancelled, memory
// and runtime: `written` is what was chosen before.
void generate(Decoder &decoder, const Request &request, std::vector<std::int64_t> &written);

// The token that `generate` would choose of a sequence's logits (vocabulary). draw: how many were chosen in its text before.
// Throws Error of the kinds sampling and graph.
std::int64_t choose(const Decoder &decoder, const float *logits, std::size_t row, const Sampling &sampling, std::int64_t draw);

}  // namespace t2r
