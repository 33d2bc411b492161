// A tokenizer.json: text to tokens and back, as the tokenizers library does it, and text as tokens come.
#pragma once

#include <mutex>

#include "added_tokens.hpp"

namespace t2r {

class Tokenizer {
public:
    // bos: what an empty text becomes, or -1. Throws Error of the kind tokenizer.
    Tokenizer(std::string json, std::int64_t bos);

    // Throws Error of the kind tokenizer: text that is no UTF-8, or an empty one without a BOS token.
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
    std::mutex mutex;  // of the model's memory: a tokenizer may be shared by streams
};

// The text of the tokens that follow a prompt, never with half a character in it: runtimes/contract/text.md.
class TextStream {
public:
    TextStream(std::shared_ptr<Tokenizer> tokenizer, const Ids &prompt);
    std::string feed(std::int64_t token);
    std::string end();

private:
    void start_from(Ids tokens);
    std::string pending_text();

    std::shared_ptr<Tokenizer> tokenizer;
    Ids context, pending;    // what is out, and what is perhaps not
    std::string before;      // the text of the context
    std::size_t given = 0;   // bytes of the pending tokens' text that are out
};

}  // namespace t2r
