// The parts of a tokenizer.json, each created from its JSON. Parts that are not in the table of runtimes/contract/text.md are
// refused by name with the kind tokenizer. Each part behaves as in the tokenizers library (0.23).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json.hpp"

namespace t2r {

// Bounds of runtimes/contract/text.md.
constexpr std::size_t max_parts = 64;                   // of a normalizer, a decoder, ...
constexpr std::size_t max_text = std::size_t{1} << 26;  // bytes that a part writes in all
constexpr std::size_t max_tokenizer_bytes = std::size_t{1} << 25;
constexpr std::size_t max_work = 1 << 10, free_work = 1 << 24;  // per byte of a text; for a short text, whatever its length
constexpr std::int64_t max_ids = std::int64_t{1} << 24;

[[noreturn]] void refuse_part(const char *component, std::string_view name);
[[noreturn]] void refuse_tokenizer(std::string_view expected, std::string_view received);
// Checks the bytes that a part has written.
void require_text(std::size_t bytes);
// Refuses more than `most` of something.
void require_at_most(double most, double found, const char *of);
// The text of at most 256 bytes that a part searches for or inserts.
std::string inserted(Json::Value part, const char *name);
// The one character that a part searches for or inserts.
std::string one_character(Json::Value part, const char *name, const char *component);
// Call with the parts of a component and their types; a Sequence is replaced by the parts in its list.
void each_part(Json::Value component, const char *list, const std::function<void(std::string_view, Json::Value)> &call);
// The field's boolean, or `otherwise` if there is no such field.
bool flag(Json::Value part, const char *name, bool otherwise);

// The pattern of a Split or a Replace: a text, or a regular expression of the contract.
class Pattern {
public:
    explicit Pattern(Json::Value pattern, const char *component);
    Pattern(std::string_view regex, const char *component);
    // The factor by which a Replace with this content may grow a text. The pattern must not be empty.
    double growth(std::string_view content) const;
    // The next match from `at` on, not empty; begin is the text's size if there is none.
    std::pair<std::size_t, std::size_t> find(std::string_view text, std::size_t at) const;

private:
    struct Expression;
    std::string literal;
    std::shared_ptr<const Expression> expression;  // null: the literal
};

class Normalizer {
public:
    virtual ~Normalizer() = default;
    virtual std::string normalize(std::string text) const = 0;
    // The most bytes that `bytes` bytes can become.
    virtual double grown(double bytes) const { return bytes; }
};
// A null part does nothing. Several parts are applied in order.
std::unique_ptr<Normalizer> make_normalizer(Json::Value part);
std::unique_ptr<Normalizer> make_precompiled(std::string_view base64);
// NFD; NFKD with `compatibility`; NFC or NFKC with `compose`.
std::unique_ptr<Normalizer> make_normalization(bool compatibility, bool compose);

// A part of a text, valid only during `take`.
struct Piece {
    std::string_view text;
    bool first;  // whether it begins the whole text
};

class PieceSink {
public:
    virtual ~PieceSink() = default;
    virtual void take(Piece piece) = 0;
};

class PreTokenizer {
public:
    virtual ~PreTokenizer() = default;
    // Pass the parts of a piece to `next`, in order.
    virtual void cut(Piece piece, PieceSink &next) const = 0;
    virtual double grown(double bytes) const { return bytes; }
};
std::unique_ptr<PreTokenizer> make_pre_tokenizer(Json::Value part);

using Ids = std::vector<std::int64_t>;

// Ids of texts. It owns copies of the texts.
class Vocabulary {
public:
    // The last id of a duplicate text counts. Throws Error of the kind tokenizer for a duplicate id.
    void add(std::string_view text, std::int64_t id);
    std::int64_t find(std::string_view text) const;    // -1: none
    std::string_view text(std::int64_t id) const;      // empty: none
    std::size_t size() const { return ids.size(); }

private:
    std::vector<std::unique_ptr<char[]>> memory;
    char *next = nullptr;
    std::size_t left = 0;
    std::unordered_map<std::string_view, std::int64_t> ids;
    std::unordered_map<std::int64_t, std::string_view> texts;
};

class Model {
public:
    virtual ~Model() = default;
    virtual void encode(std::string_view piece, Ids &tokens) = 0;

    // The token of a piece, or of a run of unknown characters: that of its text in `surfaces`, or `id`.
    std::int64_t surface(std::string_view text, std::int64_t id) const {
        const auto found = surfaces.find(text);
        return found == surfaces.end() ? id : found->second;
    }

    Vocabulary vocabulary;
    std::map<std::string, std::int64_t, std::less<>> surfaces;
    std::size_t looks = 16;  // most look-ups per byte of a text: of a Unigram the bytes of its longest piece
};
std::unique_ptr<Model> make_model(Json::Value part);
std::unique_ptr<Model> make_bpe(Json::Value part);
std::unique_ptr<Model> make_unigram(Json::Value part);
// The tokens <0x00> to <0xFF> for byte fallback; -1 for a missing one.
std::vector<std::int64_t> byte_tokens(const Vocabulary &vocabulary);

// Receives the texts of tokens one by one.
class TextSink {
public:
    virtual ~TextSink() = default;
    virtual void take(std::string_view text) = 0;
    virtual void end() = 0;  // after the last one
};

class TokenDecoder {
public:
    virtual ~TokenDecoder() = default;
    // A sink for the tokens of one text, which passes its output to `next`. This and `next` must outlive it.
    virtual std::unique_ptr<TextSink> start(TextSink &next) const = 0;
    virtual double grown(double bytes) const { return bytes; }
};
std::unique_ptr<TokenDecoder> make_decoder(Json::Value part);

// The character that represents a byte in a ByteLevel vocabulary, and back: -1 if a character represents none.
const std::string &byte_character(unsigned char byte);
int character_byte(char32_t code);

}  // namespace t2r
