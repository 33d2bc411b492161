#include "error.hpp"

#include "utf8.hpp"

namespace t2r {

void fail(t2r_kind kind, std::string_view expected, std::string_view received, std::string_view advice) {
    std::string line = "expected ";
    line.append(expected).append("; received ").append(received).append("; ").append(advice);
    throw Error(kind, std::move(line));
}

std::string printable(std::string_view text, std::size_t limit) {
    static const char digits[] = "0123456789abcdef";
    std::string line;
    for (std::size_t at = 0; at < text.size();) {
        if (line.size() > limit) return line + "…";
        const Decoded character = decode_utf8(text, at);
        const bool blank = character.code == ' ' || (character.code >= 9 && character.code <= 13);
        if (blank) {
            if (!line.empty() && line.back() != ' ') line += ' ';
        } else if (!character.valid || character.code < 32 || (character.code >= 127 && character.code < 160)) {
            for (std::size_t i = 0; i < character.size; i++) {
                const auto byte = static_cast<unsigned char>(text[at + i]);
                line.append("\\x") += digits[byte >> 4];
                line += digits[byte & 15];
            }
        } else {
            line.append(text.substr(at, character.size));
        }
        at += character.size;
    }
    return line;
}

}  // namespace t2r
