// Generated tables of Unicode's normalization forms (annex 15), sorted by their first field or fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace t2r {

extern const char32_t decomposed[];  // what characters decompose to, one text after or inside another

struct Decomposition {
    std::uint32_t code;
    std::uint16_t offset;        // in `decomposed`
    std::uint8_t size;           // of characters there
    std::uint8_t compatibility;  // 1: NFKD and NFKC only; sorted after the entry for all forms if there are both
};
extern const Decomposition decompositions[];
extern const std::size_t decomposition_count;

struct ClassRange {
    std::uint32_t first;
    std::uint8_t combining_class;  // from `first` up to the next range: the class's rank, 0 for class 0
};
extern const ClassRange class_ranges[];
extern const std::size_t class_range_count;

struct Composition {
    std::uint32_t first, second, made;
};
extern const Composition compositions[];
extern const std::size_t composition_count;

}  // namespace t2r
