#include <algorithm>

#include "tokenizer_parts.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

// A decoder's run over the tokens of one text: passes its output on and counts it.
class Step : public TextSink {
public:
    explicit Step(TextSink &next) : next(next) {}
    void end() override { next.end(); }

protected:
    void put(std::string_view text) {
        require_text(written += text.size());
        next.take(text);
    }

private:
    TextSink &next;
    std::size_t written = 0;
};

// A decoder without options, and one with options. growth: most output bytes per input byte.
template <class Run, int growth = 1> class Plain : public TokenDecoder {
public:
    std::unique_ptr<TextSink> start(TextSink &next) const override { return std::make_unique<Run>(next); }
    double grown(double bytes) const override { return growth * bytes; }
};
template <class Run> class With : public TokenDecoder {
public:
    explicit With(Json::Value part) : options(part) {}
    std::unique_ptr<TextSink> start(TextSink &next) const override { return std::make_unique<Run>(options, next); }
    double grown(double bytes) const override { return options.growth * bytes; }

private:
    const typename Run::Options options;
};

class ByteLevel : public Step {
public:
    using Step::Step;
    void take(std::string_view token) override {
        const std::size_t before = bytes.size();
        for (std::size_t at = 0; at < token.size();) {
            const Decoded character = decode_utf8(token, at);
            const int byte = character_byte(character.code);
            if (byte < 0) {  // a token with other characters is copied unchanged
                bytes.resize(before);
                bytes += token;
                break;
            }
            bytes += static_cast<char>(byte);
            at += character.size;
        }
        require_text(bytes.size());
    }
    void end() override {
        put(is_utf8(bytes) ? bytes : valid_utf8(bytes));
        Step::end();
    }

private:
    std::string bytes;
};

class ByteFallback : public Step {
public:
    using Step::Step;
    void take(std::string_view token) override {
        const int byte = byte_of(token);
        if (byte >= 0) {
            bytes += static_cast<char>(byte);
            return require_text(bytes.size());
        }
        flush();
        put(token);
    }
    void end() override {
        flush();
        Step::end();
    }

private:
    void flush() {
        if (bytes.empty()) return;
        if (is_utf8(bytes)) put(bytes);
        else for (std::size_t i = 0; i < bytes.size(); i++) put("\xEF\xBF\xBD");
        bytes.clear();
    }

    static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; }

    // The byte of a token: 10 for <0x0A>.
    static int byte_of(std::string_view token) {
        if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
        const int high = digit(token[3]), low = digit(token[4]);
        return high < 0 || low < 0 ? -1 : high << 4 | low;
    }

    std::string bytes;
};

class Fuse : public Step {
public:
    using Step::Step;
    void take(std::string_view token) override {
        made += token;
        require_text(made.size());
    }
    void end() override {
        put(made);
        Step::end();
    }

private:
    std::string made;
};

class Metaspace : public Step {
public:
    struct Options {
        explicit Options(Json::Value part) : mark(one_character(part, "replacement", "Metaspace of the replacement")) {
            const auto scheme = part.find("prepend_scheme");
            prepends = scheme ? scheme->string() != "never" : flag(part, "add_prefix_space", true);
        }
        std::string mark;
        bool prepends;
        double growth = 1;
    };

    Metaspace(const Options &options, TextSink &next) : Step(next), options(options) {}
    void take(std::string_view token) override {
        const std::string &mark = options.mark;
        made.clear();
        for (std::size_t at = 0; at < token.size();) {
            const bool marked = token.substr(at, mark.size()) == mark;
            if (!marked) made += token[at];
            else if (!first || !options.prepends) made += ' ';
            at += marked ? mark.size() : 1;
        }
        first = false;
        put(made);
    }

private:
    const Options &options;
    std::string made;
    bool first = true;
};

