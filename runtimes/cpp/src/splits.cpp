// The regular expressions of the contract as code. None is interpreted, so none can take unbounded time.
#include <algorithm>
#include <initializer_list>

#include "tokenizer_parts.hpp"
#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

// The character at a position; none after the end.
struct At {
    At(std::string_view text, std::size_t at) : end(at) {
        if (at >= text.size()) return;
        const Decoded decoded = decode_utf8(text, at);
        code = decoded.code;
        flags = flags_of(code);
        end = at + decoded.size;
        there = true;
    }
    bool letter() const { return there && (flags & is_letter); }
    bool number() const { return there && (flags & is_number); }
    bool space() const { return there && (flags & is_space); }
    bool other() const { return there && !(flags & (is_letter | is_number | is_space)); }
    bool line() const { return there && (code == '\r' || code == '\n'); }

    char32_t code = 0;
    std::uint16_t flags = 0;
    std::size_t end;
    bool there = false;
};

template <class F> std::size_t run(std::string_view text, std::size_t at, F belongs) {
    for (At next(text, at); belongs(next); next = At(text, at)) at = next.end;
    return at;
}

// 's|'t|'re|'ve|'m|'ll|'d
std::size_t contraction(std::string_view text, std::size_t at, bool any_case) {
    if (text[at] != '\'') return at;
    const auto lower = [&](const At &c) -> char32_t {
        if (any_case && c.code == 0x17F) return 's';
        return any_case && c.code >= 'A' && c.code <= 'Z' ? c.code + 32 : c.code;
    };
    const At first(text, at + 1);
    if (!first.there) return at;
    for (const char one : {'s', 't', 'm', 'd'})
        if (lower(first) == static_cast<char32_t>(one)) return first.end;
    const At second(text, first.end);
    if (!second.there) return at;
    for (const char *two : {"re", "ve", "ll"})
        if (lower(first) == static_cast<char32_t>(two[0]) && lower(second) == static_cast<char32_t>(two[1])) return second.end;
    return at;
}

// \s+(?!\S)|\s+
std::size_t spaces(std::string_view text, std::size_t at) {
    std::size_t last = at;
    const std::size_t end = run(text, at, [&](const At &c) {
        if (c.space()) last = c.end;
        return c.space();
    });
    if (end == text.size()) return end;
    std::size_t before = at;  // beginning of the run's last character
    for (std::size_t next = at; next < end; next = At(text, next).end) before = next;
    return before > at ? before : end;
}

// (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
std::size_t match_words(std::string_view text, std::size_t at, int most) {
    const std::size_t contracted = contraction(text, at, true);
    if (contracted > at) return contracted;
    const auto letters = [](const At &c) { return c.letter(); };
    const At first(text, at);
    if (first.letter()) return run(text, at, letters);
    const At second(text, first.end);
    if (!first.line() && !first.number() && second.letter()) return run(text, first.end, letters);
    if (first.number()) {
        std::size_t end = first.end;
        for (int digits = 1; digits < most && At(text, end).number(); digits++) end = At(text, end).end;
        return end;
    }
    const auto others = [](const At &c) { return c.other(); };
    const std::size_t from = text[at] == ' ' && second.other() ? first.end : at;
    const std::size_t marks = run(text, from, others);
    if (marks > from) return run(text, marks, [](const At &c) { return c.line(); });
    std::size_t line_end = at;
    run(text, at, [&](const At &c) {
        if (c.line()) line_end = c.end;
        return c.space();
    });
    return line_end > at ? line_end : spaces(text, at);
}

std::size_t match_words_3(std::string_view text, std::size_t at) { return match_words(text, at, 3); }
std::size_t match_words_1(std::string_view text, std::size_t at) { return match_words(text, at, 1); }

// ^ +| +$, with ^ and $ at the ends of a line
std::size_t match_edges(std::string_view text, std::size_t at) {
    const std::size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    const bool begins = at == 0 || text[at - 1] == '\n', ends = end == text.size() || text[end] == '\n';
    return end > at && (begins || ends) ? end : at;
}

//  {2,}
std::size_t match_rows(std::string_view text, std::size_t at) {
    const std::size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    return end > at + 1 ? end : at;
}

struct Known {
    std::string_view pattern;
    std::size_t (*match)(std::string_view, std::size_t);
};

constexpr Known known[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", match_gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     match_words_3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     match_words_1},
    {"^ +| +$", match_edges},
    {" {2,}", match_rows},
};

}  // namespace

std::size_t match_gpt2(std::string_view text, std::size_t at) {
    const std::size_t contracted = contraction(text, at, false);
    if (contracted > at) return contracted;
    const At first(text, at), second(text, first.end);
    const bool led = first.code == ' ' && second.there && !second.space();
    const At &kind = led ? second : first;
    if (kind.letter()) return run(text, kind.end, [](const At &c) { return c.letter(); });
    if (kind.number()) return run(text, kind.end, [](const At &c) { return c.number(); });
    if (kind.other()) return run(text, kind.end, [](const At &c) { return c.other(); });
    return spaces(text, at);
}

Pattern::Pattern(Json::Value pattern, const char *component) {
    if (pattern.find("String")) {
        literal = inserted(pattern, "String");
        return;
    }
    const std::string_view wanted = pattern.at("Regex").string();
    const auto found = std::find_if(std::begin(known), std::end(known), [&](const Known &k) { return k.pattern == wanted; });
    if (found == std::end(known)) refuse_part(component, "of the pattern " + std::string(wanted));
    match = found->match;
}

double Pattern::growth(std::string_view content) const {
    if (!match && literal.empty()) refuse_tokenizer("a pattern of a Replace that is not empty", "an empty one");
    return std::max(1.0, static_cast<double>(content.size()) / static_cast<double>(match ? 1 : literal.size()));
}

std::pair<std::size_t, std::size_t> Pattern::find(std::string_view text, std::size_t at) const {
    if (!match) {
        const std::size_t begin = literal.empty() ? text.npos : text.find(literal, at);
        return begin == text.npos ? std::pair{text.size(), text.size()} : std::pair{begin, begin + literal.size()};
    }
    for (; at < text.size(); at = At(text, at).end) {
        const std::size_t end = match(text, at);
        if (end > at) return {at, end};
        if (text[at] == ' ') {  // a run of spaces that does not match from its start has no match inside
            at = std::min(text.find_first_not_of(' ', at), text.size());
            if (at == text.size()) break;
        }
    }
    return {text.size(), text.size()};
}

}  // namespace t2r
