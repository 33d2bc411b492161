// Checks a graph's inputs and outputs against its metadata: runtimes/CONTRACT.md.
#pragma once

#include "ort.hpp"
#include "signature.hpp"

namespace t2r {

ONNXTensorElementDataType type_of(Dtype dtype);

// Throws Error of the kind interface, with all missing and unexpected names; if the names agree, with all wrong dtypes and
// shapes. Without this check, a state under another name would silently stay at its initial value.
void check_interface(const Signature &signature, const Ort::Session &session);

// Inputs of a generation graph besides the token and the states.
inline constexpr const char *whole_numbers[] = {"max_tokens", "top_k", "no_repeat_ngram", "seed", "drawn"};
inline constexpr const char *real_numbers[] = {"temperature", "top_p", "min_p", "repetition_penalty"};

}  // namespace t2r
