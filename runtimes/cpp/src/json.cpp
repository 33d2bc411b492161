#include "json.hpp"

#include <charconv>
#include <locale>
#include <sstream>

#include "utf8.hpp"

namespace t2r {

class JsonReader {
public:
    JsonReader(Json &json, const JsonLimits &limits) : text(json.text), nodes(json.nodes), limits(limits) {}

    void document() {
        if (text.size() > limits.bytes) fail("more than " + std::to_string(limits.bytes) + " bytes");
        if (!is_utf8(text)) fail("bytes that are no UTF-8");
        value(0);
        blank();
        if (at != text.size()) fail("something behind the end");
    }

private:
    [[noreturn]] void fail(const std::string &what) const { throw JsonError{what + " at byte " + std::to_string(at)}; }

    char peek() const { return at < text.size() ? text[at] : '\0'; }

    void blank() {
        while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) at++;
    }

    bool take(char wanted) {
        blank();
        if (peek() != wanted || at == text.size()) return false;
        at++;
        return true;
    }

    std::size_t add(Json::Type type, std::size_t begin, std::size_t size) {
        if (nodes.size() >= limits.values) fail("more than " + std::to_string(limits.values) + " values");
        nodes.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(size), 0, type});
        nodes.back().next = static_cast<std::uint32_t>(nodes.size());
        return nodes.size() - 1;
    }

    void value(unsigned depth) {
        if (depth > limits.depth) fail("more than " + std::to_string(limits.depth) + " levels");
        blank();
        switch (peek()) {
        case '{': return list(Json::Type::object, '}', depth);
        case '[': return list(Json::Type::array, ']', depth);
        case '"': return string();
        case 't': return word("true", Json::Type::boolean);
        case 'f': return word("false", Json::Type::boolean);
        case 'n': return word("null", Json::Type::null);
        default: return number();
        }
    }

    void list(Json::Type type, char end, unsigned depth) {
        const std::size_t self = add(type, at, 0);
        at++;
        std::uint32_t count = 0;
        if (!take(end)) {
            do {
                if (type == Json::Type::object) {
                    blank();
                    if (peek() != '"') fail("no key");
                    string();
                    if (!take(':')) fail("no colon");
                }
                value(depth + 1);
                count++;
            } while (take(','));
            if (!take(end)) fail(type == Json::Type::object ? "an object without its end" : "an array without its end");
        }
        nodes[self].size = count;
        nodes[self].next = static_cast<std::uint32_t>(nodes.size());
    }

    void word(std::string_view name, Json::Type type) {
        if (std::string_view(text).substr(at, name.size()) != name) fail("no JSON");
        add(type, at, name.size());
        at += name.size();
    }

    bool digits() {
        const std::size_t begin = at;
        while (peek() >= '0' && peek() <= '9') at++;
        return at > begin;
    }

    void number() {
        const std::size_t begin = at;
        if (peek() == '-') at++;
        const bool zero = peek() == '0';
        const std::size_t whole = at;
        if (!digits() || (zero && at > whole + 1)) fail("no JSON");
        if (peek() == '.') {
            at++;
            if (!digits()) fail("a number without its end");
        }
        if (peek() == 'e' || peek() == 'E') {
            at++;
            if (peek() == '+' || peek() == '-') at++;
            if (!digits()) fail("a number without its end");
        }
        add(Json::Type::number, begin, at - begin);
    }

    char32_t four() {
        char32_t code = 0;
        for (int i = 0; i < 4; i++, at++) {
            const char c = peek();
            const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
            if (digit < 0) fail("a bad escape");
            code = code << 4 | static_cast<char32_t>(digit);
        }
        return code;
    }

    char32_t unicode() {
        const char32_t high = four();
        if (high < 0xD800 || high > 0xDFFF) return high;
        if (high > 0xDBFF || peek() != '\\' || at + 1 >= text.size() || text[at + 1] != 'u') fail("half a surrogate pair");
        at += 2;
        const char32_t low = four();
        if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair");
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }

    // Unescapes in place: a character is never longer than its escape.
    void string() {
        const std::size_t begin = ++at;
        std::size_t end = begin;
        std::string character;
        while (peek() != '"') {
            if (at >= text.size()) fail("a string without its end");
            if (static_cast<unsigned char>(text[at]) < 32) fail("a control character in a string");
            if (text[at] != '\\') {
                text[end++] = text[at++];
                continue;
            }
            at++;
            static const std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
            const std::size_t simple = at < text.size() ? from.find(text[at]) : from.npos;
            if (simple != from.npos) {
                text[end++] = to[simple];
                at++;
            } else if (peek() == 'u') {
                at++;
                character.clear();
                append_utf8(character, unicode());
                for (const char byte : character) text[end++] = byte;
            } else {
                fail("a bad escape");
            }
        }
        at++;
        add(Json::Type::string, begin, end - begin);
    }

    std::string &text;
    std::vector<Json::Node> &nodes;
    const JsonLimits &limits;
    std::size_t at = 0;
};

