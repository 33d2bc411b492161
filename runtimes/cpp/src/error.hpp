// Errors: a kind of the contract's closed list, and one line of what was expected, what was received, what to do.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "t2r.h"

namespace t2r {

class Error : public std::exception {
public:
    Error(t2r_kind kind, std::string line) : kind(kind), line(std::move(line)) {}
    const char *what() const noexcept override { return line.c_str(); }

    t2r_kind kind;
    std::string line;
};

[[noreturn]] void fail(t2r_kind kind, std::string_view expected, std::string_view received, std::string_view advice);

// A text on one line that is safe to print, as it may quote an untrusted file. Control characters and bytes that are not
// UTF-8 are escaped, and a text of more than `limit` bytes is truncated.
std::string printable(std::string_view text, std::size_t limit = 300);

inline std::string number(std::int64_t value) { return std::to_string(value); }

}  // namespace t2r
