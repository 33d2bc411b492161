#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "error.hpp"

namespace t2r {

namespace {

constexpr float never = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t golden = 0x9E3779B9;  // 2^32 over the golden ratio, so that seed 0 is not special
constexpr double words = 4294967296.0;

// MurmurHash3's finalizer.
std::uint32_t mix(std::uint32_t x) {
    x = (x ^ x >> 16) * 0x85EBCA6B;
    x = (x ^ x >> 13) * 0xC2B2AE35;
    return x ^ x >> 16;
}

// A 32-bit seed; seeds below 2^32 are unchanged.
std::uint32_t word(std::int64_t seed) {
    if (seed < 0) return std::random_device{}();
    return mix(static_cast<std::uint32_t>(seed >> 32)) ^ static_cast<std::uint32_t>(seed);
}

}  // namespace

Sampler::Sampler(const Sampling &wanted) : sampling(wanted), seed(word(wanted.seed)) { require_sampling(wanted); }

std::size_t Sampler::largest(const float *logits, const std::int64_t *tokens, std::size_t count) {
    std::size_t best = 0;
    bool finite = true;  // -infinity is allowed
    for (std::size_t i = 0; i < count; i++) {
        finite = finite && logits[i] < -never;
        if (logits[i] > logits[best] || (tokens && logits[i] == logits[best] && tokens[i] < tokens[best])) best = i;
    }
    if (!finite) best = static_cast<std::size_t>(std::find_if(logits, logits + count, [](float logit) { return !(logit < -never); }) - logits);
    if (!std::isfinite(logits[best]))
        fail(T2R_GRAPH, "finite logits",
             std::to_string(logits[best]) + " at token " + number(tokens ? tokens[best] : static_cast<std::int64_t>(best)),
             "check the graph with t2r verify");
    return best;
}

std::int64_t Sampler::pick(const float *logits, const std::int64_t *tokens, std::size_t count, const History &text,
                           const std::vector<std::int64_t> &banned) {
    if (!banned.empty() || sampling.looks_back()) {
        changed.assign(logits, logits + count);
        logits = changed.data();
        for (std::size_t i = 0; i < count && !banned.empty(); i++)
            if (std::find(banned.begin(), banned.end(), tokens ? tokens[i] : static_cast<std::int64_t>(i)) != banned.end()) changed[i] = never;
    }
    std::size_t best = largest(logits, tokens, count);
    if (sampling.looks_back()) {
        if (sampling.repetition_penalty != 1) penalize(text);
        if (sampling.no_repeat_ngram > 0) forbid_repeats(text);
        best = largest(logits, tokens, count);
    }
    draws++;
    if (sampling.temperature == 0 || sampling.top_k == 1) return tokens ? tokens[best] : static_cast<std::int64_t>(best);
    gather(logits, tokens, count, logits[best]);
    if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < candidates.size()) keep_top_k();
    if (sampling.top_p < 1) keep_nucleus();
    if (sampling.min_p > 0) {
        const double least = std::log(sampling.min_p);
        const auto unlikely = [&](const Candidate &candidate) { return candidate.score < least; };
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), unlikely), candidates.end());
    }
    return draw();
}

// Makes all tokens candidates, sorted by token.
void Sampler::gather(const float *logits, const std::int64_t *tokens, std::size_t count, double top) {
    candidates.clear();
    candidates.reserve(count);
    for (std::size_t i = 0; i < count; i++)
        candidates.push_back({logits[i], static_cast<std::int32_t>(tokens ? tokens[i] : static_cast<std::int64_t>(i)),
                              (logits[i] - top) / sampling.temperature, 0});
    if (tokens) std::sort(candidates.begin(), candidates.end(), [](const Candidate &a, const Candidate &b) { return a.token < b.token; });
}

// Penalizes each token that has occurred once, however often; in float32, as the logits are. Here the logits are of all tokens.
void Sampler::penalize(const History &text) {
    const auto factor = static_cast<float>(sampling.repetition_penalty);
    seen.assign(changed.size(), false);
    for (std::size_t i = 0; i < text.size(); i++) {
        const auto token = static_cast<std::size_t>(text[i]);
        if (token >= seen.size() || seen[token]) continue;
        seen[token] = true;
        float &logit = changed[token];
        logit = logit > 0 ? logit / factor : logit * factor;
    }
}

// Forbids tokens that would repeat an n-gram, unless that leaves none.
void Sampler::forbid_repeats(const History &text) {
    const auto n = static_cast<std::size_t>(sampling.no_repeat_ngram);
    if (n > text.size()) return;
    seen.assign(changed.size(), false);
    const std::size_t tail = text.size() - (n - 1);
    for (std::size_t begin = 0; begin + n <= text.size(); begin++) {
        std::size_t same = 0;
        while (same < n - 1 && text[begin + same] == text[tail + same]) same++;
        const auto token = static_cast<std::size_t>(text[begin + n - 1]);
        if (same == n - 1 && token < seen.size()) seen[token] = true;
    }
    bool left = false;
    for (std::size_t token = 0; token < changed.size(); token++) left = left || (changed[token] > never && !seen[token]);
    for (std::size_t token = 0; left && token < changed.size(); token++)
        if (seen[token]) changed[token] = never;
}

namespace {

// By descending logit; the lowest token first on ties.
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
    double total = 0;  // summed in ascending token order
    for (Candidate &candidate : candidates) total += candidate.weight = std::exp(candidate.score);
    // weights below this sum to less than 1 - p: dropped before the sort, which takes longest
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
