// The parts of a tokenizer.json, each made of its JSON. What is not in the table of runtimes/contract/text.md, and in
// ours, is refused by name with the kind tokenizer. What each does is what the tokenizers library (0.23) does.
#pragma once

#include <cstdint>
#include <functional>
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
constexpr std::size_t max_text = std::size_t{1} << 26;  // bytes, of all that a part writes
constexpr std::size_t max_tokenizer_bytes = std::size_t{1} << 24;
constexpr std::size_t max_work = 1 << 10, free_work = 1 << 24;  // for a byte of a text; for a short one, whatever its length
constexpr std::int64_t max_ids = std::int64_t{1} << 24;

[[noreturn]] void refuse_part(const char *component, std::string_view name);
[[noreturn]] void refuse_tokenizer(std::string_view expected, std::string_view received);
// Of what a part has written.
void require_text(std::size_t bytes);
// At most so many of something.
void require_at_most(double most, double found, const char *of);
// The text of at most 256 bytes that a part looks for or inserts.
std::string inserted(Json::Value part, const char *name);
// The one character that a part looks for or inserts.
std::string one_character(Json::Value part, const char *name, const char *component);
// The parts of a component, with their types: what lies in a Sequence's list takes the place of the Sequence.
void each_part(Json::Value component, const char *list, const std::function<void(std::string_view, Json::Value)> &call);
// The field's boolean, or what it is where it is not there.
bool flag(Json::Value part, const char *name, bool otherwise);

// What a Split or a Replace looks for: a text, or one of the regular expressions of the contract.
class Pattern {
public:
    explicit Pattern(Json::Value pattern, const char *component);
    // Of a Replace, which must look for something: as a Replace with this content grows a text.
    double growth(std::string_view content) const;
    // The next match at or behind `at`, and not empty; begin is the text's size if there is none.
    std::pair<std::size_t, std::size_t> find(std::string_view text, std::size_t at) const;

private:
    std::string literal;
    std::size_t (*match)(std::string_view text, std::size_t at) = nullptr;  // the end of a match at `at`, or `at`
};

// The end of GPT-2's pattern at a place in the text: it always matches something.
std::size_t match_gpt2(std::string_view text, std::size_t at);

class Normalizer {
public:
    virtual ~Normalizer() = default;
    virtual std::string normalize(std::string text) const = 0;
    // What so many bytes become at most.
    virtual double grown(double bytes) const { return bytes; }
};
// Of null too: nothing is done. What several parts do, one does after the other.
std::unique_ptr<Normalizer> make_normalizer(Json::Value part);
std::unique_ptr<Normalizer> make_precompiled(std::string_view base64);
// NFD; NFKD with `compatibility`; NFC or NFKC with `compose`.
std::unique_ptr<Normalizer> make_normalization(bool compatibility, bool compose);

// A part of a text, which whoever takes it must copy or be done with.
struct Piece {
    std::string_view text;
    bool first;  // it begins where the whole text does
};

class PieceSink {
public:
    virtual ~PieceSink() = default;
    virtual void take(Piece piece) = 0;
};

class PreTokenizer {
public:
    virtual ~PreTokenizer() = default;
    // Hand out what becomes of a piece, in order.
    virtual void cut(Piece piece, PieceSink &next) const = 0;
    virtual double grown(double bytes) const { return bytes; }
};
std::unique_ptr<PreTokenizer> make_pre_tokenizer(Json::Value part);

using Ids = std::vector<std::int64_t>;

// Numbers of texts, which it keeps.
class Vocabulary {
public:
    // Of a text that is there already, the last number counts. Throws Error of the kind tokenizer: a number twice.
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

    Vocabulary vocabulary;
    std::size_t looks = 16;  // at each byte that reaches it, at most: of a Unigram the bytes of its longest piece
};
std::unique_ptr<Model> make_model(Json::Value part);
std::unique_ptr<Model> make_bpe(Json::Value part);
std::unique_ptr<Model> make_unigram(Json::Value part);
// The tokens <0x00> to <0xFF>, or -1, where a model may fall back on them.
std::vector<std::int64_t> byte_tokens(const Vocabulary &vocabulary);

// Takes the texts of tokens one by one.
class TextSink {
public:
    virtual ~TextSink() = default;
    virtual void take(std::string_view text) = 0;
    virtual void end() = 0;  // there are no more
};

class TokenDecoder {
public:
    virtual ~TokenDecoder() = default;
    // What makes of the tokens of one text what `next` takes, and must outlive it.
    virtual std::unique_ptr<TextSink> start(TextSink &next) const = 0;
    virtual double grown(double bytes) const { return bytes; }
};
std::unique_ptr<TokenDecoder> make_decoder(Json::Value part);

// What stands in the place of each byte in a vocabulary of ByteLevel, and back: -1 of what stands for none.
const std::string &byte_character(unsigned char byte);
int character_byte(char32_t code);

}  // namespace t2r
