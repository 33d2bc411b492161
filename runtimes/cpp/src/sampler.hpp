// From logits to a token: penalties, temperature, top-k, nucleus, min-p, in this order, then a draw (runtimes/CONTRACT.md,
// "The generation graph"). The same seed gives the same text in every language and in a graph.
#pragma once

#include <cstdint>
#include <vector>

#include "history.hpp"

namespace t2r {

struct Sampling {
    double temperature = 1;  // 0: the largest logit, of equals the lowest token
    std::int64_t top_k = 0;  // 0: all
    double top_p = 1, min_p = 0, repetition_penalty = 1;
    std::int64_t no_repeat_ngram = 0;
    std::int64_t seed = -1;  // of the noise; -1: a new one for each text

    bool looks_back() const { return repetition_penalty != 1 || no_repeat_ngram > 0; }
    // How many of the largest logits are enough to choose from; 0: all of them.
    std::int64_t limit() const { return looks_back() ? 0 : temperature == 0 ? 1 : top_k; }
};

// Throws Error of the kind sampling: a value out of range.
void require_sampling(const Sampling &sampling);

class Sampler {
public:
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
        std::int64_t token;
        double score;  // (logit - largest) / temperature
        double weight;  // its exponential
    };

    std::size_t largest() const;
    void penalize(const History &text);
    void forbid_repeats(const History &text);
    void keep_top_k();
    void keep_nucleus();
    std::int64_t draw() const;

    std::vector<Candidate> candidates;  // by token
    std::vector<bool> seen;
};

}  // namespace t2r
