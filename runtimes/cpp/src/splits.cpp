// Matches the patterns of a Split and a Replace. An expression's branches are checked for linear time when they are parsed.
#include <algorithm>
#include <array>
#include <cstdint>

#include "expression.hpp"
#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::size_t none = static_cast<std::size_t>(-1);

// The end of the character at `at` if the set has it.
std::size_t one(std::string_view text, std::size_t at, const CharacterSet &set) {
    if (at >= text.size()) return none;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 128) return set.has(byte) ? at + 1 : none;
    const Decoded decoded = decode_utf8(text, at);
    return set.has(decoded.code) ? at + decoded.size : none;
}

std::size_t before(std::string_view text, std::size_t at) {
    do at--;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    return at;
}

bool is_place(const Step &step, std::string_view text, std::size_t at) {
    switch (step.kind) {
    case Step::ahead: return one(text, at, *step.characters) != none;
    case Step::not_ahead: return one(text, at, *step.characters) == none;
    case Step::not_behind: return at == 0 || one(text, before(text, at), *step.characters) == none;
    case Step::line_begin: return at == 0 || (text[at - 1] == '\n' && at < text.size());
    default: return at == text.size() || text[at] == '\n';
    }
}

// The end of the match of these steps at `at`, or none.
std::size_t match(const Step *step, const Step *end, std::string_view text, std::size_t at) {
    for (; step != end; step++) {
        if (step->kind == Step::words) {
            for (const auto &word : step->alternatives) {
                std::size_t next = at;
                for (auto set = word.begin(); set != word.end() && next != none; set++) next = one(text, next, **set);
                if (next != none) next = match(step + 1, end, text, next);
                if (next != none) return next;
            }
            if (step->least > 0) return none;
        } else if (step->kind != Step::set) {
            if (!is_place(*step, text, at)) return none;
        } else {
            std::size_t least = at, count = 0;
            for (std::size_t next; count < step->most && (next = one(text, at, *step->characters)) != none; at = next, count++)
                if (count == step->least) least = at;
            if (count < step->least) return none;
            if (count == step->least || step->possessive || step->certain) continue;
            for (;; at = before(text, at)) {
                const std::size_t found = match(step + 1, end, text, at);
                if (found != none || at == least) return found;
            }
        }
    }
    return at;
}

}  // namespace

// The branches, and those of them that may begin with each byte.
struct Pattern::Expression {
    explicit Expression(std::vector<Branch> all) : branches(std::move(all)) {
        for (std::size_t i = 0; i < branches.size(); i++) {
            for (unsigned char byte = 0; byte < 128; byte++)
                if (begins(branches[i], byte)) starts[byte] |= std::uint32_t{1} << i;
            for (std::size_t byte = 128; byte < 256; byte++) starts[byte] |= std::uint32_t{1} << i;
        }
    }

    std::size_t match_at(std::string_view text, std::size_t at) const {
        std::uint32_t left = starts[static_cast<unsigned char>(text[at])];
        for (std::size_t i = 0; left != 0; i++, left >>= 1) {
            if (!(left & 1)) continue;
            const std::size_t found = match(branches[i].data(), branches[i].data() + branches[i].size(), text, at);
            if (found != none) return found;
        }
        return none;
    }

    static bool begins(const Branch &branch, unsigned char byte) {
        for (const Step &step : branch) {
            if (step.kind == Step::set && step.characters->has(byte)) return true;
            if (step.kind == Step::words)
                for (const auto &word : step.alternatives)
                    if (word[0]->has(byte)) return true;
            if ((step.kind == Step::set || step.kind == Step::words) && step.least > 0) return false;
        }
        return false;
    }

    std::vector<Branch> branches;
    std::array<std::uint32_t, 256> starts{};
};

Pattern::Pattern(Json::Value pattern, const char *component) {
    if (pattern.find("String")) literal = inserted(pattern, "String");
    else *this = Pattern(pattern.at("Regex").string(), component);
}

Pattern::Pattern(std::string_view regex, const char *component)
    : expression(std::make_shared<Expression>(parse_expression(regex, component))) {}

double Pattern::growth(std::string_view content) const {
    if (!expression && literal.empty()) refuse_tokenizer("a pattern of a Replace that is not empty", "an empty one");
    return std::max(1.0, static_cast<double>(content.size()) / static_cast<double>(expression ? 1 : literal.size()));
}

std::pair<std::size_t, std::size_t> Pattern::find(std::string_view text, std::size_t at) const {
    if (!expression) {
        const std::size_t begin = literal.empty() ? text.npos : text.find(literal, at);
        return begin == text.npos ? std::pair{text.size(), text.size()} : std::pair{begin, begin + literal.size()};
    }
    for (; at < text.size(); at += decode_utf8(text, at).size) {
        const std::size_t end = expression->match_at(text, at);
        if (end != none) return {at, end};
    }
    return {text.size(), text.size()};
}

}  // namespace t2r
