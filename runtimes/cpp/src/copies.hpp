// What the translation of a source copies: runtimes/contract/copies.md.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "numbers.hpp"
#include "tokenizer.hpp"

namespace t2r {

struct Signature;

// A way to read a hypothesis.
struct CopyState {
    std::uint32_t placed;  // mask of the items that are placed
    std::u32string begun;  // what is written of another one
    char after;            // the letter before: of a word (w), a mark after a number (m) or a part of one (p), else a gap (g)

    bool operator<(const CopyState &other) const { return std::tie(placed, begun, after) < std::tie(other.placed, other.begun, other.after); }
    bool operator==(const CopyState &other) const { return placed == other.placed && begun == other.begun && after == other.after; }
};
using CopyStates = std::vector<CopyState>;

class Copies;

// The source's tokenizer of a translator, and the text that each token adds within a translation.
class Copying {
public:
    // Throws Error of the kind tokenizer.
    explicit Copying(const Signature &signature);

    // What the translation of a source copies; null if that is nothing, or too much.
    std::unique_ptr<Copies> of(const Ids &source) const;

private:
    friend class Copies;
    std::shared_ptr<Tokenizer> source;
    std::vector<std::u32string> texts;
    std::vector<bool> has_digits;
    std::map<std::u32string, Ids> tokens;  // of a text
};

// The items that a translation copies: numbers and names of its source.
class Copies {
public:
    Copies(const Copying &copying, std::vector<TextNumber> given, const std::vector<Name> &named);

    struct Step {
        CopyStates states;  // none: the token is not allowed
        double gain;        // of a hypothesis
    };
    // The states after a token.
    const Step &advance(const CopyStates &states, std::int64_t token);
    // The states after tokens.
    CopyStates read(const Ids &tokens);
    // Tokens that begin or continue an item.
    std::set<std::int64_t> pieces(const CopyStates &states) const;
    bool has_digits(std::int64_t token) const { return copying.has_digits[static_cast<std::size_t>(token)]; }
    // What a translation of these tokens loses by the items that it lacks.
    double cost_of_ending(const CopyStates &states, const Ids &text) const;

    double debt = 0;  // what a hypothesis begins with: minus the gains of all items

private:
    struct Worth {
        double gain, loss;
    };
    void add(std::size_t item, const std::u32string &form);
    double gained(const CopyStates &states) const;
    void next(const CopyState &state, char32_t letter, CopyStates &found) const;

    const Copying &copying;
    const std::vector<TextNumber> given;
    std::vector<Worth> worth;
    std::uint32_t parts = 0;                                // mask of the items that are parts
    std::map<std::u32string, std::uint32_t> begun, spelled;  // mask of the items with this beginning, or spelling
    std::map<CopyStates, std::map<std::int64_t, Step>> known;
};

}  // namespace t2r
