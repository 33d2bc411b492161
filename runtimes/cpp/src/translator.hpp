// Translators: a source becomes states that a step reads, and a beam search its translation
// (runtimes/contract/translators.md).
#pragma once

#include "decoder.hpp"

namespace t2r {

struct Translation {
    std::vector<std::int64_t> tokens;  // one that ended it the last of them
    double score;                      // more is better
};

// The decoder then stands before the start tokens of a translation of each source (of so many tokens, at least one).
// Throws Error: of the kinds graph, token, position, batch and metadata; all is as before then.
void encode_sources(Decoder &decoder, const std::vector<std::vector<std::int64_t>> &sources);

// The n best of one source. Throws Error: as for
// encode_sources, and of the kind sampling.
std::vector<Translation> translate(Decoder &decoder, const std::vector<std::int64_t> &source, const Beam &beam);

// The search itself, from where a decoder of one sequence stands, before the start tokens. `beam` has been checked.
std::vector<Translation> search(Decoder &decoder, const Beam &beam);

}  // namespace t2r
