#include <algorithm>

#include "tokenizer_parts.hpp"
#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

class Sequence : public Normalizer {
public:
    explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts(std::move(parts)) {}
    std::string normalize(std::string text) const override {
        for (const auto &part : parts) text = part->normalize(std::move(text));
        return text;
    }
    double grown(double bytes) const override {
        for (const auto &part : parts) bytes = part->grown(bytes);
        return bytes;
    }

private:
    std::vector<std::unique_ptr<Normalizer>> parts;
};

class Prepend : public Normalizer {
public:
    explicit Prepend(Json::Value part) : before(inserted(part, "prepend")) {}
    std::string normalize(std::string text) const override {
        require_text(text.size() + before.size());
        return text.empty() ? text : before + text;
    }
    double grown(double bytes) const override { return bytes + static_cast<double>(before.size()); }

private:
    std::string before;
};

class Replace : public Normalizer {
public:
    explicit Replace(Json::Value part) : pattern(part.at("pattern"), "normalizer Replace"), content(inserted(part, "content")), growth(pattern.growth(content)) {}
    std::string normalize(std::string text) const override {
        std::string made;
        std::size_t at = 0;
        while (at < text.size()) {
            const auto [begin, end] = pattern.find(text, at);
            made.append(text, at, begin - at);
            if (begin == text.size()) break;
            made += content;
            require_text(made.size());
            at = end;
        }
        return made;
    }
    double grown(double bytes) const override { return bytes * growth; }

private:
    Pattern pattern;
    std::string content;
    double growth;
};

class Strip : public Normalizer {
public:
    explicit Strip(Json::Value part) : left(flag(part, "strip_left", true)), right(flag(part, "strip_right", true)) {}
    std::string normalize(std::string text) const override {
        std::size_t begin = 0, kept = 0;
        bool leading = true;
        for (std::size_t at = 0; at < text.size();) {
            const Decoded character = decode_utf8(text, at);
            const bool space = has(character.code, is_space);
            at += character.size;
            leading = leading && space;
            if (leading) begin = at;
            if (!space) kept = at;
        }
        if (!left) begin = 0;
        const std::size_t end = right ? std::max(begin, kept) : text.size();
        return text.substr(begin, end - begin);
    }

private:
    bool left, right;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(Json::Value component) {
    std::vector<std::unique_ptr<Normalizer>> parts;
    each_part(component, "normalizers", [&](std::string_view type, Json::Value part) {
        if (type == "Prepend") parts.push_back(std::make_unique<Prepend>(part));
        else if (type == "Replace") parts.push_back(std::make_unique<Replace>(part));
        else if (type == "Strip") parts.push_back(std::make_unique<Strip>(part));
        else if (type == "Precompiled") parts.push_back(make_precompiled(part.at("precompiled_charsmap").string()));
        else if (type == "NFC" || type == "NFKC") parts.push_back(make_normalization(type == "NFKC", true));
        else if (type == "NFD" || type == "NFKD") parts.push_back(make_normalization(type == "NFKD", false));
        else refuse_part("normalizer", type);
    });
    auto made = std::make_unique<Sequence>(std::move(parts));
    require_at_most(4096, made->grown(1), "bytes for one from a normalizer");
    return made;
}

}  // namespace t2r
