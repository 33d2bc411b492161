#include "tokenizer.hpp"

#include <algorithm>

#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::int64_t the_text = -1;
constexpr std::size_t max_templates = 1 << 12;

}  // namespace

Tokenizer::Tokenizer(std::string source, std::int64_t bos) : bos(bos) {
    try {
        const Json json(std::move(source));
        const Json::Value root = json.root();
        const auto part = [&](const char *name) {
            static const Json nothing("null");
            return root.find(name).value_or(nothing.root());
        };
        normalizer = make_normalizer(part("normalizer"));
        pre_tokenizer = make_pre_tokenizer(part("pre_tokenizer"));
        model = make_model(root.at("model"));
        decoder = make_decoder(part("decoder"));
        added = std::make_unique<AddedTokens>(part("added_tokens"), model->vocabulary, *normalizer);
        add_templates(part("post_processor"));
    } catch (const JsonError &error) {
        refuse_tokenizer("the text of a tokenizer.json", error.what);
    }
}

void Tokenizer::add_templates(Json::Value part) {
    if (part.is_null()) return;
    const std::string_view type = part.at("type").string();
    Ids made;
    if (type == "ByteLevel") return;
    if (templates.size() >= max_parts) refuse_tokenizer("at most 256 parts of a post-processor", "more");
    if (type == "Sequence") {
        part.at("processors").each([&](Json::Value inner) { add_templates(inner); });
        return;
    }
    if (type == "RobertaProcessing") {
        made = {part.at("cls").first().next().integer(), the_text, part.at("sep").first().next().integer()};
    } else if (type == "TemplateProcessing") {
        part.at("single").each([&](Json::Value piece) {
            if (piece.find("Sequence")) return made.push_back(the_text);
            const std::string_view name = piece.at("SpecialToken").at("id").string();
            part.at("special_tokens").at(name).at("ids").each([&](Json::Value id) { made.push_back(id.integer()); });
        });
    } else {
        refuse_part("post-processor", type);
    }
    const bool good = std::all_of(made.begin(), made.end(), [](std::int64_t id) { return id >= the_text && id < std::int64_t{1} << 24; });
    if (!good || made.size() > max_templates || std::count(made.begin(), made.end(), the_text) != 1)
        refuse_part("post-processor of another form:", type);
    templates.push_back(std::move(made));
}

void Tokenizer::encode_text(std::string_view text, bool first, Ids &tokens) {
    const std::string normal = normalizer->normalize(std::string(text));
    for (const AddedTokens::Part &part : added->cut(normal, true)) {
        if (part.id >= 0) {
            tokens.push_back(part.id);
            continue;
        }
        std::vector<Piece> pieces = {{normal.substr(part.begin, part.end - part.begin), first && part.begin == 0}};
        pre_tokenizer->cut(pieces);
        for (const Piece &piece : pieces)
            if (!piece.text.empty()) model->encode(piece.text, tokens);
    }
}

Ids Tokenizer::encode(std::string_view text, bool special) {
    if (!is_utf8(text)) refuse_tokenizer("text in UTF-8", "another");
    require_text(text.size());
    const std::lock_guard<std::mutex> lock(mutex);
    Ids tokens;
    for (const AddedTokens::Part &part : added->cut(text, false)) {
        if (part.id >= 0) tokens.push_back(part.id);
        else encode_text(text.substr(part.begin, part.end - part.begin), part.begin == 0, tokens);
    }
    for (const Ids &form : templates) {
        if (!special) break;
        Ids made;
        for (const std::int64_t id : form) {
            if (id == the_text) made.insert(made.end(), tokens.begin(), tokens.end());
            else made.push_back(id);
        }
        tokens.swap(made);
    }
    if (!tokens.empty()) return tokens;
    if (bos < 0) refuse_tokenizer("a text, as this model has no BOS token to start from", "an empty one");
    return {bos};
}

std::string Tokenizer::decode(const Ids &ids) {
    std::vector<std::string> tokens;
    for (const std::int64_t id : ids) {
        const std::string *name = added->text(id);
        const std::string_view text = name ? std::string_view(*name) : model->vocabulary.text(id);
        const bool known = name || model->vocabulary.find(text) == id;
        if (known && !added->is_special(text)) tokens.emplace_back(text);
    }
    decoder->decode(tokens);
    std::string text;
    for (const std::string &token : tokens) text += token;
    return text;
}

}  // namespace t2r
