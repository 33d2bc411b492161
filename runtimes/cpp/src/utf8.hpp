// UTF-8, strictly: no surrogates, no overlong forms, nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace t2r {

struct Decoded {
    char32_t code;     // U+FFFD where it is not valid
    std::size_t size;  // bytes: of what is not valid, those that one U+FFFD stands for
    bool valid;
};

// The character at `at`, which lies in the text. Of broken UTF-8, one U+FFFD stands for the longest beginning of a
// character (Unicode, "maximal subpart"), as Python and Rust have it.
Decoded decode_utf8(std::string_view text, std::size_t at);

void append_utf8(std::string &text, char32_t code);

bool is_utf8(std::string_view text);

// The text with U+FFFD for what is no UTF-8.
std::string valid_utf8(std::string_view text);

}  // namespace t2r
