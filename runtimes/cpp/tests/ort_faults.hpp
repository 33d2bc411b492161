// A copy of ONNX Runtime's table in which every function that our code calls may fail, and no other can be called.
#pragma once

#pragma GCC diagnostic ignored "-Wignored-attributes"  // of the functions of OrtApi, as template arguments

#include <onnxruntime_c_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "faults.hpp"

namespace faults {

inline const OrtApi *real;
inline union Table {
    OrtApi known;                // to the header
    void (*functions[512])();    // also of newer versions, which only append
} table;

template <std::size_t place> void unknown() {
    std::fprintf(stderr, "expected functions of OrtApi that faults.cpp names; received a call of number %zu; add it\n", place);
    std::abort();
}

template <std::size_t... places> void forget_all(std::index_sequence<places...>) {
    void (*const none[])() = {unknown<places>...};
    std::memcpy(table.functions, none, sizeof none);
}

template <auto member, class R, class... A> R called(A... given) noexcept {
    if constexpr (std::is_same_v<R, OrtStatus *>)
        if (fails(Kind::onnxruntime)) return real->CreateStatus(ORT_FAIL, "a planned fault");
    const Inside inside;
    return (real->*member)(given...);
}

template <auto member, class R, class... A> void wrap(R (*OrtApi::*)(A...)) { table.known.*member = &called<member, R, A...>; }
template <auto member, class R, class... A> void wrap(R (*OrtApi::*)(A...) noexcept) { table.known.*member = &called<member, R, A...>; }

// The table with these functions.
template <auto... members> const OrtApi *table_of(const OrtApi *of) {
    real = of;
    forget_all(std::make_index_sequence<sizeof table / sizeof(void *)>());
    (wrap<members>(members), ...);
    return &table.known;
}

// A function at a place that the header may not know.
template <std::size_t place, class R, class... A> void wrap_at() {
    const auto function = [](A... given) noexcept -> R {
        if constexpr (std::is_same_v<R, OrtStatus *>)
            if (fails(Kind::onnxruntime)) return real->CreateStatus(ORT_FAIL, "a planned fault");
        const Inside inside;
        return reinterpret_cast<R (*)(A...)>(reinterpret_cast<void (*const *)()>(real)[place])(given...);
    };
    table.functions[place] = reinterpret_cast<void (*)()>(static_cast<R (*)(A...) noexcept>(function));
}

}  // namespace faults
