#include "options.hpp"

#include <cmath>
#include <string>

#include "error.hpp"

namespace t2r {

namespace {

constexpr std::int64_t most_whole = std::int64_t{1} << 31, longest_ngram = 64;
constexpr double steepest = 10, largest_penalty = 100;

void require_penalties(const LooksBack &s) {
    require_option(s.repetition_penalty >= 1 / largest_penalty && s.repetition_penalty <= largest_penalty,
            "a repetition_penalty from 0.01 to 100 (1 is none)", s.repetition_penalty);
    require_option(s.no_repeat_ngram >= 0 && s.no_repeat_ngram <= longest_ngram, "no_repeat_ngram from 0 (no limit) to 64",
            static_cast<double>(s.no_repeat_ngram));
}

// Reads one option of a graph; false if the name is unknown.
bool read_option(std::string_view name, Json::Value value, bool translates, Sampling &sampling, Beam &beam) {
    struct Real {
        const char *name;
        bool translates;
        double &to;
    };
    struct Whole {
        const char *name;
        bool translates;
        std::int64_t &to;
    };
    const Real reals[] = {{"temperature", false, sampling.temperature}, {"top_p", false, sampling.top_p}, {"min_p", false, sampling.min_p},
                          {"repetition_penalty", translates, sampling.repetition_penalty}, {"length_penalty", true, beam.length_penalty}};
    const Whole wholes[] = {{"top_k", false, sampling.top_k}, {"no_repeat_ngram", translates, sampling.no_repeat_ngram},
                            {"width", true, beam.width}, {"max_tokens", true, beam.max_tokens}, {"min_tokens", true, beam.min_tokens}};
    if (value.is_integer()) require_option(value.integer() < most_whole, "a whole number below 2^31", value.real());
    for (const Real &real : reals)
        if (name == real.name && translates == real.translates) return real.to = value.real(), true;
    for (const Whole &whole : wholes)
        if (name == whole.name && translates == whole.translates) return whole.to = value.integer(), true;
    if (translates && name == "forced_end") return beam.forced_end = value.boolean(), true;
    if (!translates || name != "early_stopping") return false;
    if (!value.is(Json::Type::string)) return beam.early_stopping = value.boolean(), true;
    beam.early_stopping = 2;
    return value.string() == "never";
}

}  // namespace

void require_option(bool good, const char *expected, double received) {
    if (!good) fail(T2R_SAMPLING, expected, std::to_string(received), "choose another value");
}

void require_sampling(const Sampling &s) {
    require_option(std::isfinite(s.temperature) && s.temperature >= 0, "a temperature of 0 or more", s.temperature);
    require_option(s.top_k >= 0, "top_k of 0 (no limit) or more", static_cast<double>(s.top_k));
    require_option(s.top_p > 0 && s.top_p <= 1, "top_p above 0 and at most 1 (no limit)", s.top_p);
    require_option(s.min_p >= 0 && s.min_p <= 1, "min_p from 0 (no limit) to 1", s.min_p);
    require_penalties(s);
}

void require_beam(const Beam &beam) {
    const auto whole = [](std::int64_t value, std::int64_t least) { return value >= least && value < most_whole; };
    require_option(whole(beam.width, 1), "a width of at least 1", static_cast<double>(beam.width));
    require_option(whole(beam.n_best, 1), "n_best of at least 1", static_cast<double>(beam.n_best));
    require_option(whole(beam.min_tokens, 0), "min_tokens of at least 0", static_cast<double>(beam.min_tokens));
    require_option(whole(beam.max_tokens, 0), "max_tokens of at least 1", static_cast<double>(beam.max_tokens));
    require_option(beam.early_stopping >= 0 && beam.early_stopping <= 2, "early_stopping of 0, 1 or 2", beam.early_stopping);
    require_option(std::abs(beam.length_penalty) <= steepest, "a length_penalty from -10 to 10", beam.length_penalty);
    require_penalties(beam);
}

void read_generation(Json::Value options, bool translates, Sampling &sampling, Beam &beam) {
    options.each_pair([&](std::string_view name, Json::Value value) {
        if (!read_option(name, value, translates, sampling, beam)) throw JsonError{"an option that no graph has: " + printable(name, 40)};
        if (name == "max_tokens") require_option(beam.max_tokens >= 1, "max_tokens of at least 1", static_cast<double>(beam.max_tokens));
    });
    beam.repetition_penalty = sampling.repetition_penalty;
    beam.no_repeat_ngram = sampling.no_repeat_ngram;
    require_sampling(sampling);
    require_beam(beam);
}

}  // namespace t2r
