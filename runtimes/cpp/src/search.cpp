// Beam search of one sentence: runtimes/contract/translators.md.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "translator.hpp"

namespace t2r {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

using Ids = std::vector<std::int64_t>;

struct Hypothesis {
    Ids tokens;
    double sum;  // of log-probabilities
    std::size_t row;  // in the batch
    CopyStates states;
};

struct Candidate {
    double sum;
    std::size_t hypothesis;
    std::int64_t token;
};

// Best first; on ties the better hypothesis, then the lower token.
bool is_better(const Candidate &a, const Candidate &b) {
    return a.sum != b.sum ? a.sum > b.sum : a.hypothesis != b.hypothesis ? a.hypothesis < b.hypothesis : a.token < b.token;
}

class Search {
public:
    Search(const Signature &signature, const Beam &beam, Copies *copies)
        : signature(signature), beam(beam), copies(copies), start(signature.source->start_tokens.front()) {
        const Ids &tokens = signature.source->start_tokens;
        hypotheses.push_back({{tokens.begin() + 1, tokens.end()}, copies ? copies->debt : 0, 0, {}});
        if (copies) hypotheses.front().states = copies->read(hypotheses.front().tokens);
        const auto ends = static_cast<std::int64_t>(signature.eos_tokens.size());
        candidates = static_cast<std::size_t>(beam.width == 1 ? 1 : std::max<std::int64_t>(2, 1 + ends) * beam.width);
        const auto passed_over = static_cast<std::int64_t>(signature.source->banned_tokens.size()) + (beam.min_tokens ? ends : 0);
        enough = std::min(static_cast<std::int64_t>(candidates) + passed_over, signature.vocab_size);
        wanted = !copies && !beam.looks_back() && enough <= signature.top_k ? Wanted::top : Wanted::logits;
    }

    // Extend every hypothesis by one token. False: the sentence is done; else the next step reads `newest` in `rows`.
    bool advance(const Logits &logits) {
        const auto width = static_cast<std::size_t>(beam.width);
        const std::vector<Candidate> best = choose(logits);
        const std::size_t length = hypotheses.front().tokens.size() + 1;
        std::vector<Hypothesis> next;
        for (std::size_t i = 0; i < best.size(); i++) {
            const Candidate &candidate = best[i];
            const bool ends = is_end(candidate.token) || static_cast<std::int64_t>(length) == beam.max_tokens;
            if (ends ? i >= width : next.size() == width) continue;
            const Hypothesis &longer = hypotheses[candidate.hypothesis];
            Ids text = longer.tokens;
            text.push_back(candidate.token);
            if (ends) finish({std::move(text), score(candidate.sum, length)});
            else next.push_back({std::move(text), candidate.sum, longer.row, copies ? copies->advance(longer.states, candidate.token).states : CopyStates()});
        }
        place(next);
        hypotheses = std::move(next);
        return !hypotheses.empty() && !ended(length);
    }

    std::vector<Translation> finished;
    Ids rows, newest;
    Wanted wanted;  // outputs of a step: only the largest logits if they suffice

private:
    bool is_end(std::int64_t token) const {
        return std::find(signature.eos_tokens.begin(), signature.eos_tokens.end(), token) != signature.eos_tokens.end();
    }

    double score(double sum, std::size_t tokens) const { return sum / std::pow(static_cast<double>(tokens), beam.length_penalty); }

    // Assign rows of the next step: each hypothesis gets the row of the one it extends if that row is free, so most rows keep
    // their place.
    void place(std::vector<Hypothesis> &next) {
        const bool stay = next.size() == hypotheses.size();
        std::vector<Hypothesis *> in_row(next.size(), nullptr);
        std::vector<Hypothesis *> moving;
        for (Hypothesis &hypothesis : next) {
            if (stay && !in_row[hypothesis.row]) in_row[hypothesis.row] = &hypothesis;
            else moving.push_back(&hypothesis);
        }
        auto moved = moving.begin();
        rows.clear();
        newest.clear();
        for (std::size_t row = 0; row < next.size(); row++) {
            Hypothesis &hypothesis = in_row[row] ? *in_row[row] : **moved++;
            rows.push_back(static_cast<std::int64_t>(hypothesis.row));
            newest.push_back(hypothesis.tokens.back());
            hypothesis.row = row;
        }
    }

