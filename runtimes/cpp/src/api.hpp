// The edge of the C API: whatever is thrown behind it becomes a kind and a line.
#pragma once

#include <algorithm>
#include <cstring>

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

// Hand out a structure of the API, as much of it as fits: one of an older t2r.h is shorter.
template <class T> void hand_out(const T &found, T *out, size_t size, t2r_kind kind) {
    require_argument(out && size >= sizeof(size_t), kind, "a structure, and its size");
    std::memcpy(out, &found, std::min(size, sizeof(T)));
}

// The same of options, which know their size.
template <class T> void hand_out_options(T found, T *out, size_t size, t2r_kind kind) {
    found.size = std::min(size, sizeof(T));
    hand_out(found, out, size, kind);
}

// What the caller gives over what holds where it says nothing, as for the fields that an older t2r.h has not.
template <class T> T over(T options, const T *given, t2r_kind kind) {
    if (!given) return options;
    require_argument(given->size >= sizeof(size_t) && given->size <= sizeof(T), kind, "options that their _defaults function has filled in");
    std::memcpy(&options, given, given->size);
    return options;
}

}  // namespace t2r
