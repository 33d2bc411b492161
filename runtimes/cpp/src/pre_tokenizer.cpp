#include <algorithm>
#include <functional>

#include "tokenizer_parts.hpp"
#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_named(std::string_view name, const char *component) {
    static constexpr std::string_view names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const auto found = std::find(std::begin(names), std::end(names), name);
    if (found == std::end(names)) refuse_part(component, "of the behavior " + std::string(name));
    return static_cast<Behavior>(found - std::begin(names));
}

struct Span {
    std::size_t begin, end;
    bool matches;
};

// What is left of spans that cover a text, in the library's own way of merging them.
std::vector<Span> arranged(std::vector<Span> spans, Behavior behavior) {
    std::vector<Span> made;
    const bool backwards = behavior == Behavior::merged_with_next;
    if (backwards) std::reverse(spans.begin(), spans.end());
    bool before = false;
    for (const Span &span : spans) {
        const bool joins = (backwards || behavior == Behavior::merged_with_previous) ? span.matches && !before
                                                                                   : behavior == Behavior::contiguous && span.matches == before;
        before = span.matches;
        if (behavior == Behavior::removed && span.matches) continue;
        if (joins && !made.empty()) {
            made.back().begin = std::min(made.back().begin, span.begin);
            made.back().end = std::max(made.back().end, span.end);
        } else {
            made.push_back(span);
        }
    }
    if (backwards) std::reverse(made.begin(), made.end());
    return made;
}

using Find = std::function<std::pair<std::size_t, std::size_t>(std::string_view, std::size_t)>;

// Cut each piece at its matches.
void cut_at(std::vector<Piece> &pieces, Behavior behavior, bool invert, const Find &find) {
    std::vector<Piece> made;
    for (Piece &piece : pieces) {
        std::vector<Span> spans;
        for (std::size_t at = 0; at < piece.text.size();) {
            const auto [begin, end] = find(piece.text, at);
            if (begin > at) spans.push_back({at, begin, invert});
            if (end > begin) spans.push_back({begin, end, !invert});
            at = end;
        }
        for (const Span &span : arranged(std::move(spans), behavior))
            if (span.end > span.begin)
                made.push_back({piece.text.substr(span.begin, span.end - span.begin), piece.first && span.begin == 0});
    }
    pieces.swap(made);
}

// The next character with one of these flags, alone.
Find character_with(int flags) {
    return [flags](std::string_view text, std::size_t at) {
        while (at < text.size()) {
            const Decoded character = decode_utf8(text, at);
            if (has(character.code, flags)) return std::pair{at, at + character.size};
            at += character.size;
        }
        return std::pair{at, at};
    };
}

// The next \w+|[^\w\s]+
std::pair<std::size_t, std::size_t> find_word(std::string_view text, std::size_t at) {
    const auto kind = [&](std::size_t place) { return flags_of(decode_utf8(text, place).code) & (is_word | is_space); };
    const auto next = [&](std::size_t place) { return place + decode_utf8(text, place).size; };
    while (at < text.size() && kind(at) == is_space) at = next(at);
    std::size_t end = at;
    while (end < text.size() && kind(end) != is_space && kind(end) == kind(at)) end = next(end);
    return {at, end};
}

class Sequence : public PreTokenizer {
public:
    explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts(std::move(parts)) {}
    void cut(std::vector<Piece> &pieces) const override {
        for (const auto &part : parts) part->cut(pieces);
    }

private:
    std::vector<std::unique_ptr<PreTokenizer>> parts;
};

class Cut : public PreTokenizer {
public:
    Cut(Behavior behavior, bool invert, Find find) : behavior(behavior), invert(invert), find(std::move(find)) {}
    void cut(std::vector<Piece> &pieces) const override { cut_at(pieces, behavior, invert, find); }

private:
    Behavior behavior;
    bool invert;
    Find find;
};