    // The best candidates, best first. Kept in a heap of bounded size, whose front is the worst.
    std::vector<Candidate> choose(const Logits &logits) {
        std::vector<Candidate> best;
        const auto offer = [&](const Candidate &candidate) {
            if (best.size() == candidates) {
                if (!is_better(candidate, best.front())) return;
                std::pop_heap(best.begin(), best.end(), is_better);
                best.back() = candidate;
            } else {
                best.push_back(candidate);
            }
            std::push_heap(best.begin(), best.end(), is_better);
        };
        const auto count = static_cast<std::size_t>(logits.tokens ? signature.top_k : signature.vocab_size);
        for (std::size_t i = 0; i < hypotheses.size(); i++) {
            const auto &[text, sum, place, states] = hypotheses[i];
            const std::size_t row = place * count;
            if (logits.tokens) add_largest(logits.values + row, logits.tokens + row, logits.sums[place], text);
            else add(logits.values + row, text);
            if (forces_end(text)) {
                const std::int64_t end = signature.eos_tokens.front();
                offer({sum + (copies && !states.empty() ? copied(0, end, text, states).value_or(0) : 0), i, end});
                continue;
            }
            if (copies && offer_copied(hypotheses[i], i, offer)) continue;
            for (std::size_t n = 0; n < count; n++) {
                const std::int64_t token = logits.tokens ? logits.tokens[row + n] : static_cast<std::int64_t>(n);
                if (added[n] != never) offer({sum + added[n], i, token});
            }
        }
        std::sort_heap(best.begin(), best.end(), is_better);
        return best;
    }

    // What a token adds to a hypothesis whose translation copies its source; nothing if the token is not allowed.
    std::optional<double> copied(double value, std::int64_t token, const Ids &text, const CopyStates &states) const {
        const auto &[after, gain] = copies->advance(states, token);
        if (after.empty() || value == never) return {};
        if (!is_end(token) && static_cast<std::int64_t>(text.size()) + 1 != beam.max_tokens) return value + gain;
        Ids whole = text;
        whole.push_back(token);
        return value + gain - copies->cost_of_ending(after, whole);
    }

    // Offers the tokens of such a hypothesis, from what each token of the vocabulary adds. False: no token can write what is begun.
    template <class Offer> bool offer_copied(const Hypothesis &hypothesis, std::size_t place, const Offer &offer) const {
        Ids others;
        for (std::int64_t token = 0; token < signature.vocab_size; token++)
            if (!copies->has_digits(token) && added[static_cast<std::size_t>(token)] != never) others.push_back(token);
        const auto kept = others.begin() + std::min(enough, static_cast<std::int64_t>(others.size()));
        std::partial_sort(others.begin(), kept, others.end(), [&](std::int64_t a, std::int64_t b) {
            const double one = added[static_cast<std::size_t>(a)], other = added[static_cast<std::size_t>(b)];
            return one != other ? one > other : a < b;
        });
        std::set<std::int64_t> tokens = copies->pieces(hypothesis.states);
        tokens.insert(others.begin(), kept);
        tokens.insert(signature.eos_tokens.begin(), signature.eos_tokens.end());
        bool any = false;
        for (const std::int64_t token : tokens)
            if (const auto value = copied(added[static_cast<std::size_t>(token)], token, hypothesis.tokens, hypothesis.states)) {
                offer({hypothesis.sum + *value, place, token});
                any = true;
            }
        return any;
    }

    bool forces_end(const Ids &text) const {
        return beam.forced_end && !signature.eos_tokens.empty() && static_cast<std::int64_t>(text.size()) == beam.max_tokens - 1;
    }

    // What each of the largest logits adds to a hypothesis' sum; there are no penalties.
    void add_largest(const float *logits, const std::int64_t *tokens, double log_sum, const Ids &text) {
        if (!std::isfinite(log_sum)) fail(T2R_GRAPH, "finite logits", "NaN or infinity", "check the graph with t2r verify");
        const std::vector<std::int64_t> &banned = signature.source->banned_tokens;
        const bool goes_on = static_cast<std::int64_t>(text.size()) < beam.min_tokens;
        added.assign(static_cast<std::size_t>(signature.top_k), never);
        for (std::size_t n = 0; n < added.size(); n++)
            if (std::find(banned.begin(), banned.end(), tokens[n]) == banned.end() && !(goes_on && is_end(tokens[n])))
                added[n] = logits[n] - log_sum;
    }

