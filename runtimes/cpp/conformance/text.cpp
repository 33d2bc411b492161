// Encoding and decoding, of whole texts and of streams.
#include "case.hpp"

namespace conformance {

using t2r::Json;

namespace {

struct Tokenizer {
    explicit Tokenizer(t2r_decoder *decoder) { ok(t2r_open_tokenizer(decoder, &handle)); }
    ~Tokenizer() { t2r_close_tokenizer(handle); }
    Tokenizer(const Tokenizer &) = delete;
    Tokenizer &operator=(const Tokenizer &) = delete;

    t2r_tokenizer *handle = nullptr;
};

void compare(t2r_tokenizer *tokenizer, Json::Value golden) {
    const Json::Value source = golden.first(), tokens = source.next(), decoded = tokens.next();
    const std::string text(source.string());
    const std::vector<std::int64_t> wanted = integers(tokens);
    const std::int64_t *ids;
    const char *written;
    std::size_t count, size;
    ok(t2r_encode(tokenizer, text.data(), text.size(), 1, &ids, &count));
    require(std::vector<std::int64_t>(ids, ids + count) == wanted, "other tokens of " + t2r::json_string(text));
    ok(t2r_decode(tokenizer, wanted.data(), wanted.size(), &written, &size));
    require(std::string_view(written, size) == decoded.string(), "another text of the tokens of " + t2r::json_string(text));
}

void stream(t2r_tokenizer *tokenizer, Json::Value golden) {
    const std::vector<std::int64_t> prompt = integers(golden.at("prompt")), tokens = integers(golden.at("tokens"));
    t2r_stream *handle;
    ok(t2r_open_stream(tokenizer, prompt.data(), prompt.size(), &handle));
    const std::unique_ptr<t2r_stream, t2r_kind (*)(t2r_stream *)> closed(handle, t2r_close_stream);
    const char *piece;
    std::size_t size, at = 0;
    golden.at("pieces").each([&](Json::Value wanted) {
        ok(t2r_feed(handle, tokens.at(at), &piece, &size));
        require(std::string_view(piece, size) == wanted.string(), "another piece " + std::to_string(at) + ": " +
                                                                     t2r::json_string({piece, size}) + " for " + t2r::json_string(wanted.string()));
        at++;
    });
    ok(t2r_end_stream(handle, &piece, &size));
    require(at == tokens.size() && std::string_view(piece, size) == golden.at("end").string(), "another end");
}

}  // namespace

void run_tokenizer(const std::string &folder, Json::Value golden) {
    const Decoder decoder(folder + "/" + std::string(golden.at("graph").string()));
    const Tokenizer tokenizer(decoder);
    golden.at("texts").each([&](Json::Value text) { compare(tokenizer.handle, text); });
}

void run_stream(const std::string &folder, Json::Value golden) {
    const Decoder decoder(folder + "/" + std::string(golden.at("graph").string()));
    const Tokenizer tokenizer(decoder);
    golden.at("texts").each([&](Json::Value text) { stream(tokenizer.handle, text); });
}

}  // namespace conformance
