// Numbers and names that a translation copies from its source: runtimes/contract/copies.md.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace t2r {

struct TextNumber {
    std::u32string text;  // its digits and marks
    char32_t half;        // of the day after it: a, p or 0
    bool whole;           // false: a part of a date, a fraction or a score
};

struct Name {
    std::u32string word;
    bool certain;
};

bool is_ascii_digit(char32_t letter);
// Between digits of a number.
bool is_number_mark(char32_t letter);

std::u32string characters(std::string_view text);

// The numbers of a text, in order.
std::vector<TextNumber> numbers(const std::u32string &text);

// Texts that are this number, itself first; those with a half of the day end in " p.m" or " a.m".
std::vector<std::u32string> spellings(const TextNumber &number);

// How many of these numbers are not words of a text, each of which is one of them.
std::size_t unspelled(const std::vector<const TextNumber *> &left, const std::u32string &text);

// Unknown capitalized words of a source, in order, but those after words that come before nouns. is_known: whether the vocabulary
// has this word, after a blank, as one token.
std::vector<Name> names(const std::u32string &source, const std::function<bool(const std::u32string &)> &is_known);

// The value of a word, or -1.
int value_of(const std::u32string &word);

// In small letters.
std::u32string small(std::u32string word);

}  // namespace t2r