    // What each token adds to a hypothesis' sum. With a width of 1, penalties apply to logits.
    void add(const float *logits, const Ids &text) {
        const auto vocabulary = static_cast<std::size_t>(signature.vocab_size);
        const float largest = *std::max_element(logits, logits + vocabulary);
        double sum = 0;
        for (std::size_t token = 0; token < vocabulary; token++) sum += std::exp(static_cast<double>(logits[token]) - largest);
        if (!std::isfinite(sum) || !std::isfinite(largest)) fail(T2R_GRAPH, "finite logits", "NaN or infinity", "check the graph with t2r verify");
        const double log_sum = largest + std::log(sum), before = beam.width == 1 ? 0 : log_sum;
        added.assign(logits, logits + vocabulary);
        for (double &value : added) value -= before;
        for (const std::int64_t token : signature.source->banned_tokens) added[static_cast<std::size_t>(token)] = never;
        if (static_cast<std::int64_t>(text.size()) < beam.min_tokens)
            for (const std::int64_t token : signature.eos_tokens) added[static_cast<std::size_t>(token)] = never;
        if (beam.looks_back()) penalize(text);
        for (double &value : added) value -= log_sum - before;
    }

    void penalize(const Ids &text) {
        Ids occurred = {start};
        occurred.insert(occurred.end(), text.begin(), text.end());
        Ids once = occurred;
        std::sort(once.begin(), once.end());
        once.erase(std::unique(once.begin(), once.end()), once.end());
        for (const std::int64_t token : once) {
            double &value = added[static_cast<std::size_t>(token)];
            value = value > 0 ? value / beam.repetition_penalty : value * beam.repetition_penalty;
        }
        const auto n = static_cast<std::size_t>(beam.no_repeat_ngram);
        if (n == 0 || n > occurred.size()) return;
        std::vector<double> left = added;
        const auto tail = occurred.end() - static_cast<std::ptrdiff_t>(n - 1);
        for (auto begin = occurred.begin(); occurred.end() - begin >= static_cast<std::ptrdiff_t>(n); ++begin)
            if (std::equal(tail, occurred.end(), begin)) left[static_cast<std::size_t>(begin[static_cast<std::ptrdiff_t>(n - 1)])] = never;
        if (*std::max_element(left.begin(), left.end()) > never) added.swap(left);
    }

    void finish(Translation translation) {
        const auto worse = [&](const Translation &other) { return other.score < translation.score; };
        finished.insert(std::find_if(finished.begin(), finished.end(), worse), std::move(translation));
        if (finished.size() > static_cast<std::size_t>(beam.width)) finished.pop_back();
    }

    bool ended(std::size_t length) const {
        if (static_cast<std::int64_t>(length) == beam.max_tokens) return true;
        if (finished.size() < static_cast<std::size_t>(beam.width)) return false;
        if (beam.width == 1 || beam.early_stopping == 1) return true;
        const bool any_length = beam.early_stopping == 2 && beam.length_penalty > 0;
        const std::size_t tokens = any_length ? static_cast<std::size_t>(beam.max_tokens) : length;
        return score(hypotheses.front().sum, tokens) <= finished.back().score;
    }

    const Signature &signature;
    const Beam &beam;
    Copies *const copies;
    const std::int64_t start;
    std::size_t candidates;
    std::int64_t enough;  // candidates of a hypothesis
    std::vector<Hypothesis> hypotheses;
    std::vector<double> added;
};

}  // namespace

std::vector<Translation> search(Decoder &decoder, const Beam &beam, Copies *copies) {
    const Ids &start = decoder.signature().source->start_tokens;
    Search search(decoder.signature(), beam, copies);
    Logits logits = decoder.read(start.data(), 1, static_cast<std::int64_t>(start.size()), search.wanted);
    while (search.advance(logits)) {
        decoder.reorder(search.rows);
        logits = decoder.read(search.newest.data(), static_cast<std::int64_t>(search.newest.size()), 1, search.wanted);
    }
    std::vector<Translation> found = std::move(search.finished);
    found.resize(std::min(found.size(), static_cast<std::size_t>(beam.n_best)));
    return found;
}

}  // namespace t2r
