// The boundary of the C API: exceptions become a kind and a line.
#pragma once

#include <algorithm>
#include <cstring>

#include "decoder.hpp"
#include "error.hpp"
#include "handles.hpp"
#include "translator.hpp"

namespace t2r {

// A decoder, and the data that its functions have returned.
struct OpenDecoder {
    explicit OpenDecoder(Decoder decoder) : decoder(std::move(decoder)) {}

    Decoder decoder;
    std::string snapshot;                   // of the last t2r_save_memory
    std::vector<std::int64_t> written;      // of the last generate
    std::vector<Translation> translations;  // of the last translate
};

using Decoders = Handles<OpenDecoder, t2r_decoder>;
Decoders &decoders();

// A running call in a decoder, which t2r_cancel can end.
class DecoderCall {
public:
    explicit DecoderCall(t2r_decoder *decoder) : use(decoders(), decoder), call(use->decoder.cancellation()) {}
    OpenDecoder *operator->() const { return &*use; }

private:
    Decoders::Use use;
    Cancellation::Call call;
};

// Store the current exception's line for t2r_error and return its kind.
t2r_kind remember() noexcept;

template <class F> t2r_kind guarded(F body) noexcept {
    try {
        body();
        return T2R_OK;
    } catch (...) {
        return remember();
    }
}

// Throws Error of the kind argument if a pointer is NULL. expected: what it should point to.
inline void require(const void *pointer, const char *expected) {
    if (!pointer) fail(T2R_ARGUMENT, expected, "NULL", "pass its address");
}

// The same for a list, which may be NULL if it is empty.
inline void require_list(const void *pointer, size_t count, const char *expected) {
    if (count > 0) require(pointer, expected);
}

// Throws Error of the kind argument if an index is out of range. what: as in "state".
inline void require_index(size_t index, size_t count, const std::string &what) {
    if (index >= count)
        fail(T2R_ARGUMENT, "a number of a " + what + " below " + std::to_string(count), std::to_string(index), "count from 0");
}

// Limit of a structure's size; a larger one is an error of the caller.
inline constexpr size_t most_struct_bytes = 4096;

inline void require_size(size_t size) {
    if (size < sizeof(size_t) || size > most_struct_bytes)
        fail(T2R_ARGUMENT, "the size of a structure, from " + std::to_string(sizeof(size_t)) + " to " + std::to_string(most_struct_bytes) + " bytes",
             std::to_string(size), "pass sizeof, or fill it in with its _defaults function");
}

// Fill in a structure of the caller's size. It is shorter with an older t2r.h, and longer with a newer one: its end is set to 0.
template <class T> void hand_out(const T &found, T *out, size_t size) {
    require(out, "a structure to fill in");
    require_size(size);
    const size_t known = std::min(size, sizeof(T));
    std::memcpy(out, &found, known);
    std::memset(reinterpret_cast<unsigned char *>(out) + known, 0, size - known);
}

// The same for options, which contain their size.
template <class T> void hand_out_options(T found, T *out, size_t size) {
    found.size = size;
    hand_out(found, out, size);
}

// `options` overwritten by the caller's structure; fields that an older t2r.h does not have are kept. Throws Error of the kind
// argument if a field that only a newer t2r.h has is not 0.
template <class T> T over(T options, const T *given) {
    if (!given) return options;
    require_size(given->size);
    const auto *bytes = reinterpret_cast<const unsigned char *>(given);
    for (size_t i = sizeof(T); i < given->size; i++)
        if (bytes[i])
            fail(T2R_ARGUMENT, "options of at most " + std::to_string(sizeof(T)) + " bytes, which this libt2r knows",
                 "one that is set at byte " + std::to_string(i), "leave newer options 0, or update libt2r");
    std::memcpy(&options, given, std::min(given->size, sizeof(T)));
    return options;
}

}  // namespace t2r
