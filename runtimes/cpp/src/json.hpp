// Parser for untrusted JSON, into one flat array of 16 bytes per value: its memory is bounded before parsing, and no value is
// allocated by itself. Strict RFC 8259; the last of duplicate keys counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace t2r {

struct JsonLimits {
    std::size_t bytes = std::size_t{1} << 24;
    std::size_t values = std::size_t{1} << 22;
    unsigned depth = 128;
};

// Invalid JSON, or a value of another type than requested.
struct JsonError {
    std::string what;
};

class Json {
public:
    enum class Type : std::uint8_t { null, boolean, number, string, array, object };

private:
    struct Node {
        std::uint32_t begin, size;  // of a string, a number or `true`: in the text; of others, size counts values
        std::uint32_t next;         // the node after this one and its children
        Type type;
    };

public:
    // A value in a document, which must outlive it.
    class Value {
    public:
        Type type() const { return node().type; }
        bool is(Type wanted) const { return type() == wanted; }
        bool is_null() const { return is(Type::null); }
        // Each of these throws JsonError for another type; `integer` also for 1.0 and 1e3, which are not integers.
        bool boolean() const;
        std::int64_t integer() const;
        double real() const;
        std::string_view string() const;
        bool is_integer() const;
        // The number of an array's values, or of an object's keys.
        std::size_t size() const;
        std::optional<Value> find(std::string_view key) const;
        Value at(std::string_view key) const;  // throws JsonError that names the key

        // The first value of an array, or the first key of an object, whose value comes next.
        Value first() const { return {document, index + 1}; }
        Value next() const { return {document, node().next}; }
        template <class F> void each(F call) const;      // call(value) of an array
        template <class F> void each_pair(F call) const;  // call(key, value) of an object

    private:
        friend class Json;
        Value(const Json *document, std::uint32_t index) : document(document), index(index) {}
        const Node &node() const { return document->nodes[index]; }
        void require(Type wanted) const;

        const Json *document;
        std::uint32_t index;
    };

    // Throws JsonError.
    explicit Json(std::string text, const JsonLimits &limits = {});
    Json(const Json &) = delete;
    Json &operator=(const Json &) = delete;
    Value root() const { return {this, 0}; }

private:
    friend class JsonReader;

    std::string text;  // strings are unescaped in place
    std::vector<Node> nodes;
};

template <class F> void Json::Value::each(F call) const {
    require(Type::array);
    Value value = first();
    for (std::size_t left = node().size; left > 0; left--, value = value.next()) call(value);
}

template <class F> void Json::Value::each_pair(F call) const {
    require(Type::object);
    Value key = first();
    for (std::size_t left = node().size; left > 0; left--) {
        const Value value = key.next();
        call(key.string(), value);
        key = value.next();
    }
}

// A text as a JSON string, with its quotes.
std::string json_string(std::string_view text);

}  // namespace t2r
