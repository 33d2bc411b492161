// The normalizer Precompiled: SentencePiece's map of characters to texts, a double array (Aoe 1989) followed by the texts. A
// map may be untrusted: every index in it is checked before it is used.
#include <algorithm>

#include "tokenizer_parts.hpp"
#include "unicode.hpp"
#include "utf8.hpp"

namespace t2r {

namespace {

constexpr std::size_t longest_grapheme = 5;  // bytes: longer ones are looked up character by character

std::string decode_base64(std::string_view text) {
    static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    std::uint32_t bits = 0;
    unsigned count = 0;
    while (!text.empty() && text.back() == '=') text.remove_suffix(1);
    for (const char c : text) {
        const std::size_t digit = digits.find(c);
        if (digit == digits.npos) refuse_tokenizer("a precompiled_charsmap in base64", "something else");
        bits = bits << 6 | static_cast<std::uint32_t>(digit);
        count += 6;
        if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
    }
    return bytes;
}

class Precompiled : public Normalizer {
public:
    explicit Precompiled(std::string_view base64) {
        const std::string bytes = decode_base64(base64);
        const std::size_t size = bytes.size() < 4 ? 0 : word(bytes, 0);
        if (bytes.size() < 4 || size % 4 || size > bytes.size() - 4)
            refuse_tokenizer("a precompiled_charsmap as long as it says", "a damaged one");
        for (std::size_t at = 4; at < 4 + size; at += 4) units.push_back(word(bytes, at));
        texts = bytes.substr(4 + size);
        if (!is_utf8(texts)) refuse_tokenizer("a precompiled_charsmap of UTF-8", "another");
        for (std::size_t at = 0, end; at < texts.size(); at = end + 1) {
            end = std::min(texts.find('\0', at), texts.size());
            longest = std::max(longest, end - at);
        }
    }

    std::string normalize(std::string text) const override {
        std::string made;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t size = grapheme_size(std::string_view(text).substr(at));
            add(std::string_view(text).substr(at, size), made);
            require_text(made.size());
            at += size;
        }
        return made;
    }

    double grown(double bytes) const override { return bytes * static_cast<double>(longest); }

private:
    static std::uint32_t word(std::string_view bytes, std::size_t at) {
        std::uint32_t value = 0;
        for (std::size_t i = 0; i < 4; i++) value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << 8 * i;
        return value;
    }

    void add(std::string_view grapheme, std::string &made) const {
        std::string_view found;
        if (grapheme.size() <= longest_grapheme && look_up(grapheme, found)) {
            made.append(found);
            return;
        }
        for (std::size_t at = 0; at < grapheme.size();) {
            const std::string_view character = grapheme.substr(at, decode_utf8(grapheme, at).size);
            made.append(look_up(character, found) ? found : character);
            at += character.size();
        }
    }

    // The text of the shortest prefix of `key` that has one.
    bool look_up(std::string_view key, std::string_view &found) const {
        std::size_t place = 0;
        if (units.empty()) return false;
        place ^= offset(units[0]);
        for (const char c : key) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte == 0) return false;
            place ^= byte;
            if (place >= units.size() || (units[place] & 0x800000FF) != byte) return false;
            const std::uint32_t unit = units[place];
            place ^= offset(unit);
            if (!(unit >> 8 & 1)) continue;
            if (place >= units.size()) return false;
            const std::size_t begin = units[place] & 0x7FFFFFFF;
            if (begin > texts.size()) return false;
            found = std::string_view(texts).substr(begin);
            found = found.substr(0, found.find('\0'));
            return true;
        }
        return false;
    }

    static std::size_t offset(std::uint32_t unit) { return static_cast<std::size_t>(unit >> 10) << ((unit & 1 << 9) >> 6); }

    std::vector<std::uint32_t> units;
    std::string texts;
    std::size_t longest = 1;  // bytes of the longest text
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(std::string_view base64) { return std::make_unique<Precompiled>(base64); }

}  // namespace t2r
