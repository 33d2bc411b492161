// The normalizers NFC, NFD, NFKC and NFKD (Unicode, annex 15 and chapter 3.11): characters are taken apart, marks behind a
// character that begins one (class 0) are ordered by their class, and for NFC and NFKC put together again.
#include "normalization.hpp"

#include <algorithm>
#include <tuple>

#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

// Hangul syllables are arithmetic of their parts (chapter 3.12).
constexpr char32_t syllables = 0xAC00, leads = 0x1100, vowels = 0x1161, tails = 0x11A7;
constexpr char32_t lead_count = 19, vowel_count = 21, tail_count = 28, syllable_count = lead_count * vowel_count * tail_count;

struct Mark {
    char32_t code;
    unsigned combining_class;
};

unsigned class_of(char32_t code) {
    const auto after = std::upper_bound(class_ranges, class_ranges + class_range_count, code,
                                        [](char32_t value, const ClassRange &range) { return value < range.first; });
    return (after - 1)->combining_class;
}

const Decomposition *decomposition_of(char32_t code, bool compatibility) {
    const auto end = decompositions + decomposition_count;
    const auto first = std::lower_bound(decompositions, end, code,
                                        [](const Decomposition &entry, char32_t value) { return entry.code < value; });
    if (first == end || first->code != code) return nullptr;
    if (compatibility && first + 1 != end && (first + 1)->code == code) return first + 1;
    return compatibility || !first->compatibility ? first : nullptr;
}

// What two characters become together; 0: they stay two.
char32_t together(char32_t first, char32_t second) {
    if (first - leads < lead_count && second - vowels < vowel_count)
        return syllables + ((first - leads) * vowel_count + (second - vowels)) * tail_count;
    if (first - syllables < syllable_count && (first - syllables) % tail_count == 0 && second - tails - 1 < tail_count - 1)
        return first + (second - tails);
    const auto end = compositions + composition_count;
    const auto found = std::lower_bound(compositions, end, std::tuple(first, second), [](const Composition &entry, const auto &pair) {
        return std::tuple<char32_t, char32_t>(entry.first, entry.second) < pair;
    });
    return found != end && found->first == first && found->second == second ? found->made : 0;
}

// The text so far, and its end, which what follows may still change: a character of class 0 and the marks behind it.
class Writer {
public:
    explicit Writer(bool compose) : compose(compose) {}

    void add(char32_t code) {
        const unsigned combining_class = class_of(code);
        if (combining_class) marks.push_back({code, combining_class});
        else end_marks(), begin(code);
    }

    std::string text() {
        end_marks();
        write();
        return std::move(made);
    }

private:
    // A mark is put together with the character unless one of its class, or of a higher one, stays between the two.
    void end_marks() {
        std::stable_sort(marks.begin(), marks.end(), [](const Mark &a, const Mark &b) { return a.combining_class < b.combining_class; });
        for (const Mark &mark : marks) {
            const bool reached = kept.empty() || kept.back().combining_class < mark.combining_class;
            const char32_t both = compose && started && reached ? together(starter, mark.code) : 0;
            if (both) starter = both;
            else kept.push_back(mark);
        }
        marks.clear();
    }

    void begin(char32_t code) {
        const char32_t both = compose && started && kept.empty() ? together(starter, code) : 0;
        if (!both) write();
        starter = both ? both : code;
        started = true;
    }

    void write() {
        if (started) append_utf8(made, starter);
        for (const Mark &mark : kept) append_utf8(made, mark.code);
        kept.clear();
        require_text(made.size());
    }

    const bool compose;
    std::string made;
    bool started = false;
    char32_t starter = 0;
    std::vector<Mark> marks, kept;  // as they came; behind the starter, in order
};

class Normalization : public Normalizer {
public:
    Normalization(bool compatibility, bool compose) : compatibility(compatibility), compose(compose) {}

    std::string normalize(std::string text) const override {
        Writer writer(compose);
        for (std::size_t at = 0; at < text.size();) {
            const Decoded character = decode_utf8(text, at);
            take_apart(character.code, writer);
            at += character.size;
        }
        return writer.text();
    }

private:
    void take_apart(char32_t code, Writer &writer) const {
        if (code - syllables < syllable_count) {
            const char32_t place = code - syllables, tail = place % tail_count;
            writer.add(leads + place / (vowel_count * tail_count));
            writer.add(vowels + place / tail_count % vowel_count);
            if (tail) writer.add(tails + tail);
        } else if (const Decomposition *found = decomposition_of(code, compatibility)) {
            for (std::size_t i = 0; i < found->size; i++) writer.add(decomposed[found->offset + i]);
        } else {
            writer.add(code);
        }
    }

    const bool compatibility, compose;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalization(bool compatibility, bool compose) {
    return std::make_unique<Normalization>(compatibility, compose);
}

}  // namespace t2r
