#include "character_set.hpp"

#include <iterator>

#include "unicode.hpp"

namespace t2r {

namespace {

// In the order of tools/unicode_tables.py; 0 is every other category.
constexpr std::string_view categories[] = {"",   "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc",
                                           "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"};

CodeRanges in_order(CodeRanges ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const CodeRange &a, const CodeRange &b) { return a.first < b.first; });
    CodeRanges joined;
    for (const CodeRange &range : ranges) {
        if (!joined.empty() && range.first <= joined.back().last + 1) joined.back().last = std::max(joined.back().last, range.last);
        else joined.push_back(range);
    }
    return joined;
}

template <class F> CodeRanges that(const F &belongs) {
    CodeRanges found;
    for (std::size_t i = 0; i < character_range_count; i++) {
        const char32_t next = i + 1 < character_range_count ? character_ranges[i + 1].first : max_code + 1;
        if (belongs(character_ranges[i])) found.push_back({character_ranges[i].first, next - 1});
    }
    return found;
}

}  // namespace

CodeRanges complement(CodeRanges ranges) {
    CodeRanges found;
    char32_t first = 0;
    for (const CodeRange &range : in_order(std::move(ranges))) {
        if (range.first > first) found.push_back({first, range.first - 1});
        first = range.last + 1;
    }
    if (first <= max_code) found.push_back({first, max_code});
    return found;
}

CodeRanges spaces() {
    return that([](const CharacterRange &range) { return (range.flags & is_space) != 0; });
}

CodeRanges category_named(std::string_view name) {
    if (name.empty()) return {};
    return that([&](const CharacterRange &range) { return categories[range.category].substr(0, name.size()) == name; });
}

CharacterSet::CharacterSet(CodeRanges any_order) : ranges(in_order(std::move(any_order))) {
    for (const CodeRange &range : ranges)
        for (char32_t code = range.first; code <= range.last && code < 256; code++) latin[code >> 6] |= std::uint64_t{1} << (code & 63);
}

}  // namespace t2r
