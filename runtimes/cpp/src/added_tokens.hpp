// The tokens that are found before a text is cut: in the text as it is, or as it is normalized.
#pragma once

#include <map>
#include <set>

#include "tokenizer_parts.hpp"

namespace t2r {

class AddedTokens {
public:
    // Those that the model's vocabulary has keep its numbers.
    AddedTokens(Json::Value list, const Vocabulary &vocabulary, const Normalizer &normalizer);

    struct Part {
        std::int64_t id;  // -1: a text
        std::size_t begin, end;
    };
    // The text, cut at the tokens that are looked for in it.
    std::vector<Part> cut(std::string_view text, bool normalized) const;

    bool is_special(std::string_view text) const { return special.count(std::string(text)) > 0; }
    const std::string *text(std::int64_t id) const;

private:
    struct Token {
        std::string content;  // to be found
        std::int64_t id;
        bool single_word, lstrip, rstrip;
    };
    // Of one kind: by their first byte, the longest first.
    using Group = std::map<char, std::vector<Token>>;

    const Token *find(const Group &group, std::string_view text, std::size_t at) const;

    Group plain, normal;
    std::map<std::int64_t, std::string> texts;
    std::set<std::string> special;
};

}  // namespace t2r