class Replace : public Step {
public:
    struct Options {
        explicit Options(Json::Value part) : pattern(part.at("pattern"), "decoder Replace"), content(inserted(part, "content")), growth(pattern.growth(content)) {}
        Pattern pattern;
        std::string content;
        double growth;
    };

    Replace(const Options &options, TextSink &next) : Step(next), options(options) {}
    void take(std::string_view token) override {
        made.clear();
        for (std::size_t at = 0; at < token.size();) {
            const auto [begin, end] = options.pattern.find(token, at);
            made += token.substr(at, begin - at);
            if (begin == token.size()) break;
            made += options.content;
            require_text(made.size());
            at = end;
        }
        put(made);
    }

private:
    const Options &options;
    std::string made;
};

class Strip : public Step {
public:
    struct Options {
        explicit Options(Json::Value part)
            : content(one_character(part, "content", "decoder Strip of")), start(part.at("start").integer()), stop(part.at("stop").integer()) {}
        std::string content;
        std::int64_t start, stop;
        double growth = 1;
    };

    Strip(const Options &options, TextSink &next) : Step(next), options(options) {}
    void take(std::string_view token) override {
        const std::string &content = options.content;
        for (std::int64_t i = 0; i < options.start && token.substr(0, content.size()) == content; i++) token.remove_prefix(content.size());
        for (std::int64_t i = 0; i < options.stop && ends(token, content); i++) token.remove_suffix(content.size());
        put(token);
    }

private:
    static bool ends(std::string_view token, std::string_view content) {
        return token.size() >= content.size() && token.substr(token.size() - content.size()) == content;
    }

    const Options &options;
};

// Without a decoder, tokens are words, separated by spaces.
class Words : public Step {
public:
    using Step::Step;
    void take(std::string_view token) override {
        if (!first) put(" ");
        first = false;
        put(token);
    }

private:
    bool first = true;
};

class Sequence : public TokenDecoder {
public:
    explicit Sequence(std::vector<std::unique_ptr<TokenDecoder>> parts) : parts(std::move(parts)) {}
    std::unique_ptr<TextSink> start(TextSink &next) const override { return std::make_unique<Run>(parts, next); }
    double grown(double bytes) const override {
        for (const auto &part : parts) bytes = part->grown(bytes);
        return bytes;
    }

private:
    // The steps of all parts, last part first; each passes its output to the step before it.
    class Run : public TextSink {
    public:
        Run(const std::vector<std::unique_ptr<TokenDecoder>> &parts, TextSink &next) : front(&next) {
            for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
                steps.push_back((*part)->start(*front));
                front = steps.back().get();
            }
        }
        void take(std::string_view text) override { front->take(text); }
        void end() override { front->end(); }

    private:
        std::vector<std::unique_ptr<TextSink>> steps;
        TextSink *front;
    };

    std::vector<std::unique_ptr<TokenDecoder>> parts;
};

}  // namespace

std::unique_ptr<TokenDecoder> make_decoder(Json::Value component) {
    if (component.is_null()) return std::make_unique<Plain<Words>>();
    std::vector<std::unique_ptr<TokenDecoder>> parts;
    each_part(component, "decoders", [&](std::string_view type, Json::Value part) {
        if (type == "ByteLevel") parts.push_back(std::make_unique<Plain<ByteLevel, 3>>());
        else if (type == "ByteFallback") parts.push_back(std::make_unique<Plain<ByteFallback>>());
        else if (type == "Fuse") parts.push_back(std::make_unique<Plain<Fuse>>());
        else if (type == "Metaspace") parts.push_back(std::make_unique<With<Metaspace>>(part));
        else if (type == "Replace") parts.push_back(std::make_unique<With<Replace>>(part));
        else if (type == "Strip") parts.push_back(std::make_unique<With<Strip>>(part));
        else refuse_part("decoder", type);
    });
    auto made = std::make_unique<Sequence>(std::move(parts));
    require_at_most(64, made->grown(1), "bytes for one from a decoder");
    return made;
}

}  // namespace t2r
