#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "error.hpp"

namespace t2r {

namespace {

constexpr float never = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t golden = 0x9E3779B9;  // 2^32 over the golden ratio, so that seed 0 is like any other
constexpr double words = 4294967296.0;

// MurmurHash3's finalizer.
std::uint32_t mix(std::uint32_t x) {
    x = (x ^ x >> 16) * 0x85EBCA6B;
    x = (x ^ x >> 13) * 0xC2B2AE35;
    return x ^ x >> 16;
}

// A seed as one of 32 bits; itself if it is less than 2^32.
std::uint32_t word(std::int64_t seed) {
    if (seed < 0) return std::random_device{}();
    return mix(static_cast<std::uint32_t>(seed >> 32)) ^ static_cast<std::uint32_t>(seed);
}

}  // namespace

Sampler::Sampler(const Sampling &wanted) : sampling(wanted), seed(word(wanted.seed)) { require_sampling(wanted); }

std::size_t Sampler::largest() const {
    std::size_t best = 0;
    for (std::size_t i = 0; i < candidates.size(); i++) {
        const float logit = candidates[i].logit;
        if (std::isnan(logit) || logit == -never) {
            best = i;
            break;
        }
        if (logit > candidates[best].logit) best = i;
    }
    if (!std::isfinite(candidates[best].logit))
        fail(T2R_GRAPH, "finite logits", std::to_string(candidates[best].logit) + " at token " + number(candidates[best].token),
             "check the graph with t2r verify");
    return best;
}

std::int64_t Sampler::pick(const float *logits, const std::int64_t *tokens, std::size_t count, const History &text,
                           const std::vector<std::int64_t> &banned) {
    candidates.clear();
    for (std::size_t i = 0; i < count; i++)
        candidates.push_back({logits[i], tokens ? tokens[i] : static_cast<std::int64_t>(i), 0, 0});
    const auto by_token = [](const Candidate &a, const Candidate &b) { return a.token < b.token; };
    if (tokens) std::sort(candidates.begin(), candidates.end(), by_token);
    for (Candidate &candidate : candidates)
        if (std::find(banned.begin(), banned.end(), candidate.token) != banned.end()) candidate.logit = never;
    std::size_t best = largest();
    if (sampling.looks_back()) {
        if (sampling.repetition_penalty != 1) penalize(text);
        if (sampling.no_repeat_ngram > 0) forbid_repeats(text);
        best = largest();
    }
    draws++;
    if (sampling.temperature == 0 || sampling.top_k == 1) return candidates[best].token;
    const double top = candidates[best].logit;
    for (Candidate &candidate : candidates) candidate.score = (candidate.logit - top) / sampling.temperature;
    if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < candidates.size()) keep_top_k();
    if (sampling.top_p < 1) keep_nucleus();
    if (sampling.min_p > 0) {
        const double least = std::log(sampling.min_p);
        const auto unlikely = [&](const Candidate &candidate) { return candidate.score < least; };
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), unlikely), candidates.end());
    }
    return draw();
}

// Once for each token that has occurred, however often; in float32, as the logits are. Here candidates are all tokens.
void Sampler::penalize(const History &text) {
    const auto factor = static_cast<float>(sampling.repetition_penalty);
    seen.assign(candidates.size(), false);
    for (std::size_t i = 0; i < text.size(); i++) {
        const auto token = static_cast<std::size_t>(text[i]);
        if (token >= seen.size() || seen[token]) continue;
        seen[token] = true;
        float &logit = candidates[token].logit;
        logit = logit > 0 ? logit / factor : logit * factor;
    }
}

// A token that would complete a row that has occurred, unless that leaves none.
void Sampler::forbid_repeats(const History &text) {
    const auto n = static_cast<std::size_t>(sampling.no_repeat_ngram);
    if (n > text.size()) return;
    seen.assign(candidates.size(), false);
    const std::size_t tail = text.size() - (n - 1);
    for (std::size_t begin = 0; begin + n <= text.size(); begin++) {
        std::size_t same = 0;
        while (same < n - 1 && text[begin + same] == text[tail + same]) same++;
        const auto token = static_cast<std::size_t>(text[begin + n - 1]);
        if (same == n - 1 && token < seen.size()) seen[token] = true;
    }
    const auto left = [&](const Candidate &c) { return c.logit > never && !seen[static_cast<std::size_t>(c.token)]; };
    if (std::none_of(candidates.begin(), candidates.end(), left)) return;
    for (Candidate &candidate : candidates)
        if (seen[static_cast<std::size_t>(candidate.token)]) candidate.logit = never;
}

namespace {

// By falling logit, of equals the lowest token first.
template <class Candidate> bool ranks_before(const Candidate &a, const Candidate &b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

}  // namespace

void Sampler::keep_top_k() {
    const auto edge = candidates.begin() + sampling.top_k;
    std::nth_element(candidates.begin(), edge - 1, candidates.end(), ranks_before<Candidate>);
    candidates.erase(edge, candidates.end());
    std::sort(candidates.begin(), candidates.end(), [](const Candidate &a, const Candidate &b) { return a.token < b.token; });
}

void Sampler::keep_nucleus() {
    double total = 0;  // by rising token
    for (Candidate &candidate : candidates) total += candidate.weight = std::exp(candidate.score);
    // those below this weight add up to less than 1 - p: left out before the sort, which takes longest
    const double least = (1 - sampling.top_p) * total / static_cast<double>(candidates.size());
    const auto light = [&](const Candidate &candidate) { return candidate.weight < least; };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), light), candidates.end());
    std::sort(candidates.begin(), candidates.end(), ranks_before<Candidate>);
    double before = 0;
    std::size_t kept = 0;
    for (; kept < candidates.size() && before < sampling.top_p * total; kept++) before += candidates[kept].weight;
    candidates.resize(kept);
}

std::int64_t Sampler::draw() const {
    const std::uint32_t key = mix(mix(seed + golden) + (draws - 1));
    double best = -std::numeric_limits<double>::infinity();
    std::int64_t chosen = candidates.front().token;
    for (const Candidate &candidate : candidates) {
        const double uniform = (mix(static_cast<std::uint32_t>(candidate.token) + key) + 0.5) / words;
        const double value = candidate.score - std::log(-std::log(uniform));
        if (value > best || (value == best && candidate.token < chosen)) {
            best = value;
            chosen = candidate.token;
        }
    }
    return chosen;
}

}  // namespace t2r
