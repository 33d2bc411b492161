// Options of sampling and beam search: the caller's, else the graph's, else the defaults below
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
    double temperature = 1;  // 0: the largest logit, the lowest token on ties
    std::int64_t top_k = 0;  // 0: all
    double top_p = 1, min_p = 0;
    std::int64_t seed = -1;  // of the noise; -1: a new seed for each text

    // The number of largest logits that suffice; 0: all are needed.
    std::int64_t limit() const { return looks_back() ? 0 : temperature == 0 ? 1 : top_k; }
};

struct Beam : LooksBack {
    std::int64_t width = 4, max_tokens = 0, min_tokens = 0;  // max_tokens 0: the graph's, else 256; fewer if positions end
    int early_stopping = 0;                                  // 0 is false, 1 true, 2 never
    bool forced_end = true, copy = true;
    std::int64_t n_best = 1;
    double length_penalty = 1;
};

// Throw Error of the kind sampling if a value is out of range.
void require_option(bool good, const char *expected, double received);
void require_sampling(const Sampling &sampling);
void require_beam(const Beam &beam);

// Read t2r.generation: into `sampling`, or for a translator into `beam`, and its penalties into both. Throws JsonError, or
// Error of the kind sampling.
void read_generation(Json::Value options, bool translates, Sampling &sampling, Beam &beam);

}  // namespace t2r
