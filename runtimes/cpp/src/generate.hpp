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

// The new tokens, one that ended the text among them. The last has been chosen and not read. Without a callback a
// generation graph does all in one run, where there is one; the tokens are the same.
// Throws Error: of the kinds sampling, batch, token and position; nothing has been read then.
std::vector<std::int64_t> generate(Decoder &decoder, const Request &request);

}  // namespace t2r
