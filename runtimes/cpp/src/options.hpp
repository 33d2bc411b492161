// The options of generating and of the search: what a caller gives, else the graph's, else the defaults that stand here
// (runtimes/contract/generation.md).
#pragma once

#include <cstdint>

#include "json.hpp"

namespace t2r {

struct LooksBack {
    double repetition_penalty = 1;
    std::int64_t no_repeat_ngram = 0;

    bool looks_back() const { return repetition_penalty != 1 || no_repeat_ngram > 0; }
};

struct Sampling : LooksBack {
    double temperature = 1;  // 0: the largest logit, of equals the lowest token
    std::int64_t top_k = 0;  // 0: all
    double top_p = 1, min_p = 0;
    std::int64_t seed = -1;  // of the noise; -1: a new one for each text

    // How many of the largest logits are enough to choose from; 0: all of them.
    std::int64_t limit() const { return looks_back() ? 0 : temperature == 0 ? 1 : top_k; }
};

struct Beam : LooksBack {
    std::int64_t width = 4, max_tokens = 0, min_tokens = 0;  // max_tokens 0: the graph's, else 256; fewer where positions end
    int early_stopping = 0;                                  // 0 is false, 1 true, 2 never
    bool forced_end = true;
    std::int64_t n_best = 1;
    double length_penalty = 1;
};

// Throw Error of the kind sampling: a value out of range.
void require_sampling(const Sampling &sampling);
void require_beam(const Beam &beam);

// Read t2r.generation over the defaults: of a decoder alone into `sampling`, of a translator into `beam`, and its penalties
// into both. Throws JsonError, or Error of the kind sampling.
void read_generation(Json::Value options, bool translates, Sampling &sampling, Beam &beam);

}  // namespace t2r
