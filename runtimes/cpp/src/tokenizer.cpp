#include "tokenizer.hpp"

#include <algorithm>
#include <functional>

#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::int64_t the_text = -1;
constexpr std::size_t max_template = 1 << 12, max_templates = 1 << 8;

// The pieces of a text to the model.
class Encoding : public PieceSink {
public:
    Encoding(Model &model, Ids &tokens) : model(model), tokens(tokens) {}
    void take(Piece piece) override {
        if (!piece.text.empty()) model.encode(piece.text, tokens);
    }

private:
    Model &model;
    Ids &tokens;
};

// The texts of tokens in a row.
class Joined : public TextSink {
public:
    void take(std::string_view piece) override { text += piece; }
    void end() override {}

    std::string text;
};

Ids roberta(Json::Value part) {
    return {part.at("cls").first().next().integer(), the_text, part.at("sep").first().next().integer()};
}

Ids single(Json::Value part) {
    Ids made;
    const auto bounded = [&](std::size_t count) {
        if (count > max_template) refuse_tokenizer("at most 4,096 tokens of a post-processor", "more");
    };
    const Json::Value pieces = part.at("single"), special = part.at("special_tokens");
    bounded(pieces.size());
    bounded(special.size());
    pieces.each([&](Json::Value piece) {
        if (piece.find("Sequence")) return made.push_back(the_text);
        const Json::Value ids = special.at(piece.at("SpecialToken").at("id").string()).at("ids");
        bounded(made.size() + ids.size());
        ids.each([&](Json::Value id) { made.push_back(id.integer()); });
    });
    return made;
}

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

// The post-processor: each of its parts puts its tokens around those of the parts before it.
void Tokenizer::add_templates(Json::Value part) {
    std::size_t parts = 0;
    const std::function<void(Json::Value)> add = [&](Json::Value found) {
        if (found.is_null()) return;
        const std::string_view type = found.at("type").string();
        if (++parts > max_templates) refuse_tokenizer("at most 256 parts of a post-processor", "more");
        if (type == "ByteLevel") return;  // changes no token
        if (type == "Sequence") return found.at("processors").each(add);
        if (type != "RobertaProcessing" && type != "TemplateProcessing") refuse_part("post-processor", type);
        add_template(type == "RobertaProcessing" ? roberta(found) : single(found));
    };
    add(part);
}

void Tokenizer::add_template(const Ids &form) {
    const bool good = std::all_of(form.begin(), form.end(), [](std::int64_t id) { return id >= the_text && id < std::int64_t{1} << 24; });
    if (!good || form.size() > max_template || std::count(form.begin(), form.end(), the_text) != 1)
        refuse_part("post-processor of another form:", "a template without the text, or of other tokens");
    const auto text = std::find(form.begin(), form.end(), the_text);
    before.insert(before.begin(), form.begin(), text);
    behind.insert(behind.end(), text + 1, form.end());
}

void Tokenizer::encode_text(std::string_view text, bool first, Ids &tokens) {
    const std::string normal = normalizer->normalize(std::string(text));
    Encoding encoding(*model, tokens);
    added->cut(normal, true, [&](const AddedTokens::Part &part) {
        if (part.id >= 0) return tokens.push_back(part.id);
        pre_tokenizer->cut({std::string_view(normal).substr(part.begin, part.end - part.begin), first && part.begin == 0}, encoding);
    });
}

Ids Tokenizer::encode(std::string_view text, bool special) {
    if (!is_utf8(text)) refuse_tokenizer("text in UTF-8", "another");
    require_text(text.size());
    const std::lock_guard<std::mutex> lock(mutex);
    Ids tokens;
    tokens.reserve(text.size() / 3 + before.size() + behind.size());  // often enough; what is not written is not there
    if (special) tokens = before;
    added->cut(text, false, [&](const AddedTokens::Part &part) {
        if (part.id >= 0) tokens.push_back(part.id);
        else encode_text(text.substr(part.begin, part.end - part.begin), part.begin == 0, tokens);
    });
    if (special) tokens.insert(tokens.end(), behind.begin(), behind.end());
    if (!tokens.empty()) return tokens;
    if (bos < 0) refuse_tokenizer("a text, as this model has no BOS token to start from", "an empty one");
    return {bos};
}

std::string Tokenizer::decode(const std::int64_t *tokens, std::size_t count) const {
    Joined joined;
    const std::unique_ptr<TextSink> sink = decoder->start(joined);
    for (const std::int64_t *id = tokens; id != tokens + count; id++) {
        const std::string *name = added->text(*id);
        const std::string_view text = name ? std::string_view(*name) : model->vocabulary.text(*id);
        const bool known = name || model->vocabulary.find(text) == *id;
        if (known && !added->is_special(text)) sink->take(text);
    }
    sink->end();
    return std::move(joined.text);
}

}  // namespace t2r
