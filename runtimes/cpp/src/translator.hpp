// Translators: the encoder turns a source into states, and beam search generates its translation
// (runtimes/contract/translators.md).
#pragma once

#include "copies.hpp"
#include "decoder.hpp"

namespace t2r {

struct Translation {
    std::vector<std::int64_t> tokens;  // including the EOS token, if one ended it
    double score;                      // higher is better
};

// Encode sources of at least one token each. The decoder is then before the start tokens of their translations.
// Throws Error of the kinds file, graph, token, position, batch, cancelled and runtime, and the decoder is unchanged.
void encode_sources(Decoder &decoder, const std::vector<std::vector<std::int64_t>> &sources);

// The n best translations of one source. Throws Error as encode_sources, and of the kind sampling.
std::vector<Translation> translate(Decoder &decoder, const std::vector<std::int64_t> &source, const Beam &beam);

// The search itself. The decoder has one sequence, before the start tokens; `beam` has been checked. copies: what the translation
// copies of its source, or null.
std::vector<Translation> search(Decoder &decoder, const Beam &beam, Copies *copies);

}  // namespace t2r
