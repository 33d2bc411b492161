// The regular expressions of runtimes/contract/text.md: parsed, and checked for linear time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "character_set.hpp"

namespace t2r {

using SharedSet = std::shared_ptr<const CharacterSet>;

// A step of a branch. It is a set or a group of words with a count, or matches a place and no character.
struct Step {
    enum Kind { set, words, ahead, not_ahead, not_behind, line_begin, line_end };
    static constexpr std::size_t unbounded = static_cast<std::size_t>(-1);

    Kind kind;
    std::string source{};  // as it is written, without the count
    SharedSet characters{};
    std::vector<std::vector<SharedSet>> alternatives{};  // of words
    std::size_t least = 1, most = 1;
    bool possessive = false;
    bool certain = false;  // whether no later step can fail

    bool can_fail() const { return least > 0; }
    bool same(const Step &other) const {
        return kind == other.kind && source == other.source && least == other.least && most == other.most && possessive == other.possessive;
    }
};

using Branch = std::vector<Step>;

// The branches of an expression, in order. Throws Error of the kind tokenizer, in which the `component` is named.
std::vector<Branch> parse_expression(std::string_view text, const char *component);

}  // namespace t2r
