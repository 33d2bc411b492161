// A tokenizer.json: encoding and decoding as in the tokenizers library, and streaming.
#pragma once

#include <mutex>

#include "added_tokens.hpp"

namespace t2r {

class Tokenizer {
public:
    // bos: the token of an empty text, or -1. Throws Error of the kind tokenizer.
    Tokenizer(std::string json, std::int64_t bos);

    // Throws Error of the kind tokenizer if the text is not UTF-8, or is empty and there is no BOS token.
    Ids encode(std::string_view text, bool special);
    std::string decode(const std::int64_t *tokens, std::size_t count) const;
    std::string decode(const Ids &tokens) const { return decode(tokens.data(), tokens.size()); }

private:
    void encode_text(std::string_view text, bool first, PieceSink &encoding, Ids &tokens);
    void add_templates(Json::Value component);

    std::unique_ptr<Normalizer> normalizer;
    std::unique_ptr<PreTokenizer> pre_tokenizer;
    std::unique_ptr<Model> model;
    std::unique_ptr<TokenDecoder> decoder;
    std::unique_ptr<AddedTokens> added;
    Ids before, behind;  // the special tokens around a text
    std::int64_t bos;
    std::mutex mutex;  // guards the model's buffers: streams may share a tokenizer
};

// The text of the tokens that follow a prompt, without partial characters: runtimes/contract/text.md.
class TextStream {
public:
    TextStream(std::shared_ptr<Tokenizer> tokenizer, const Ids &prompt);
    std::string feed(std::int64_t token);
    std::string end();

private:
    void start_from(Ids tokens);
    void shorten(std::string_view held);
    std::string pending_text();

    std::shared_ptr<Tokenizer> tokenizer;
    Ids context, pending;    // tokens whose text was returned, and tokens whose text may not all be
    std::string before;      // the text of the context
    std::size_t given = 0;   // bytes of the pending tokens' text that were returned
};

}  // namespace t2r
