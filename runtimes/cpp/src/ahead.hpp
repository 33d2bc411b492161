// Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) with a draft-check graph.
//
// A run starts with the tokens that the run before it chose; draft tokens follow if they pay off. The states include the drafts if
// they are likely right; if one is wrong, the states before the run are still in the other buffers.
#pragma once

#include "decoder.hpp"

namespace t2r {

// The tokens of one text: those that are chosen and still to be read, and draft tokens after them.
class Ahead {
public:
    using Clock = double (*)();  // seconds

    // The decoder has read the text except for its last token.
    Ahead(Decoder &decoder, std::vector<std::int64_t> text, Clock clock);

    // Logits of the next token: from the last run if it has read the newest tokens as drafts, else from a new run. left: the most
    // further tokens. Throws as Decoder::read.
    Logits logits(std::int64_t left, Wanted wanted);
    void chose(std::int64_t token) { fresh.push_back(token); }
    // Go back to states that include no wrong draft.
    void settle();
    // Read all but the last token.
    void finish();

private:
    std::vector<std::int64_t> guessed(std::int64_t left);

    Decoder &decoder;
    Clock clock;
    Lookup lookup;
    Pace pace;
    std::vector<std::int64_t> waiting;  // chosen before the run, which starts with them
    std::vector<std::int64_t> guesses, fresh;  // draft tokens after those; chosen from the run's logits
    std::size_t kind = 0, first = 0;  // of the drafts; the row of the run's first logits
    bool ran = false, single = false, trusted = false;  // trusted: the states include the drafts
    Logits found{};
    std::size_t columns = 0;  // logits of a row
};

}  // namespace t2r
