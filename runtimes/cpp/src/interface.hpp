// Checks a graph's inputs and outputs against its metadata: runtimes/CONTRACT.md.
#pragma once

#include "ort.hpp"
#include "signature.hpp"

namespace t2r {

ONNXTensorElementDataType type_of(Dtype dtype);

// Throws Error of the kind interface, with all missing and unexpected names; if the names agree, with all wrong dtypes and
// shapes. Without this check, a state under another name would silently stay at its initial value.
void check_interface(const Signature &signature, const Ort::Session &session);

}  // namespace t2r
