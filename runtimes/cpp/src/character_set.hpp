// Sets of characters, for the regular expressions of tokenizers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace t2r {

struct CodeRange {
    char32_t first, last;
};
using CodeRanges = std::vector<CodeRange>;

constexpr char32_t max_code = 0x10FFFF;

// The characters that no range has.
CodeRanges complement(CodeRanges ranges);
// \s
CodeRanges spaces();
// \p{name}, of a general category such as L or Lu; empty for any other name.
CodeRanges category_named(std::string_view name);

class CharacterSet {
public:
    explicit CharacterSet(CodeRanges any_order);
    bool has(char32_t code) const {
        if (code < 256) return (latin[code >> 6] >> (code & 63)) & 1;
        const auto lower = [](char32_t value, const CodeRange &range) { return value < range.first; };
        const auto after = std::upper_bound(ranges.begin(), ranges.end(), code, lower);
        return after != ranges.begin() && code <= (after - 1)->last;
    }

private:
    CodeRanges ranges;  // in order, apart
    std::array<std::uint64_t, 4> latin{};
};

}  // namespace t2r
