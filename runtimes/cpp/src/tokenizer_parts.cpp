#include "tokenizer_parts.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "error.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::size_t block = 1 << 16;

struct ByteCharacters {
    std::array<std::string, 256> of;
    std::unordered_map<char32_t, int> back;

    // Printable Latin-1 characters represent themselves; the other bytes are represented by U+0100 and up.
    ByteCharacters() {
        char32_t next = 256;
        for (int byte = 0; byte < 256; byte++) {
            const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
            const char32_t code = itself ? static_cast<char32_t>(byte) : next++;
            append_utf8(of[static_cast<std::size_t>(byte)], code);
            back[code] = byte;
        }
    }
};

const ByteCharacters &byte_characters() {
    static const ByteCharacters all;
    return all;
}

}  // namespace

void refuse_tokenizer(std::string_view expected, std::string_view received) {
    fail(T2R_TOKENIZER, expected, printable(received), "use the tokenizer that the model was trained with, or pass token numbers");
}

void refuse_part(const char *component, std::string_view name) {
    refuse_tokenizer("a tokenizer of parts that are known here", "the " + std::string(component) + " " + printable(name, 100));
}

void require_text(std::size_t bytes) {
    if (bytes > max_text) refuse_tokenizer("at most 64 MiB of text from a part of a tokenizer", "more");
}

void require_at_most(double most, double found, const char *of) {
    const auto whole = [](double number) { return std::to_string(static_cast<std::int64_t>(std::min(number, 1e15))); };
    if (found > most) refuse_tokenizer("at most " + whole(most) + " " + of, whole(found));
}

std::string inserted(Json::Value part, const char *name) {
    const std::string_view text = part.at(name).string();
    require_at_most(256, static_cast<double>(text.size()), "bytes that a part looks for or inserts");
    return std::string(text);
}

std::string one_character(Json::Value part, const char *name, const char *component) {
    const std::string text = inserted(part, name);
    if (text.empty() || decode_utf8(text, 0).size != text.size()) refuse_part(component, text);
    return text;
}

void each_part(Json::Value component, const char *list, const std::function<void(std::string_view, Json::Value)> &call) {
    std::size_t count = 0;
    const std::function<void(Json::Value)> add = [&](Json::Value part) {
        require_at_most(max_parts, static_cast<double>(++count), "parts of a component");
        const std::string_view type = part.at("type").string();
        if (type == "Sequence") part.at(list).each(add);
        else call(type, part);
    };
    if (!component.is_null()) add(component);
}

bool flag(Json::Value part, const char *name, bool otherwise) {
    const auto found = part.find(name);
    return found && !found->is_null() ? found->boolean() : otherwise;
}

void Vocabulary::add(std::string_view text, std::int64_t id) {
    if (id < 0 || id >= max_ids) refuse_tokenizer("tokens in 0 … 16,777,215", std::to_string(id));
    if (text.size() > left) {
        left = std::max(block, text.size());
        memory.push_back(std::make_unique<char[]>(left));
        next = memory.back().get();
    }
    if (!text.empty()) std::memcpy(next, text.data(), text.size());
    const std::string_view kept(next, text.size());
    next += text.size();
    left -= text.size();
    const auto [place, is_new] = texts.emplace(id, kept);
    if (!is_new && place->second != text) refuse_tokenizer("tokens with different numbers", std::to_string(id) + " for two");
    ids[kept] = id;
}

std::int64_t Vocabulary::find(std::string_view text) const {
    const auto found = ids.find(text);
    return found == ids.end() ? -1 : found->second;
}

std::string_view Vocabulary::text(std::int64_t id) const {
    const auto found = texts.find(id);
    return found == texts.end() ? std::string_view() : found->second;
}

std::vector<std::int64_t> byte_tokens(const Vocabulary &vocabulary) {
    static const char digits[] = "0123456789ABCDEF";
    std::vector<std::int64_t> tokens;
    for (int byte = 0; byte < 256; byte++) tokens.push_back(vocabulary.find({std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">"}));
    return tokens;
}

std::unique_ptr<Model> make_model(Json::Value part) {
    const auto type = part.find("type");
    const std::string_view name = type ? type->string() : part.find("merges") ? "BPE" : "";
    if (name != "BPE" && name != "Unigram") refuse_part("model", name.empty() ? "without a type" : name);
    std::unique_ptr<Model> model = name == "BPE" ? make_bpe(part) : make_unigram(part);
    if (const auto surfaces = part.find("surfaces"); surfaces && !surfaces->is_null()) {
        const Json::Value vocabulary = part.at("vocab");
        const std::size_t pieces = vocabulary.is(Json::Type::array) ? vocabulary.size() : model->vocabulary.size();
        surfaces->each_pair([&](std::string_view text, Json::Value id) {
            if (id.integer() < 0 || id.integer() >= static_cast<std::int64_t>(pieces)) refuse_tokenizer("surfaces that are tokens", text);
            model->surfaces[std::string(text)] = id.integer();
        });
    }
    return model;
}

const std::string &byte_character(unsigned char byte) { return byte_characters().of[byte]; }

int character_byte(char32_t code) {
    const auto found = byte_characters().back.find(code);
    return found == byte_characters().back.end() ? -1 : found->second;
}

}  // namespace t2r
