// Character properties for tokenizers, from generated tables; and grapheme boundaries (Unicode, annex 29).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace t2r {

enum CharacterFlag : std::uint16_t {
    is_space = 1,        // \s
    is_word = 2,         // \w
    is_punctuation = 4,
    is_digit = 8,        // for the pre-tokenizer Digits
    is_pictographic = 16,
    is_linker = 32,      // Indic conjuncts
    is_consonant = 64,
    is_conjunct_extend = 128,
};

struct CharacterRange {
    std::uint32_t first;
    std::uint16_t flags;    // those above; and from bit 12 on, the grapheme break property
    std::uint16_t category;  // the general category: a number of character_set.cpp
};
extern const CharacterRange character_ranges[];
extern const std::size_t character_range_count;

// The range of a sorted table that contains a character. Each range ends at the `first` of the next.
template <class Range> const Range &range_of(const Range *ranges, std::size_t count, char32_t code) {
    const auto lower = [](char32_t value, const Range &range) { return value < range.first; };
    return *(std::upper_bound(ranges, ranges + count, code, lower) - 1);
}

std::uint16_t flags_of(char32_t code);

inline bool has(char32_t code, int flag) { return (flags_of(code) & flag) != 0; }

// \p{L} and \p{N}: the categories Lu to Lo, and Nd to No, of character_set.cpp.
inline int category_of(char32_t code) { return range_of(character_ranges, character_range_count, code).category; }
inline bool is_letter(char32_t code) { return category_of(code) >= 1 && category_of(code) <= 5; }
inline bool is_number(char32_t code) { return category_of(code) >= 9 && category_of(code) <= 11; }

// The bytes of the first grapheme of a text that is not empty.
std::size_t grapheme_size(std::string_view text);

}  // namespace t2r
