#include "added_tokens.hpp"

#include <algorithm>

#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::size_t max_added = 1 << 16;

// Where the character before `at` begins, in UTF-8.
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

AddedTokens::AddedTokens(Json::Value list, const Vocabulary &vocabulary, const Normalizer &normalizer) {
    if (list.is_null()) return;
    if (list.size() > max_added) refuse_tokenizer("at most 65,536 added tokens", std::to_string(list.size()));
    std::size_t bytes = 0;
    list.each([&](Json::Value entry) {
        const std::string content(entry.at("content").string());
        if (content.empty()) return;
        const std::int64_t known = vocabulary.find(content), id = entry.at("id").integer();
        if (id < 0 || id >= std::int64_t{1} << 24 || (known >= 0 && known != id))
            refuse_tokenizer("added tokens with the vocabulary's numbers", content + " as " + std::to_string(id));
        const bool is_special = flag(entry, "special", false), is_normalized = flag(entry, "normalized", !is_special);
        if (is_special) special.insert(content);
        const std::string found = is_normalized ? normalizer.normalize(content) : content;
        texts[id] = found;  // one that is normalized is written as it is found
        if (found.empty()) return;
        if ((bytes += found.size()) > TextSearch::most) refuse_tokenizer("added tokens of at most 4 MiB together", "more");
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
    std::size_t from = 0, spaces_end = 0;  // behind the last token, and behind the last spaces that a token took
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