class ByteLevel : public PreTokenizer {
public:
    explicit ByteLevel(Json::Value part) : prefix(flag(part, "add_prefix_space", true)), split(flag(part, "use_regex", true)) {}
    void cut(std::vector<Piece> &pieces) const override {
        for (Piece &piece : pieces)
            if (prefix && !piece.text.empty() && piece.text[0] != ' ') piece.text.insert(0, " ");
        if (split)
            cut_at(pieces, Behavior::isolated, false,
                   [](std::string_view text, std::size_t at) { return std::pair{at, match_gpt2(text, at)}; });
        for (Piece &piece : pieces) {
            std::string made;
            for (const char byte : piece.text) made += byte_character(static_cast<unsigned char>(byte));
            require_text(made.size());
            piece.text = std::move(made);
        }
    }

private:
    bool prefix, split;
};

class Metaspace : public PreTokenizer {
public:
    explicit Metaspace(Json::Value part) : mark(part.at("replacement").string()), splits(flag(part, "split", true)) {
        const auto named = part.find("prepend_scheme");
        scheme = named ? named->string() : flag(part, "add_prefix_space", true) ? "always" : "never";
        if (scheme != "always" && scheme != "first" && scheme != "never") refuse_part("Metaspace of the prepend_scheme", scheme);
        if (mark.empty() || decode_utf8(mark, 0).size != mark.size()) refuse_part("Metaspace of the replacement", mark);
    }
    void cut(std::vector<Piece> &pieces) const override {
        for (Piece &piece : pieces) {
            std::string made;
            for (const char c : piece.text) c == ' ' ? made += mark : made += c;
            const bool prepends = scheme == "always" || (scheme == "first" && piece.first);
            if (prepends && !made.empty() && made.compare(0, mark.size(), mark) != 0) made = mark + made;
            require_text(made.size());
            piece.text = std::move(made);
        }
        if (splits) cut_at(pieces, Behavior::merged_with_next, false, [this](std::string_view text, std::size_t at) {
                const std::size_t begin = std::min(text.find(mark, at), text.size());
                return std::pair{begin, std::min(begin + mark.size(), text.size())};
            });
    }

private:
    std::string mark, scheme;
    bool splits;
};

void add_pre_tokenizers(Json::Value part, std::vector<std::unique_ptr<PreTokenizer>> &parts) {
    if (part.is_null()) return;
    const std::string_view type = part.at("type").string();
    const auto add = [&](Behavior behavior, bool invert, Find find) {
        parts.push_back(std::make_unique<Cut>(behavior, invert, std::move(find)));
    };
    if (parts.size() >= max_parts) refuse_tokenizer("at most 256 parts of a pre-tokenizer", "more");
    if (type == "Sequence") {
        part.at("pretokenizers").each([&](Json::Value inner) { add_pre_tokenizers(inner, parts); });
    } else if (type == "ByteLevel") {
        parts.push_back(std::make_unique<ByteLevel>(part));
    } else if (type == "Metaspace") {
        parts.push_back(std::make_unique<Metaspace>(part));
    } else if (type == "Split") {
        auto pattern = std::make_shared<Pattern>(part.at("pattern"), "pre-tokenizer Split");
        add(behavior_named(part.at("behavior").string(), "pre-tokenizer Split"), flag(part, "invert", false),
            [pattern](std::string_view text, std::size_t at) { return pattern->find(text, at); });
    } else if (type == "Digits") {
        const bool alone = flag(part, "individual_digits", false);
        add(alone ? Behavior::isolated : Behavior::contiguous, false, character_with(is_digit));
    } else if (type == "Punctuation") {
        const auto behavior = part.find("behavior");
        add(behavior ? behavior_named(behavior->string(), "pre-tokenizer Punctuation") : Behavior::isolated, false, character_with(is_punctuation));
    } else if (type == "Whitespace") {
        add(Behavior::removed, true, find_word);
    } else if (type == "WhitespaceSplit") {
        add(Behavior::removed, false, character_with(is_space));
    } else {
        refuse_part("pre-tokenizer", type);
    }
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(Json::Value part) {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    add_pre_tokenizers(part, parts);
    return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace t2r
