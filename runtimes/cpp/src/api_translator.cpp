#include "api.hpp"

namespace {

using namespace t2r;

t2r_beam beam_of(const Beam &b) {  // without max_tokens: the graph's is lowered to its positions, a caller's is not
    return {sizeof(t2r_beam), b.width, 0, b.min_tokens, b.early_stopping, b.forced_end, b.n_best, b.length_penalty, b.repetition_penalty, b.no_repeat_ngram, b.copy};
}

Beam beam_of(const t2r_beam &given) {
    Beam beam;
    beam.width = given.width;
    beam.max_tokens = given.max_tokens;
    beam.min_tokens = given.min_tokens;
    beam.early_stopping = given.early_stopping;
    beam.forced_end = given.forced_end != 0;
    beam.n_best = given.n_best;
    beam.length_penalty = given.length_penalty;
    beam.repetition_penalty = given.repetition_penalty;
    beam.no_repeat_ngram = given.no_repeat_ngram;
    beam.copy = given.copy != 0;
    return beam;
}

}  // namespace

t2r_kind t2r_beam_defaults(t2r_decoder *decoder, t2r_beam *beam, size_t size) {
    return guarded([&] {
        if (!decoder) return hand_out_options(beam_of(Beam()), beam, size);
        const DecoderCall use(decoder);
        hand_out_options(beam_of(use->decoder.signature().beam), beam, size);
    });
}

t2r_kind t2r_encode_sources(t2r_decoder *decoder, const int64_t *tokens, const int64_t *lengths, size_t count, size_t longest) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(lengths, count, "the lengths of the sources");
        if (longest > 0) require_list(tokens, count, "the tokens of the sources");
        std::vector<std::vector<std::int64_t>> sources;
        for (size_t row = 0; row < count; row++) {
            if (lengths[row] < 0 || static_cast<size_t>(lengths[row]) > longest)
                fail(T2R_ARGUMENT, "lengths in 0 … " + std::to_string(longest) + ", their rows", number(lengths[row]), "pass the length of the longest");
            sources.emplace_back(tokens + row * longest, tokens + row * longest + lengths[row]);
        }
        encode_sources(use->decoder, sources);
    });
}

t2r_kind t2r_translate(t2r_decoder *decoder, const int64_t *source, size_t length, const t2r_beam *beam, size_t *found) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(source, length, "a source");
        require(found, "where to put the number of translations");
        const t2r_beam given = over(beam_of(use->decoder.signature().beam), beam);
        use->translations = translate(use->decoder, {source, source + length}, beam_of(given));
        *found = use->translations.size();
    });
}

t2r_kind t2r_translation(t2r_decoder *decoder, size_t index, const int64_t **tokens, size_t *count, double *score) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_index(index, use->translations.size(), "translation");
        require(tokens, "where to put the tokens");
        require(count, "where to put the number of tokens");
        *tokens = use->translations[index].tokens.data();
        *count = use->translations[index].tokens.size();
        if (score) *score = use->translations[index].score;
    });
}
