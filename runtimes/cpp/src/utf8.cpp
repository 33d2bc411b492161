#include "utf8.hpp"

namespace t2r {

namespace {

constexpr char32_t replacement = 0xFFFD;

struct Form {
    std::size_t size;
    unsigned char low, high;  // range of the second byte: Unicode, table 3-7
};

Form form_of(unsigned char first) {
    if (first >= 0xC2 && first <= 0xDF) return {2, 0x80, 0xBF};
    if (first == 0xE0) return {3, 0xA0, 0xBF};
    if (first == 0xED) return {3, 0x80, 0x9F};
    if (first >= 0xE1 && first <= 0xEF) return {3, 0x80, 0xBF};
    if (first == 0xF0) return {4, 0x90, 0xBF};
    if (first >= 0xF1 && first <= 0xF3) return {4, 0x80, 0xBF};
    if (first == 0xF4) return {4, 0x80, 0x8F};
    return {0, 0, 0};
}

}  // namespace

Decoded decode_utf8(std::string_view text, std::size_t at) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) return {first, 1, true};
    const Form form = form_of(first);
    if (form.size == 0) return {replacement, 1, false};
    char32_t code = first & (0xFF >> (form.size + 1));
    for (std::size_t i = 1; i < form.size; i++) {
        if (at + i >= text.size()) return {replacement, i, false};
        const auto byte = static_cast<unsigned char>(text[at + i]);
        const unsigned char low = i == 1 ? form.low : 0x80, high = i == 1 ? form.high : 0xBF;
        if (byte < low || byte > high) return {replacement, i, false};
        code = code << 6 | (byte & 0x3F);
    }
    return {code, form.size, true};
}

void append_utf8(std::string &text, char32_t code) {
    const auto byte = [&](char32_t value) { text += static_cast<char>(static_cast<unsigned char>(value)); };
    if (code < 0x80) {
        byte(code);
    } else if (code < 0x800) {
        byte(0xC0 | code >> 6);
        byte(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        byte(0xE0 | code >> 12);
        byte(0x80 | (code >> 6 & 0x3F));
        byte(0x80 | (code & 0x3F));
    } else {
        byte(0xF0 | code >> 18);
        byte(0x80 | (code >> 12 & 0x3F));
        byte(0x80 | (code >> 6 & 0x3F));
        byte(0x80 | (code & 0x3F));
    }
}

bool is_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const Decoded character = decode_utf8(text, at);
        if (!character.valid) return false;
        at += character.size;
    }
    return true;
}

std::string valid_utf8(std::string_view text) {
    std::string valid;
    valid.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Decoded character = decode_utf8(text, at);
        append_utf8(valid, character.code);
        at += character.size;
    }
    return valid;
}

}  // namespace t2r
