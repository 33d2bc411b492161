// UTF-8, strictly: no surrogates, no overlong forms, nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace t2r {

struct Decoded {
    char32_t code;     // U+FFFD if it is not valid
    std::size_t size;  // bytes; if not valid, those that one U+FFFD replaces
    bool valid;
};

// The character at `at`, which is in the text. In invalid UTF-8, one U+FFFD replaces the longest beginning of a character
// (Unicode, "maximal subpart"), as in Python and Rust.
Decoded decode_utf8(std::string_view text, std::size_t at);

void append_utf8(std::string &text, char32_t code);

bool is_utf8(std::string_view text);

// The text with U+FFFD for invalid UTF-8.
std::string valid_utf8(std::string_view text);

}  // namespace t2r
