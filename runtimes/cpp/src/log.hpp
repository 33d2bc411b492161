// Passes ONNX Runtime's messages to the hook of t2r_set_log.
#pragma once

#include "ort.hpp"
#include "t2r.h"

namespace t2r {

// hook: NULL for none. Throws Error of the kind state if the hook calls this.
void set_log(t2r_log hook, void *user, OrtLoggingLevel level);

// The lowest level to log; fatal without a hook.
OrtLoggingLevel log_level();

// Logging function for Ort::Env.
void ORT_API_CALL log_message(void *, OrtLoggingLevel level, const char *, const char *, const char *, const char *message);

}  // namespace t2r
