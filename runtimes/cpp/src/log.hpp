// What ONNX Runtime says, on its way to the hook of t2r_set_log.
#pragma once

#include "ort.hpp"
#include "t2r.h"

namespace t2r {

// NULL: nobody listens. Throws Error of the kind state: from inside of the hook.
void set_log(t2r_log hook, void *user, OrtLoggingLevel level);

// The least that is to be said; fatal where nobody listens.
OrtLoggingLevel log_level();

// For Ort::Env.
void ORT_API_CALL log_message(void *, OrtLoggingLevel level, const char *, const char *, const char *, const char *message);

}  // namespace t2r
