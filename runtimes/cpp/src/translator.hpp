// Translators: a source becomes states that a step reads, and a beam search its translation (runtimes/CONTRACT.md,
// "Translators" and "The search").
#pragma once

#include "decoder.hpp"

namespace t2r {

struct Beam {
    std::int64_t width = 4, max_tokens = 0, min_tokens = 0;  // max_tokens 0: 256, or fewer where positions end before
    int early_stopping = 0;                                  // 0 is false, 1 true, 2 never
    bool forced_end = true;
    std::int64_t n_best = 1;
    double length_penalty = 1, repetition_penalty = 1;
    std::int64_t no_repeat_ngram = 0;

    bool looks_back() const { return repetition_penalty != 1 || no_repeat_ngram > 0; }
};

struct Translation {
    std::vector<std::int64_t> tokens;  // one that ended it the last of them
    double score;                      // more is better
};

// The decoder then stands before the start tokens of a translation of each source (of so many tokens, at least one).
// Throws Error: of the kinds graph, token, position, batch and metadata; all is as before then.
void encode_sources(Decoder &decoder, const std::vector<std::vector<std::int64_t>> &sources);

// The n best of one source, in one run of a beam graph where there is one and no penalty. Throws Error: as for
// encode_sources, and of the kind sampling.
std::vector<Translation> translate(Decoder &decoder, const std::vector<std::int64_t> &source, const Beam &beam);

// The search itself, from where a decoder of one sequence stands, before the start tokens. `beam` has been checked.
std::vector<Translation> search(Decoder &decoder, const Beam &beam);

}  // namespace t2r
