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

using Find = std::function<std::pair<std::size_t, std::size_t>(std::string_view, std::size_t)>;

// Merges the spans of a piece as the tokenizers library does, and passes them on.
class Merging {
public:
    Merging(Piece piece, Behavior behavior, PieceSink &next) : piece(piece), behavior(behavior), next(next) {}

    void add(std::size_t begin, std::size_t end, bool matches) {
        if (behavior == Behavior::removed && matches) return;
        if (waits && joins(matches)) {
            last = end;
        } else {
            flush();
            first = begin;
            last = end;
        }
        waits = true;
        before = matches;
    }
    void flush() {
        if (waits) next.take({piece.text.substr(first, last - first), piece.first && first == 0});
        waits = false;
    }

private:
    // Whether a span joins the one before it.
    bool joins(bool matches) const {
        switch (behavior) {
        case Behavior::merged_with_previous: return matches && !before;
        case Behavior::merged_with_next: return !matches && before;
        case Behavior::contiguous: return matches == before;
        default: return false;
        }
    }

    const Piece piece;
    const Behavior behavior;
    PieceSink &next;
    std::size_t first = 0, last = 0;
    bool waits = false, before = false;
};

// Cut a piece at its matches.
template <class F> void cut_at(Piece piece, Behavior behavior, bool invert, PieceSink &next, const F &find) {
    Merging merging(piece, behavior, next);
    for (std::size_t at = 0; at < piece.text.size();) {
        const auto [begin, end] = find(piece.text, at);
        if (begin > at) merging.add(at, begin, invert);
        if (end > begin) merging.add(begin, end, !invert);
        at = end;
    }
    merging.flush();
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
    void cut(Piece piece, PieceSink &next) const override { cut_from(0, piece, next); }

    double grown(double bytes) const override {
        for (const auto &part : parts) bytes = part->grown(bytes);
        return bytes;
    }

private:
    // Cut a piece by the parts from index `place` on.
    void cut_from(std::size_t place, Piece piece, PieceSink &next) const {
        struct Others : PieceSink {
            Others(const Sequence &sequence, std::size_t place, PieceSink &next) : sequence(sequence), place(place), next(next) {}
            void take(Piece piece) override { sequence.cut_from(place, piece, next); }
            const Sequence &sequence;
            const std::size_t place;
            PieceSink &next;
        };
        if (place == parts.size()) return next.take(piece);
        if (place + 1 == parts.size()) return parts[place]->cut(piece, next);
        Others others(*this, place + 1, next);
        parts[place]->cut(piece, others);
    }

    std::vector<std::unique_ptr<PreTokenizer>> parts;
};

class Cut : public PreTokenizer {
public:
    Cut(Behavior behavior, bool invert, Find find) : behavior(behavior), invert(invert), find(std::move(find)) {}
    void cut(Piece piece, PieceSink &next) const override { cut_at(piece, behavior, invert, next, find); }

private:
    Behavior behavior;
    bool invert;
    Find find;
};

// GPT-2's pattern, which matches every character.
const Pattern &words() {
    static const Pattern made(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "pre-tokenizer ByteLevel");
    return made;
}

class ByteLevel : public PreTokenizer {
public:
    explicit ByteLevel(Json::Value part) : prefix(flag(part, "add_prefix_space", true)), split(flag(part, "use_regex", true)) {}
    void cut(Piece piece, PieceSink &next) const override {
        std::string led, made;
        if (prefix && !piece.text.empty() && piece.text[0] != ' ') piece.text = led = " " + std::string(piece.text);
        for (std::size_t at = 0; at < piece.text.size();) {
            const std::size_t end = split ? words().find(piece.text, at).second : piece.text.size();
            made.clear();
            for (const char byte : piece.text.substr(at, end - at)) made += byte_character(static_cast<unsigned char>(byte));
            require_text(made.size());
            next.take({made, piece.first && at == 0});
            at = end;
        }
    }

    double grown(double bytes) const override { return bytes * (prefix ? 4 : 2); }

private:
    bool prefix, split;
};

class Metaspace : public PreTokenizer {
public:
    explicit Metaspace(Json::Value part) : mark(one_character(part, "replacement", "Metaspace of the replacement")), splits(flag(part, "split", true)) {
        const auto named = part.find("prepend_scheme");
        scheme = named ? named->string() : flag(part, "add_prefix_space", true) ? "always" : "never";
        if (scheme != "always" && scheme != "first" && scheme != "never") refuse_part("Metaspace of the prepend_scheme", scheme);
        growth = static_cast<double>(named && scheme == "never" ? mark.size() : 2 * mark.size());
    }
    void cut(Piece piece, PieceSink &next) const override {
        const bool prepends = scheme == "always" || (scheme == "first" && piece.first);
        const bool marked = piece.text.substr(0, 1) == " " || piece.text.substr(0, mark.size()) == mark;
        std::string made;
        if (prepends && !marked && !piece.text.empty()) made = mark;
        for (const char c : piece.text) c == ' ' ? made += mark : made += c;
        require_text(made.size());
        piece.text = made;
        if (!splits) return next.take(piece);
        cut_at(piece, Behavior::merged_with_next, false, next, [this](std::string_view text, std::size_t at) {
            const std::size_t begin = std::min(text.find(mark, at), text.size());
            return std::pair{begin, std::min(begin + mark.size(), text.size())};
        });
    }

    double grown(double bytes) const override { return bytes * growth; }

private:
    std::string mark, scheme;
    bool splits;
    double growth;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(Json::Value component) {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    const auto add = [&](Behavior behavior, bool invert, Find find) {
        parts.push_back(std::make_unique<Cut>(behavior, invert, std::move(find)));
    };
    each_part(component, "pretokenizers", [&](std::string_view type, Json::Value part) {
        if (type == "ByteLevel") {
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
    });
    auto made = std::make_unique<Sequence>(std::move(parts));
    require_at_most(64, made->grown(1), "bytes for one from a pre_tokenizer");
    return made;
}

}  // namespace t2r
