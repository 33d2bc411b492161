// Chooses a token from logits: penalties, temperature, top-k, nucleus, min-p, in this order, then a draw
// (runtimes/contract/generation.md). The same seed gives the same text in every language and in a graph.
#pragma once

#include <cstdint>
#include <vector>

#include "history.hpp"
#include "options.hpp"

namespace t2r {

class Sampler {
public:
    // Throws Error of the kind sampling if a value is out of range.
    explicit Sampler(const Sampling &sampling);

    // Choose a token from `count` logits. tokens: the token of each logit, largest logit first; null: all tokens in order. Tokens
    // in `banned` are never chosen. Throws Error of the kind graph if a logit is NaN or infinity, or all are -infinity.
    std::int64_t pick(const float *logits, const std::int64_t *tokens, std::size_t count, const History &text,
                      const std::vector<std::int64_t> &banned);

    const Sampling sampling;
    const std::uint32_t seed;
    std::uint32_t draws = 0;  // tokens chosen so far

private:
    struct Candidate {
        float logit;
        std::int32_t token;
        double score;  // (logit - largest) / temperature
        double weight;  // its exponential
    };

    // The index of the largest logit; on ties that of the lowest token.
    static std::size_t largest(const float *logits, const std::int64_t *tokens, std::size_t count);
    void gather(const float *logits, const std::int64_t *tokens, std::size_t count, double top);
    void penalize(const History &text);
    void forbid_repeats(const History &text);
    void keep_top_k();
    void keep_nucleus();
    std::int64_t draw() const;

    std::vector<Candidate> candidates;  // by token; not filled if the largest logit is chosen
    std::vector<float> changed;         // a copy of the logits, if penalties or bans change them
    std::vector<bool> seen;
};

}  // namespace t2r
