#include "added_tokens.hpp"

#include <algorithm>

#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::size_t max_added = 1 << 16;

bool ends_with_word(std::string_view text) {
    std::size_t at = text.size();
    while (at > 0 && (static_cast<unsigned char>(text[at - 1]) & 0xC0) == 0x80) at--;
    return at > 0 && has(decode_utf8(text, at - 1).code, is_word);
}

std::size_t leading_spaces(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size() && has(decode_utf8(text, at).code, is_space)) at += decode_utf8(text, at).size;
    return at;
}

std::size_t without_trailing_spaces(std::string_view text) {
    std::size_t end = 0;
    for (std::size_t at = 0; at < text.size();) {
        const Decoded character = decode_utf8(text, at);
        at += character.size;
        if (!has(character.code, is_space)) end = at;
    }
    return end;
}

}  // namespace

AddedTokens::AddedTokens(Json::Value list, const Vocabulary &vocabulary, const Normalizer &normalizer) {
    if (list.is_null()) return;
    if (list.size() > max_added) refuse_tokenizer("at most 65,536 added tokens", std::to_string(list.size()));
    std::int64_t next = vocabulary.largest() + 1;
    list.each([&](Json::Value entry) {
        const std::string content(entry.at("content").string());
        if (content.empty()) return;
        const std::int64_t known = vocabulary.find(content), id = entry.at("id").integer();
        if (id < 0 || id >= std::int64_t{1} << 24 || (known >= 0 && known != id))
            refuse_tokenizer("added tokens with the vocabulary's numbers", content + " as " + std::to_string(id));
        next = std::max(next, id + 1);
        const bool is_special = flag(entry, "special", false), is_normalized = flag(entry, "normalized", !is_special);
        if (is_special) special.insert(content);
        Token token{is_normalized ? normalizer.normalize(content) : content, id, flag(entry, "single_word", false),
                    flag(entry, "lstrip", false), flag(entry, "rstrip", false)};
        texts[id] = token.content;  // one that is normalized is written as it is found
        if (token.content.empty()) return;
        const char first = token.content[0];
        (is_normalized ? normal : plain)[first].push_back(std::move(token));
    });
    for (Group *group : {&plain, &normal})
        for (auto &[first, tokens] : *group)
            std::stable_sort(tokens.begin(), tokens.end(),
                             [](const Token &a, const Token &b) { return a.content.size() > b.content.size(); });
}

const std::string *AddedTokens::text(std::int64_t id) const {
    const auto found = texts.find(id);
    return found == texts.end() ? nullptr : &found->second;
}

const AddedTokens::Token *AddedTokens::find(const Group &group, std::string_view text, std::size_t at) const {
    const auto tokens = group.find(text[at]);
    if (tokens == group.end()) return nullptr;
    for (const Token &token : tokens->second)
        if (text.compare(at, token.content.size(), token.content) == 0) return &token;
    return nullptr;
}

std::vector<AddedTokens::Part> AddedTokens::cut(std::string_view text, bool normalized) const {
    const Group &group = normalized ? normal : plain;
    std::vector<Part> parts;
    std::size_t from = 0;  // behind the last token
    for (std::size_t at = 0; at < text.size();) {
        const Token *token = find(group, text, at);
        if (!token) {
            at++;
            continue;
        }
        std::size_t begin = at, end = at + token->content.size();
        at = end;
        const auto is_word_at = [&](std::size_t place) { return place < text.size() && has(decode_utf8(text, place).code, is_word); };
        if (token->single_word && (ends_with_word(text.substr(0, begin)) || is_word_at(end))) continue;
        if (token->lstrip) begin = std::max(without_trailing_spaces(text.substr(0, begin)), from);
        if (token->rstrip) end += leading_spaces(text.substr(end));
        if (begin < from) begin = from;
        if (from < begin) parts.push_back({-1, from, begin});
        parts.push_back({token->id, begin, end});
        from = end;
    }
    if (from < text.size()) parts.push_back({-1, from, text.size()});
    return parts;
}

}  // namespace t2r
