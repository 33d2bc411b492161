#include "tokenizer.hpp"

#include <algorithm>
#include <functional>

#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::int64_t the_text = -1;
constexpr double max_inserted = 256;

// Passes the pieces of a text of `bytes` bytes to the model, and refuses too much work for it.
class Encoding : public PieceSink {
public:
    Encoding(Model &model, std::size_t bytes, Ids &tokens) : model(model), most(std::max(free_work, max_work * bytes) / model.looks), tokens(tokens) {}
    void take(Piece piece) override {
        made += piece.text.size();
        if (made > most) refuse_tokenizer("a text that grows less in this tokenizer", "one of which too many bytes reach its model");
        if (!piece.text.empty()) model.encode(piece.text, tokens);
    }

private:
    Model &model;
    const std::size_t most;
    std::size_t made = 0;
    Ids &tokens;
};

// Concatenates the texts of tokens.
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
    std::size_t pieces = 0;  // counted since a piece without ids is looked up too
    const auto add = [&](std::int64_t id) {
        made.push_back(id);
        require_at_most(max_inserted, static_cast<double>(made.size() - 1), "ids that a post_processor inserts");
    };
    part.at("single").each([&](Json::Value piece) {
        if (piece.find("Sequence")) return add(the_text);
        const Json::Value special = part.at("special_tokens").at(piece.at("SpecialToken").at("id").string());
        require_at_most(max_inserted, static_cast<double>(++pieces), "pieces of a template");
        special.at("ids").each([&](Json::Value id) { add(id.integer()); });
    });
    return made;
}

}  // namespace

Tokenizer::Tokenizer(std::string source, std::int64_t bos) : bos(bos) {
    if (source.size() > max_tokenizer_bytes) refuse_tokenizer("a tokenizer of at most 32 MiB", std::to_string(source.size()) + " bytes");
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
        const Json::Value vocabulary = root.at("model").at("vocab");
        const std::size_t pieces = vocabulary.is(Json::Type::array) ? vocabulary.size() : model->vocabulary.size();
        const Json::Value more = part("added_tokens");
        added = std::make_unique<AddedTokens>(more, model->vocabulary, pieces, *normalizer);
        if (!more.is_null()) more.each([&](Json::Value token) { model->surfaces.erase(std::string(token.at("content").string())); });
        add_templates(part("post_processor"));
    } catch (const JsonError &error) {
        refuse_tokenizer("the text of a tokenizer.json", error.what);
    }
}

// The post-processor: each part adds its tokens around those of the parts before it.
void Tokenizer::add_templates(Json::Value component) {
    each_part(component, "processors", [&](std::string_view type, Json::Value part) {
        if (type == "ByteLevel") return;  // changes no token
        if (type != "RobertaProcessing" && type != "TemplateProcessing") refuse_part("post-processor", type);
        const Ids form = type == "RobertaProcessing" ? roberta(part) : single(part);
        const bool good = std::all_of(form.begin(), form.end(), [](std::int64_t id) { return id >= the_text && id < max_ids; });
        if (!good || std::count(form.begin(), form.end(), the_text) != 1)
            refuse_part("post-processor of another form:", "a template without the text, or of other tokens");
        const auto text = std::find(form.begin(), form.end(), the_text);
        before.insert(before.begin(), form.begin(), text);
        behind.insert(behind.end(), text + 1, form.end());
        require_at_most(max_inserted, static_cast<double>(before.size() + behind.size()), "ids that a post_processor inserts");
    });
}

void Tokenizer::encode_text(std::string_view text, bool first, PieceSink &encoding, Ids &tokens) {
    const std::string normal = normalizer->normalize(std::string(text));
    if (tokens.size() <= before.size()) tokens.reserve(normal.size() / 3);  // often enough; unused pages cost no memory
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
    if (special) tokens = before;
    Encoding encoding(*model, text.size(), tokens);
    added->cut(text, false, [&](const AddedTokens::Part &part) {
        if (part.id >= 0) tokens.push_back(part.id);
        else encode_text(text.substr(part.begin, part.end - part.begin), part.begin == 0, encoding, tokens);
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
        if (known && !added->is_special(*id)) sink->take(text);
    }
    sink->end();
    return std::move(joined.text);
}

}  // namespace t2r
