#include "cancellation.hpp"

#include "error.hpp"

namespace t2r {

void Cancellation::cancelled() { fail(T2R_CANCELLED, "the call to go on", "t2r_cancel from another thread", "make the call again"); }

void Cancellation::failed(const char *expected, const Ort::Exception &error) {
    fail(T2R_RUNTIME, expected, printable(error.what()), "check the graph with t2r verify, or export the model again");
}

}  // namespace t2r