Json::Json(std::string source, const JsonLimits &limits) : text(std::move(source)) { JsonReader(*this, limits).document(); }

void Json::Value::require(Type wanted) const {
    static const char *const names[] = {"null", "a boolean", "a number", "a string", "an array", "an object"};
    if (!is(wanted))
        throw JsonError{std::string(names[static_cast<int>(type())]) + " for " + names[static_cast<int>(wanted)]};
}

bool Json::Value::boolean() const {
    require(Type::boolean);
    return document->text[node().begin] == 't';
}

bool Json::Value::is_integer() const {
    if (!is(Type::number)) return false;
    const char *begin = document->text.data() + node().begin, *end = begin + node().size;
    std::int64_t whole;
    const auto read = std::from_chars(begin, end, whole);
    return read.ec == std::errc() && read.ptr == end;
}

std::int64_t Json::Value::integer() const {
    require(Type::number);
    const char *begin = document->text.data() + node().begin, *end = begin + node().size;
    std::int64_t whole = 0;
    const auto read = std::from_chars(begin, end, whole);
    if (read.ec != std::errc() || read.ptr != end) throw JsonError{"a number that is no integer, or too large a one"};
    return whole;
}

double Json::Value::real() const {
    require(Type::number);
    const char *begin = document->text.data() + node().begin, *end = begin + node().size;
    double value = 0;
#ifdef __cpp_lib_to_chars
    if (std::from_chars(begin, end, value).ec != std::errc()) throw JsonError{"a number out of range"};
#else  // a standard library without it: slower, also independent of the locale
    std::istringstream stream(std::string(begin, end));
    stream.imbue(std::locale::classic());
    if (!(stream >> value)) throw JsonError{"a number out of range"};
#endif
    return value;
}

std::string_view Json::Value::string() const {
    require(Type::string);
    return std::string_view(document->text).substr(node().begin, node().size);
}

std::size_t Json::Value::size() const {
    if (!is(Type::array)) require(Type::object);
    return node().size;
}

std::optional<Json::Value> Json::Value::find(std::string_view key) const {
    std::optional<Value> found;
    each_pair([&](std::string_view name, Value value) {
        if (name == key) found = value;
    });
    return found;
}

Json::Value Json::Value::at(std::string_view key) const {
    const std::optional<Value> found = find(key);
    if (!found) throw JsonError{"no " + std::string(key)};
    return *found;
}

std::string json_string(std::string_view text) {
    static const char digits[] = "0123456789abcdef";
    std::string made = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            made.append({'\\', c});
        } else if (static_cast<unsigned char>(c) < 32) {
            made.append("\\u00").append({digits[c >> 4 & 15], digits[c & 15]});
        } else {
            made += c;
        }
    }
    return made + '"';
}

}  // namespace t2r
