// The tokens that are found before a text is cut: in the text as it is, or as it is normalized.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "text_search.hpp"
#include "tokenizer_parts.hpp"

namespace t2r {

class AddedTokens {
public:
    // Those that the model's vocabulary has keep its numbers, others come behind all of its `pieces`.
    AddedTokens(Json::Value list, const Vocabulary &vocabulary, std::size_t pieces, const Normalizer &normalizer);

    struct Part {
        std::int64_t id;  // -1: a text
        std::size_t begin, end;
    };
    // Hand out the text in parts, cut at the tokens that are looked for in it.
    void cut(std::string_view text, bool normalized, const std::function<void(const Part &)> &call) const;

    bool is_special(std::string_view text) const { return special.count(text) > 0; }
    const std::string *text(std::int64_t id) const;

private:
    struct Token {
        std::int64_t id;
        std::uint32_t size;
        bool single_word, lstrip, rstrip;
    };

    std::vector<Token> tokens;
    TextSearch plain, normal;  // of places among the tokens
    std::map<std::int64_t, std::string> texts;
    std::set<std::string, std::less<>> special;
};

}  // namespace t2r
