// What a graph's inputs and outputs must be for its metadata: runtimes/CONTRACT.md.
#pragma once

#include "ort.hpp"
#include "signature.hpp"

namespace t2r {

// Throws Error of the kind interface, with all missing and unexpected names together; if the names agree, with all wrong
// dtypes and shapes. A state under another name would stay at its initial value, silently.
void check_interface(const Signature &signature, const Ort::Session &session);

// What a generation graph takes beside the token and the states.
inline constexpr const char *whole_numbers[] = {"max_tokens", "top_k", "no_repeat_ngram", "seed", "drawn"};
inline constexpr const char *real_numbers[] = {"temperature", "top_p", "min_p", "repetition_penalty"};

}  // namespace t2r
