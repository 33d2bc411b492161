#include "api.hpp"
#include "tokenizer.hpp"
#include "until.hpp"
#include "utf8.hpp"

namespace {

using namespace t2r;

// A tokenizer or a stream, and the data that its functions have returned.
struct OpenTokenizer {
    std::shared_ptr<Tokenizer> tokenizer;
    Ids tokens;
    std::string text;
};

struct OpenStream {
    TextStream stream;
    Until until;
    std::string text;
};

constexpr size_t most_stops = 256, longest_stop = 1024;

using Tokenizers = Handles<OpenTokenizer, t2r_tokenizer>;
using Streams = Handles<OpenStream, t2r_stream>;

Tokenizers &tokenizers() {
    static Tokenizers *const all = new Tokenizers("tokenizer");
    return *all;
}

Streams &streams() {
    static Streams *const all = new Streams("stream");
    return *all;
}

t2r_tokenizer *add(std::string json, std::int64_t bos) {
    auto made = std::make_unique<OpenTokenizer>();
    made->tokenizer = std::make_shared<Tokenizer>(std::move(json), bos);
    return tokenizers().add(std::move(made));
}

void open(t2r_decoder *decoder, bool of_source, t2r_tokenizer **tokenizer) {
    require(tokenizer, "where to put the tokenizer");
    *tokenizer = nullptr;
    const DecoderCall use(decoder);
    const Signature &signature = use->decoder.signature();
    if (of_source && !signature.source) fail(T2R_GRAPH, "a translator", "the graph of a decoder alone", "use t2r_open_tokenizer");
    const bool own = of_source && signature.source->tokenizer;
    const std::optional<std::string> &source = own ? signature.source->tokenizer : signature.tokenizer;
    if (!source) fail(T2R_TOKENIZER, "a graph with a tokenizer in it", "one without", "pass token numbers, or export with a tokenizer");
    *tokenizer = add(*source, own ? -1 : signature.bos_token);
}

void hand_out(const std::string &found, const char **text, size_t *size) {
    *text = found.c_str();
    if (size) *size = found.size();
}

}  // namespace

t2r_kind t2r_open_tokenizer(t2r_decoder *decoder, t2r_tokenizer **tokenizer) {
    return guarded([&] { open(decoder, false, tokenizer); });
}

t2r_kind t2r_open_source_tokenizer(t2r_decoder *decoder, t2r_tokenizer **tokenizer) {
    return guarded([&] { open(decoder, true, tokenizer); });
}

t2r_kind t2r_make_tokenizer(const char *json, size_t size, int64_t bos_token, t2r_tokenizer **tokenizer) {
    return guarded([&] {
        require(json, "the text of a tokenizer.json");
        require(tokenizer, "where to put the tokenizer");
        *tokenizer = nullptr;
        *tokenizer = add({json, size}, bos_token < 0 ? -1 : bos_token);
    });
}

t2r_kind t2r_close_tokenizer(t2r_tokenizer *tokenizer) {
    return guarded([&] { tokenizers().close(tokenizer); });
}

t2r_kind t2r_encode(t2r_tokenizer *tokenizer, const char *text, size_t size, int special, const int64_t **tokens, size_t *count) {
    return guarded([&] {
        const Tokenizers::Use use(tokenizers(), tokenizer);
        require_list(text, size, "a text");
        require(tokens, "where to put the tokens");
        require(count, "where to put the number of tokens");
        use->tokens = use->tokenizer->encode({text ? text : "", size}, special != 0);
        *tokens = use->tokens.data();
        *count = use->tokens.size();
    });
}

t2r_kind t2r_decode(t2r_tokenizer *tokenizer, const int64_t *tokens, size_t count, const char **text, size_t *size) {
    return guarded([&] {
        const Tokenizers::Use use(tokenizers(), tokenizer);
        require_list(tokens, count, "tokens");
        require(text, "where to put the text");
        use->text = use->tokenizer->decode(tokens, count);
        hand_out(use->text, text, size);
    });
}

t2r_kind t2r_open_stream(t2r_tokenizer *tokenizer, const int64_t *prompt, size_t count, t2r_stream **stream) {
    return guarded([&] {
        require(stream, "where to put the stream");
        require_list(prompt, count, "the tokens of a prompt");
        *stream = nullptr;
        const Tokenizers::Use use(tokenizers(), tokenizer);
        *stream = streams().add(std::make_unique<OpenStream>(OpenStream{TextStream(use->tokenizer, {prompt, prompt + count}), {}, ""}));
    });
}

t2r_kind t2r_feed(t2r_stream *stream, int64_t token, const char **text, size_t *size) {
    return guarded([&] {
        const Streams::Use use(streams(), stream);
        require(text, "where to put the text");
        TextStream next = use->stream;  // a failure leaves the stream unchanged, and the token can be fed again
        use->text = use->until.feed(next.feed(token));
        use->stream = std::move(next);
        hand_out(use->text, text, size);
    });
}

t2r_kind t2r_stop_at(t2r_stream *stream, const char *const *texts, size_t count) {
    return guarded([&] {
        const Streams::Use use(streams(), stream);
        require_list(texts, count, "stop texts");
        if (count > most_stops) fail(T2R_ARGUMENT, "at most " + std::to_string(most_stops) + " stop texts", std::to_string(count), "pass fewer");
        std::vector<std::string> stops;
        for (size_t i = 0; i < count; i++) {
            require(texts[i], "a stop text");
            stops.emplace_back(texts[i]);
            const size_t bytes = stops.back().size();
            if (bytes == 0 || bytes > longest_stop)
                fail(T2R_ARGUMENT, "stop texts of 1 to " + std::to_string(longest_stop) + " bytes", std::to_string(bytes), "pass another");
            if (!is_utf8(stops.back())) fail(T2R_TOKENIZER, "stop texts in UTF-8", printable(stops.back(), 40), "convert them");
        }
        Until next(stops);
        next.take_from(use->until);
        use->until = std::move(next);
    });
}

t2r_kind t2r_stopped(t2r_stream *stream, int *stopped) {
    return guarded([&] {
        const Streams::Use use(streams(), stream);
        require(stopped, "where to put whether it has stopped");
        *stopped = use->until.found();
    });
}

t2r_kind t2r_end_stream(t2r_stream *stream, const char **text, size_t *size) {
    return guarded([&] {
        const Streams::Use use(streams(), stream);
        require(text, "where to put the text");
        TextStream next = use->stream;
        Until until = use->until;
        use->text = until.feed(next.end());
        use->text += until.end();
        use->stream = std::move(next);
        use->until = std::move(until);
        hand_out(use->text, text, size);
    });
}

t2r_kind t2r_close_stream(t2r_stream *stream) {
    return guarded([&] { streams().close(stream); });
}
