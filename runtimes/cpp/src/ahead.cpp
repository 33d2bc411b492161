#include "ahead.hpp"

#include <algorithm>

namespace t2r {

namespace {

constexpr std::int64_t most_checked = 32;  // tokens of a run

void append(std::vector<std::int64_t> &to, const std::vector<std::int64_t> &more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

Ahead::Ahead(Decoder &decoder, std::vector<std::int64_t> text, Clock clock)
    : decoder(decoder), clock(clock), pace(decoder.run_times), waiting{text.back()} {
    lookup.read(text);
}

std::vector<std::int64_t> Ahead::guessed(std::int64_t left) {
    kind = lookup.matched();
    const std::size_t depth = kind ? pace.depth(kind, waiting.size()) : 0;
    const std::int64_t reach = decoder.signature().reach();
    const std::int64_t room = reach ? std::min(most_checked, reach - decoder.position()) : most_checked;
    const std::int64_t fits = std::min(room - static_cast<std::int64_t>(waiting.size()), left - 1);
    return lookup.propose(std::min(depth, static_cast<std::size_t>(std::max<std::int64_t>(fits, 0))));
}

Logits Ahead::logits(std::int64_t left, Wanted wanted) {
    const bool read = ran && fresh.size() <= guesses.size() && std::equal(fresh.begin(), fresh.end(), guesses.begin());
    if (!read) {
        settle();
        guesses = guessed(left);
        std::vector<std::int64_t> tokens = waiting;
        append(tokens, guesses);
        const double begun = clock();
        first = waiting.size() - 1;
        single = tokens.size() == 1;
        const bool trusting = !guesses.empty() && pace.trusts(kind, guesses.size(), waiting.size());
        const std::size_t keep = trusting ? tokens.size() : waiting.size();
        if (single) found = decoder.read(tokens.data(), 1, 1, wanted);
        else found = decoder.check(tokens, keep, wanted);
        ran = true, trusted = trusting;
        pace.times.ran(tokens.size(), clock() - begun);
        columns = static_cast<std::size_t>(wanted == Wanted::top ? decoder.signature().top_k : decoder.signature().vocab_size);
    }
    const std::size_t row = (first + fresh.size()) * columns;
    return {found.values + row, found.tokens ? found.tokens + row : nullptr};
}

void Ahead::settle() {
    if (!ran) return;
    ran = false;
    const std::size_t checked = guesses.size();
    std::size_t right = 0;
    while (right < std::min(checked, fresh.size()) && guesses[right] == fresh[right]) right++;
    if (trusted && fresh.size() <= checked) {  // one was wrong, or the text ended earlier
        decoder.uncheck();
        append(waiting, fresh);
    } else {
        if (trusted) append(waiting, guesses);
        if (!single) decoder.checked(waiting);
        waiting = fresh;
        if (trusted) waiting.erase(waiting.begin(), waiting.end() - 1);
    }
    pace.judged(kind, checked, right, fresh.size());
    lookup.read(fresh);
    guesses.clear();
    fresh.clear();
    trusted = false;
}

void Ahead::finish() {
    settle();
    if (waiting.size() > 1) decoder.read(waiting.data(), 1, static_cast<std::int64_t>(waiting.size()) - 1);
}

}  // namespace t2r
