#include "added_tokens.hpp"

#include <algorithm>

#include "error.hpp"
#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr double max_added = 1 << 16, max_content = 1 << 10;

// The beginning of the UTF-8 character before `at`.
std::size_t character_before(std::string_view text, std::size_t at) {
    do at--;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    return at;
}

bool is_at(std::string_view text, std::size_t at, int flag) { return at < text.size() && has(decode_utf8(text, at).code, flag); }

bool is_word_before(std::string_view text, std::size_t at) { return at > 0 && is_at(text, character_before(text, at), is_word); }

// The beginning of the spaces that end at `at`, not before `from`.
std::size_t spaces_before(std::string_view text, std::size_t at, std::size_t from) {
    while (at > from && is_at(text, character_before(text, at), is_space)) at = character_before(text, at);
    return std::max(at, from);
}

std::size_t spaces_behind(std::string_view text, std::size_t at) {
    while (is_at(text, at, is_space)) at += decode_utf8(text, at).size;
    return at;
}

}  // namespace

AddedTokens::AddedTokens(Json::Value list, const Vocabulary &vocabulary, std::size_t pieces, const Normalizer &normalizer) {
    if (list.is_null()) return;
    require_at_most(max_added, static_cast<double>(list.size()), "added tokens");
    double bytes = 0;
    std::unordered_map<std::string_view, std::int64_t> others;  // tokens outside the vocabulary
    list.each([&](Json::Value entry) {
        const std::string_view content = entry.at("content").string();
        const std::int64_t id = entry.at("id").integer();
        if (content.empty()) return;
        require_at_most(max_content, static_cast<double>(content.size()), "bytes of an added token");
        std::int64_t expected = vocabulary.find(content);
        if (expected < 0) {
            expected = others.emplace(content, static_cast<std::int64_t>(pieces + others.size())).first->second;
            if (expected >= max_ids || vocabulary.find(vocabulary.text(expected)) == expected)
                refuse_tokenizer("tokens with different numbers below 16,777,216", std::to_string(expected));
        }
        if (id != expected)
            refuse_tokenizer(std::to_string(expected) + " as the id of the added token " + printable(content, 40), std::to_string(id));
        const bool is_special = flag(entry, "special", false), is_normalized = flag(entry, "normalized", !is_special);
        bytes += is_normalized ? normalizer.grown(static_cast<double>(content.size())) : static_cast<double>(content.size());
        require_at_most(TextSearch::most, bytes, "bytes of all added tokens, normalized");
        if (is_special) special.insert(id);
        const std::string found = is_normalized ? normalizer.normalize(std::string(content)) : std::string(content);
        require_at_most(max_content, static_cast<double>(found.size()), "bytes of an added token, normalized");
        texts[id] = found;  // a normalized token decodes to its normalized text
        if (found.empty()) return;
        (is_normalized ? normal : plain).add(found, static_cast<std::uint32_t>(tokens.size()));
        tokens.push_back({id, static_cast<std::uint32_t>(found.size()), flag(entry, "single_word", false),
                          flag(entry, "lstrip", false), flag(entry, "rstrip", false)});
    });
    plain.finish();
    normal.finish();
}

const std::string *AddedTokens::text(std::int64_t id) const {
    const auto found = texts.find(id);
    return found == texts.end() ? nullptr : &found->second;
}

void AddedTokens::cut(std::string_view text, bool normalized, const std::function<void(const Part &)> &call) const {
    TextSearch::Scan scan(normalized ? normal : plain, text);
    std::size_t from = 0, spaces_end = 0;  // ends of the last token, and of the last spaces that a token stripped
    for (auto match = scan.next(0); match.number != TextSearch::none;) {
        const Token &token = tokens[match.number];
        std::size_t begin = match.begin, end = begin + token.size;
        match = scan.next(end);
        if (token.single_word && (is_word_before(text, begin) || is_at(text, end, is_word))) continue;
        if (token.lstrip) begin = spaces_before(text, begin, from);
        if (token.rstrip) end = spaces_end = end < spaces_end ? spaces_end : spaces_behind(text, end);
        begin = std::max(begin, from);
        if (from < begin) call({-1, from, begin});
        call({token.id, begin, end});
        from = end;
    }
    if (from < text.size()) call({-1, from, text.size()});
}

}  // namespace t2r
