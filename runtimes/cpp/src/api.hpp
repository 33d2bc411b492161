// The edge of the C API: whatever is thrown behind it becomes a kind and a line.
#pragma once

#include "decoder.hpp"
#include "error.hpp"
#include "handles.hpp"
#include "translator.hpp"

namespace t2r {

// A decoder, and what its functions have handed out.
struct OpenDecoder {
    explicit OpenDecoder(std::shared_ptr<Graph> graph) : decoder(std::move(graph)) {}

    Decoder decoder;
    std::vector<std::int64_t> written;      // of the last generate
    std::vector<Translation> translations;  // of the last translate
};

using Decoders = Handles<OpenDecoder, t2r_decoder>;
Decoders &decoders();

// Remember the exception that is being handled for t2r_error, and tell its kind.
t2r_kind remember() noexcept;

template <class F> t2r_kind guarded(F body) noexcept {
    try {
        body();
        return T2R_OK;
    } catch (...) {
        return remember();
    }
}

// Of arguments that no program in its senses gives. Throws Error of that kind.
inline void require_argument(bool good, t2r_kind kind, const char *expected) {
    if (!good) fail(kind, expected, "something else", "see t2r.h");
}

}  // namespace t2r
