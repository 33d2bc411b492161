#include <algorithm>

#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

using Texts = std::vector<std::string>;

class Sequence : public TokenDecoder {
public:
    explicit Sequence(std::vector<std::unique_ptr<TokenDecoder>> parts) : parts(std::move(parts)) {}
    void decode(Texts &tokens) const override {
        for (const auto &part : parts) {
            part->decode(tokens);
            std::size_t bytes = 0;
            for (const std::string &token : tokens) bytes += token.size();
            require_text(bytes);
        }
    }

private:
    std::vector<std::unique_ptr<TokenDecoder>> parts;
};

class ByteLevel : public TokenDecoder {
public:
    void decode(Texts &tokens) const override {
        std::string bytes;
        for (const std::string &token : tokens) {
            std::string made;
            bool whole = true;
            for (std::size_t at = 0; whole && at < token.size();) {
                const Decoded character = decode_utf8(token, at);
                const int byte = character_byte(character.code);
                whole = byte >= 0;
                made += static_cast<char>(byte);
                at += character.size;
            }
            bytes += whole ? made : token;
        }
        tokens = {valid_utf8(bytes)};
    }
};

class ByteFallback : public TokenDecoder {
public:
    void decode(Texts &tokens) const override {
        Texts made;
        std::string bytes;
        const auto flush = [&] {
            if (bytes.empty()) return;
            if (is_utf8(bytes)) made.push_back(bytes);
            else made.insert(made.end(), bytes.size(), "\xEF\xBF\xBD");
            bytes.clear();
        };
        for (std::string &token : tokens) {
            const int byte = byte_of(token);
            if (byte >= 0) {
                bytes += static_cast<char>(byte);
                continue;
            }
            flush();
            made.push_back(std::move(token));
        }
        flush();
        tokens.swap(made);
    }

private:
    static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; }

    // Of <0x0A>, 10.
    static int byte_of(const std::string &token) {
        if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') return -1;
        const int high = digit(token[3]), low = digit(token[4]);
        return high < 0 || low < 0 ? -1 : high << 4 | low;
    }
};

class Fuse : public TokenDecoder {
public:
    void decode(Texts &tokens) const override {
        std::string made;
        for (const std::string &token : tokens) made += token;
        tokens = {made};
    }
};

class Metaspace : public TokenDecoder {
public:
    explicit Metaspace(Json::Value part) : mark(part.at("replacement").string()) {
        const auto scheme = part.find("prepend_scheme");
        prepends = scheme ? scheme->string() != "never" : flag(part, "add_prefix_space", true);
        if (mark.empty() || decode_utf8(mark, 0).size != mark.size()) refuse_part("Metaspace of the replacement", mark);
    }
    void decode(Texts &tokens) const override {
        for (std::size_t i = 0; i < tokens.size(); i++) {
            std::string made;
            for (std::size_t at = 0; at < tokens[i].size();) {
                const bool marked = tokens[i].compare(at, mark.size(), mark) == 0;
                if (!marked) made += tokens[i][at];
                else if (i > 0 || !prepends) made += ' ';
                at += marked ? mark.size() : 1;
            }
            tokens[i] = std::move(made);
        }
    }

private:
    std::string mark;
    bool prepends;
};

class Replace : public TokenDecoder {
public:
    explicit Replace(Json::Value part) : pattern(part.at("pattern"), "decoder Replace"), content(part.at("content").string()) {}
    void decode(Texts &tokens) const override {
        for (std::string &token : tokens) {
            std::string made;
            for (std::size_t at = 0; at < token.size();) {
                const auto [begin, end] = pattern.find(token, at);
                made.append(token, at, begin - at);
                if (begin == token.size()) break;
                made += content;
                require_text(made.size());
                at = end;
            }
            token = std::move(made);
        }
    }

private:
    Pattern pattern;
    std::string content;
};

class Strip : public TokenDecoder {
public:
    explicit Strip(Json::Value part) : content(part.at("content").string()), start(part.at("start").integer()), stop(part.at("stop").integer()) {
        if (content.empty() || decode_utf8(content, 0).size != content.size()) refuse_part("decoder Strip of", content);
    }
    void decode(Texts &tokens) const override {
        for (std::string &token : tokens) {
            std::size_t begin = 0, end = token.size();
            for (std::int64_t i = 0; i < start && token.compare(begin, content.size(), content) == 0; i++) begin += content.size();
            for (std::int64_t i = 0; i < stop && end >= begin + content.size() && token.compare(end - content.size(), content.size(), content) == 0; i++)
                end -= content.size();
            token = token.substr(begin, end - begin);
        }
    }

private:
    std::string content;
    std::int64_t start, stop;
};

void add_decoders(Json::Value part, std::vector<std::unique_ptr<TokenDecoder>> &parts) {
    if (part.is_null()) return;
    const std::string_view type = part.at("type").string();
    if (parts.size() >= max_parts) refuse_tokenizer("at most 256 parts of a decoder", "more");
    if (type == "Sequence") part.at("decoders").each([&](Json::Value inner) { add_decoders(inner, parts); });
    else if (type == "ByteLevel") parts.push_back(std::make_unique<ByteLevel>());
    else if (type == "ByteFallback") parts.push_back(std::make_unique<ByteFallback>());
    else if (type == "Fuse") parts.push_back(std::make_unique<Fuse>());
    else if (type == "Metaspace") parts.push_back(std::make_unique<Metaspace>(part));
    else if (type == "Replace") parts.push_back(std::make_unique<Replace>(part));
    else if (type == "Strip") parts.push_back(std::make_unique<Strip>(part));
    else refuse_part("decoder", type);
}

// Where there is no decoder, tokens are words.
class Words : public TokenDecoder {
public:
    void decode(Texts &tokens) const override {
        for (std::size_t i = 1; i < tokens.size(); i++) tokens[i].insert(0, " ");
    }
};

}  // namespace

std::unique_ptr<TokenDecoder> make_decoder(Json::Value part) {
    if (part.is_null()) return std::make_unique<Words>();
    std::vector<std::unique_ptr<TokenDecoder>> parts;
    add_decoders(part, parts);
    return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace t2r
