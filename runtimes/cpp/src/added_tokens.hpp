// Added tokens, which are found before pre-tokenization: in the raw or in the normalized text.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "text_search.hpp"
#include "tokenizer_parts.hpp"

namespace t2r {

class AddedTokens {
public:
    // Tokens in the model's vocabulary keep their ids; others get the ids after all of its `pieces`.
    AddedTokens(Json::Value list, const Vocabulary &vocabulary, std::size_t pieces, const Normalizer &normalizer);

    struct Part {
        std::int64_t id;  // -1: text
        std::size_t begin, end;
    };
    // Call with the parts of the text, cut at the added tokens in it.
    void cut(std::string_view text, bool normalized, const std::function<void(const Part &)> &call) const;

    bool is_special(std::int64_t id) const { return special.count(id) > 0; }
    const std::string *text(std::int64_t id) const;

private:
    struct Token {
        std::int64_t id;
        std::uint32_t size;
        bool single_word, lstrip, rstrip;
    };

    std::vector<Token> tokens;
    TextSearch plain, normal;  // numbers are indices of `tokens`
    std::map<std::int64_t, std::string> texts;
    std::set<std::int64_t> special;
};

}  // namespace t2r
