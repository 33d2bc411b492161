// The normalizers NFC, NFD, NFKC and NFKD (Unicode, annex 15 and chapter 3.11): decompose characters, sort the marks after a
// starter (class 0) by their class, and for NFC and NFKC compose them again.
#include "normalization.hpp"

#include <algorithm>
#include <tuple>

#include "tokenizer_parts.hpp"
#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

// Hangul syllables are computed from their parts (chapter 3.12).
constexpr char32_t syllables = 0xAC00, leads = 0x1100, vowels = 0x1161, tails = 0x11A7;
constexpr char32_t lead_count = 19, vowel_count = 21, tail_count = 28, syllable_count = lead_count * vowel_count * tail_count;

unsigned class_of(char32_t code) { return range_of(class_ranges, class_range_count, code).combining_class; }

const Decomposition *decomposition_of(char32_t code, bool compatibility) {
    const auto end = decompositions + decomposition_count;
    const auto first = std::lower_bound(decompositions, end, code,
                                        [](const Decomposition &entry, char32_t value) { return entry.code < value; });
    if (first == end || first->code != code) return nullptr;
    if (compatibility && first + 1 != end && (first + 1)->code == code) return first + 1;
    return compatibility || !first->compatibility ? first : nullptr;
}

// The composition of two characters; 0: none.
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

// A mark: its class in the bits above its code point. 4 bytes each, as a text may consist of marks only.
using Mark = std::uint32_t;
constexpr unsigned class_at = 24;

// The text so far, and its end, which later characters may change: a starter and the marks after it.
class Writer {
public:
    explicit Writer(bool compose) : compose(compose) {}

    void add(char32_t code) {
        const unsigned combining_class = class_of(code);
        if (!combining_class) return end_marks(), begin(code);
        require_text(made.size() + 2 * (marks.size() + 1));  // a mark has at least 2 bytes
        marks.push_back(combining_class << class_at | code);
    }

    // A run of ASCII, which no form changes; only its last character may compose with the next.
    void add_ascii(std::string_view run) {
        end_marks();
        write();
        made.append(run, 0, run.size() - 1);
        starter = static_cast<unsigned char>(run.back());
        started = true;
    }

    std::string text() {
        end_marks();
        write();
        return std::move(made);
    }

private:
    // A mark composes with the starter unless a mark of its class, or of a higher one, remains between the two.
    void end_marks() {
        const auto lower = [](Mark a, Mark b) { return a >> class_at < b >> class_at; };
        if (marks.size() > 1) std::stable_sort(marks.begin(), marks.end(), lower);
        auto kept = marks.begin();
        for (const Mark mark : marks) {
            const bool reached = kept == marks.begin() || lower(kept[-1], mark);
            const char32_t both = compose && started && reached ? together(starter, code_of(mark)) : 0;
            if (both) starter = both;
            else *kept++ = mark;
        }
        marks.erase(kept, marks.end());
    }

    void begin(char32_t code) {
        const char32_t both = compose && started && marks.empty() ? together(starter, code) : 0;
        if (!both) write();
        starter = both ? both : code;
        started = true;
    }

    void write() {
        if (started) append_utf8(made, starter);
        for (const Mark mark : marks) append_utf8(made, code_of(mark));
        marks.clear();
        require_text(made.size());
    }

    static char32_t code_of(Mark mark) { return mark & ((Mark{1} << class_at) - 1); }

    const bool compose;
    std::string made;
    bool started = false;
    char32_t starter = 0;
    std::vector<Mark> marks;  // in text order; after end_marks sorted
};

std::size_t ascii_run(std::string_view text) {
    const auto end = std::find_if(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
    return static_cast<std::size_t>(end - text.begin());
}

class Normalization : public Normalizer {
public:
    Normalization(bool compatibility, bool compose) : compatibility(compatibility), compose(compose) {}

    double grown(double bytes) const override { return bytes * (compatibility ? 11 : 3); }

    std::string normalize(std::string text) const override {
        Writer writer(compose);
        for (std::string_view rest = text; !rest.empty();) {
            std::size_t size = ascii_run(rest);
            if (size > 0) {
                writer.add_ascii(rest.substr(0, size));
            } else {
                const Decoded character = decode_utf8(rest, 0);
                take_apart(character.code, writer);
                size = character.size;
            }
            rest.remove_prefix(size);
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
