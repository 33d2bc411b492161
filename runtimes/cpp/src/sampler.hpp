// From logits to a token: penalties, temperature, top-k, nucleus, min-p, in this order, then a draw
// (runtimes/contract/generation.md). The same seed gives the same text in every language and in a graph.
#pragma once

#include <cstdint>
#include <vector>

#include "history.hpp"
#include "options.hpp"

namespace t2r {

class Sampler {
public:
    // Throws Error of the kind sampling: a value out of range.
    explicit Sampler(const Sampling &sampling);

    // One of `count` logits. tokens: whose they are, where they are not all, largest first. Those in `banned` are never
    // chosen. Throws Error of the kind graph: NaN or infinity among them, or nothing but -infinity.
    std::int64_t pick(const float *logits, const std::int64_t *tokens, std::size_t count, const History &text,
                      const std::vector<std::int64_t> &banned);

    const Sampling sampling;
    const std::uint32_t seed;
    std::uint32_t draws = 0;  // how often a token was chosen

private:
    struct Candidate {
        float logit;
        std::int32_t token;
        double score;  // (logit - largest) / temperature
        double weight;  // its exponential
    };

    // Its place; of equals that of the lowest token.
    static std::size_t largest(const float *logits, const std::int64_t *tokens, std::size_t count);
    void gather(const float *logits, const std::int64_t *tokens, std::size_t count, double top);
    void penalize(const History &text);
    void forbid_repeats(const History &text);
    void keep_top_k();
    void keep_nucleus();
    std::int64_t draw() const;

    std::vector<Candidate> candidates;  // by token; none are made where the largest logit is chosen
    std::vector<float> changed;         // the logits, where some are not as the graph gives them
    std::vector<bool> seen;
};

}  // namespace t2r
