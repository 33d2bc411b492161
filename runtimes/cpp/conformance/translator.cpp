// Translators: the encoder's states, and translations.
#include <algorithm>

#include "case.hpp"

namespace conformance {

using t2r::Json;

t2r_beam beam_of(t2r_decoder *decoder, Json::Value options) {
    t2r_beam beam;
    ok(t2r_beam_defaults(decoder, &beam, sizeof beam));
    options.each_pair([&](std::string_view name, Json::Value value) {
        if (name == "width") beam.width = value.integer();
        else if (name == "max_tokens") beam.max_tokens = value.integer();
        else if (name == "min_tokens") beam.min_tokens = value.integer();
        else if (name == "early_stopping") beam.early_stopping = value.is(Json::Type::string) ? 2 : value.boolean();
        else if (name == "forced_end") beam.forced_end = value.boolean();
        else if (name == "copy") beam.copy = value.boolean();
        else if (name == "n_best") beam.n_best = value.integer();
        else if (name == "length_penalty") beam.length_penalty = value.real();
        else if (name == "repetition_penalty") beam.repetition_penalty = value.real();
        else if (name == "no_repeat_ngram") beam.no_repeat_ngram = value.integer();
        else throw Failed{"an option that is not known here: " + std::string(name)};
    });
    return beam;
}

namespace {

void encode(t2r_decoder *decoder, Json::Value golden) {
    std::vector<std::vector<std::int64_t>> sources;
    golden.at("sources").each([&](Json::Value source) { sources.push_back(integers(source)); });
    std::vector<std::int64_t> lengths, tokens;
    std::size_t longest = 0;
    for (const auto &source : sources) longest = std::max(longest, source.size());
    for (auto &source : sources) {
        lengths.push_back(static_cast<std::int64_t>(source.size()));
        source.resize(longest, 0);
        tokens.insert(tokens.end(), source.begin(), source.end());
    }
    ok(t2r_encode_sources(decoder, tokens.data(), lengths.data(), lengths.size(), longest));
    t2r_info info;
    ok(t2r_get_info(decoder, &info, sizeof info));
    std::size_t compared = 0;
    for (std::size_t i = 0; i < info.states; i++) {
        t2r_tensor state;
        ok(t2r_state(decoder, i, &state));
        const auto wanted = golden.at("states").find(state.name);
        if (!wanted) continue;
        compare_state(state, Array(*wanted), golden.at("tolerance").at("state_relative_to_its_largest").real());
        compared++;
    }
    require(compared == golden.at("states").size(), "states that the graph has not");
}

void translate(t2r_decoder *decoder, Json::Value golden) {
    const std::vector<std::int64_t> source = integers(golden.at("source"));
    const t2r_beam beam = beam_of(decoder, golden.at("beam"));
    std::size_t found, index = 0;
    ok(t2r_translate(decoder, source.data(), source.size(), &beam, &found));
    require(found == golden.at("translations").size(), "another number of translations");
    golden.at("translations").each([&](Json::Value wanted) {
        const std::int64_t *tokens;
        std::size_t count;
        double score;
        ok(t2r_translation(decoder, index++, &tokens, &count, &score));
        require(std::vector<std::int64_t>(tokens, tokens + count) == integers(wanted.at("tokens")), "another translation");
        require(std::abs(score - wanted.at("score").real()) <= 1e-4, "another score");
    });
}

}  // namespace

void run_translator(const std::string &folder, Json::Value golden) {
    const std::string path = folder + "/" + std::string(golden.at("graph").string());
    const Decoder decoder(path, true);
    encode(decoder, golden);
    golden.at("searches").each([&](Json::Value search) { translate(decoder, search); });
}

}  // namespace conformance
